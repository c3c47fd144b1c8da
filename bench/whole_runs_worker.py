"""Trains a Pfeiffer adapter for classification with the library `adapters`.

    whole_runs_worker.py FOLDER '{"task": "cb", "learning_rate": 1e-3, "steps": 30, ...}'

``whole_runs.py`` starts this script in the environment for `adapters`. FOLDER contains the trunk, and one JSON file per
task with the texts and labels of each split. Batches are padded to their longest row, rounded up to a multiple of 8
tokens. The result is printed as one line of JSON.
"""

import json
import sys
from pathlib import Path
from typing import Any

import adapters
import torch
import transformers
from torch.utils.data import DataLoader
from torch_training import train


def main() -> None:
    folder, settings = Path(sys.argv[1]), json.loads(sys.argv[2])
    torch.manual_seed(settings["seed"])
    torch.set_num_threads(2)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder / "trunk")
    splits = json.loads((folder / f"{settings['task']}.json").read_text())
    data = {name: encode(split, tokenizer, settings["max_length"]) for name, split in splits.items()}
    model = adapters.AutoAdapterModel.from_pretrained(folder / "trunk")
    model.add_adapter("task", config="seq_bn")
    model.add_classification_head("task", num_labels=1 + max(splits["train"]["labels"]))
    model.train_adapter("task")
    collate = transformers.DataCollatorWithPadding(tokenizer, pad_to_multiple_of=8)
    size = settings["batch_size"]
    steps = train(model, DataLoader(data["train"], size, shuffle=True, collate_fn=collate), settings)
    accuracy = evaluate(model, DataLoader(data["dev"], size, collate_fn=collate))
    model.save_adapter(settings["output"], "task", with_head=True)
    print(json.dumps({"steps": steps, "accuracy": accuracy}))


def encode(split: dict[str, Any], tokenizer: Any, max_length: int) -> list[dict[str, Any]]:
    """Tokenizes the rows."""
    rows = tokenizer(*split["texts"], truncation=True, max_length=max_length)
    names = list(rows)
    return [{**{name: rows[name][row] for name in names}, "labels": label} for row, label in enumerate(split["labels"])]


@torch.no_grad()
def evaluate(model: Any, batches: DataLoader) -> float:
    """Computes the accuracy."""
    model.eval()
    right = total = 0
    for batch in batches:
        labels = batch["labels"]
        right += int((model(**batch).logits.argmax(-1) == labels).sum())
        total += len(labels)
    return right / total


if __name__ == "__main__":
    main()
