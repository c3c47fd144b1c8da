"""Builds Hugging Face datasets for tests."""

from typing import Any

PAIRS = {"text_a": ["é 1", "é 2", "é 3", "é 4"], "text_b": ["a", "b", "c", "d"]}


def labeled(*labels: int, names: tuple[str, ...] = ("no", "yes"), **columns: list[Any]) -> Any:
    """Builds a dataset of pairs with a ``ClassLabel`` column. ``columns`` are added, or replace the texts."""
    import datasets

    texts = {name: values[: len(labels)] for name, values in PAIRS.items()}
    dataset = datasets.Dataset.from_dict({**texts, **columns}).add_column("label", list(labels))
    features = dataset.features.copy()
    features["label"] = datasets.ClassLabel(names=list(names))
    return dataset.cast(features)


def names_of(rows: Any) -> list[str]:
    """Returns each row's label name."""
    return [rows.label_of(row) for row in range(len(rows))]
