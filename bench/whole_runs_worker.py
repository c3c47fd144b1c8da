"""Trains a Pfeiffer adapter or a fusion for classification with the library `adapters`.

    whole_runs_worker.py FOLDER '{"task": "cb", "learning_rate": 1e-3, "steps": 30, ...}'

``whole_runs.py`` and ``adapterhub_scores.py`` start this script in the environment for `adapters`. If the settings have
``sources``, ``{task: folder}`` of stored adapters, their fusion is trained. If they have ``eval_every``, the model with
the best of several dev scores is stored. FOLDER contains the trunk, and one JSON file per task with the texts and
labels of each split. Batches are padded to their longest row, rounded up to a multiple of 8 tokens. The result is
printed as one line of JSON.
"""

import json
import sys
from pathlib import Path
from typing import Any

import adapters
import torch
import transformers
from adapters.composition import Fuse
from torch.utils.data import DataLoader
from torch_training import train


def main() -> None:
    folder, settings = Path(sys.argv[1]), json.loads(sys.argv[2])
    torch.manual_seed(settings["seed"])
    torch.set_num_threads(2)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder / "trunk")
    splits = json.loads((folder / f"{settings['task']}.json").read_text())
    data = {name: encode(split, tokenizer, settings["max_length"]) for name, split in splits.items()}
    collate = transformers.DataCollatorWithPadding(tokenizer, pad_to_multiple_of=8)
    size = settings["batch_size"]
    train_batches = DataLoader(data["train"], size, shuffle=True, collate_fn=collate)
    dev_batches = DataLoader(data["dev"], size, collate_fn=collate)
    model = adapters.AutoAdapterModel.from_pretrained(folder / "trunk")
    sources = settings.get("sources", {})
    for name, source in sources.items():
        model.load_adapter(source, load_as=name, with_head=False)
    if sources:
        model.add_adapter_fusion(Fuse(*sources))
    else:
        model.add_adapter("task", config="seq_bn")
    model.add_classification_head("task", num_labels=1 + max(splits["train"]["labels"]))
    if sources:
        model.train_adapter_fusion(Fuse(*sources))
    else:
        model.train_adapter("task")
    best = Best(model, dev_batches)
    steps = train(
        model,
        train_batches,
        settings,
        penalty=model.base_model.get_fusion_regularization_loss if sources else None,
        evaluate=best.evaluate if "eval_every" in settings else None,
    )
    if "eval_every" in settings:
        best.restore()
    else:
        best.evaluate()
    if sources:
        model.save_adapter_fusion(settings["output"], Fuse(*sources))
    else:
        model.save_adapter(settings["output"], "task", with_head=True)
    print(json.dumps({"steps": steps, "accuracy": best.accuracy}))


class Best:
    """The trained parameters with the best dev accuracy."""

    def __init__(self, model: Any, batches: DataLoader) -> None:
        self.batches = batches
        self.trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self.model, self.accuracy, self.values = model, -1.0, list[Any]()

    def evaluate(self) -> None:
        """Evaluates the model, and copies its parameters if it is the best so far."""
        accuracy = evaluate(self.model, self.batches)
        if accuracy > self.accuracy:
            self.accuracy, self.values = accuracy, [parameter.detach().clone() for parameter in self.trained]

    @torch.no_grad()
    def restore(self) -> None:
        for parameter, value in zip(self.trained, self.values, strict=True):
            parameter.copy_(value)


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
