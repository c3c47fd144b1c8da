"""Trains a Pfeiffer adapter for tagging with `adapters`, and prints its scores.

    task_kinds_worker.py FOLDER '{"learning_rate": 1e-3, "epochs": 6, ...}'

``task_kinds.py`` starts this script in the environment for `adapters`. FOLDER contains the trunk, and rows.json with
the words and tags of each split. The scores are printed as one line of JSON.
"""

import json
import sys
from pathlib import Path
from typing import Any

import adapters
import torch
import transformers
from seqeval.metrics import f1_score, precision_score, recall_score
from torch.utils.data import DataLoader
from torch_training import train

IGNORED = -100


def main() -> None:
    folder, settings = Path(sys.argv[1]), json.loads(sys.argv[2])
    torch.manual_seed(settings["seed"])
    torch.set_num_threads(2)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder / "trunk")
    splits = json.loads((folder / "rows.json").read_text())
    names = sorted({tag for tags in splits["train"]["tags"] for tag in tags})
    model = adapters.AutoAdapterModel.from_pretrained(folder / "trunk")
    model.add_adapter("wnut", config="seq_bn")
    model.add_tagging_head("wnut", num_labels=len(names))
    model.train_adapter("wnut")
    collate = transformers.DataCollatorForTokenClassification(tokenizer, pad_to_multiple_of=8)
    data = {name: encode(split, tokenizer, names, settings["max_length"]) for name, split in splits.items()}
    steps = train(model, DataLoader(data["train"], settings["batch_size"], shuffle=True, collate_fn=collate), settings)
    scores = {name: evaluate(model, data[name], splits[name]["tags"], names, collate) for name in ("dev", "test")}
    print(json.dumps({"steps": steps, **scores}))


def encode(split: dict[str, Any], tokenizer: Any, names: list[str], max_length: int) -> list[dict[str, Any]]:
    """Tokenizes the rows.

    The first subword of each word is labeled with the word's tag. The other subwords have no label.
    """
    rows = []
    for words, tags in zip(split["words"], split["tags"], strict=True):
        row = tokenizer(words, is_split_into_words=True, truncation=True, max_length=max_length)
        previous, labels = None, []
        for word in row.word_ids():
            # All tags of dev and test also occur in train.
            labels.append(IGNORED if word is None or word == previous else names.index(tags[word]))
            previous = word
        rows.append({**row, "labels": labels})
    return rows


@torch.no_grad()
def evaluate(model: Any, data: list[Any], tags: list[list[str]], names: list[str], collate: Any) -> dict[str, float]:
    """Computes seqeval's scores.

    Truncated words have no prediction, so they count as outside entities.
    """
    model.eval()
    predictions = []
    for begin in range(0, len(data), 64):
        batch = collate(data[begin : begin + 64])
        best = model(**batch).logits.argmax(-1)
        for labels, row in zip(batch["labels"], best, strict=True):
            predictions.append([names[index] for index in row[labels != IGNORED].tolist()])
    padded = [row + ["O"] * (len(truth) - len(row)) for row, truth in zip(predictions, tags, strict=True)]
    scores = {"f1": f1_score, "precision": precision_score, "recall": recall_score}
    return {name: float(score(tags, padded)) for name, score in scores.items()}


if __name__ == "__main__":
    main()
