"""Compares afjax with Hugging Face's torch encoders, in a Markdown table with one row per encoder family.

    python tests/golden/parity.py

The script reads the golden files next to it, which have random weights and torch's outputs for padded rows of several
lengths. It needs neither torch nor transformers.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from afjax.nn.pooling import apply_pooler
from afjax.trunk.config_file import trunk_config
from afjax.trunk.encoder import encode
from afjax.trunk.families import ENCODER_FAMILIES
from afjax.trunk.hugging_face import from_hugging_face

FOLDER = Path(__file__).parent


def main() -> None:
    rows: dict[str, list[tuple[float, float | None, set[int]]]] = {name: [] for name in ENCODER_FAMILIES}
    for path in sorted(FOLDER.glob("encoder_*.npz")):
        with np.load(path) as file:
            arrays = dict(file)
        if any(name.startswith("state/") for name in arrays):
            rows[json.loads(str(arrays["config"]))["model_type"]].append(differences(arrays, path.name))
    print("| model_type | files | lengths of the rows | hidden states | pooler |\n|---|---|---|---|---|")
    for family, results in rows.items():
        lengths = sorted(set().union(*(lengths for *_, lengths in results)))
        pooled = [difference for _, difference, _ in results if difference is not None]
        hidden = largest([difference for difference, *_ in results])
        print(f"| {family} | {len(results)} | {', '.join(map(str, lengths))} | {hidden} | {largest(pooled)} |")


def largest(values: Sequence[float]) -> str:
    return f"{max(values):.1e}" if values else "none"


def differences(arrays: Mapping[str, np.ndarray], where: str) -> tuple[float, float | None, set[int]]:
    """Computes ``(hidden, pooled, lengths)``: two maximum absolute differences, and the row lengths."""
    config = trunk_config(json.loads(str(arrays["config"])), where=where)
    state = {name.removeprefix("state/"): array for name, array in arrays.items() if name.startswith("state/")}
    params = from_hugging_face(state, config, where=where)
    batch = {"tokens": arrays["tokens"], "types": arrays["types"], "mask": arrays["mask"].astype(bool)}
    hidden, _ = encode(params, config, batch)
    # DeBERTa's padding is not compared: in torch its queries attend to all tokens, in afjax only to real tokens.
    compared = batch["mask"] if config.relative_buckets else np.ones_like(batch["mask"])
    pooled = None
    if "pooled" in arrays:
        pooled = float(np.abs(apply_pooler(params["pooler"], hidden[:, 0]) - arrays["pooled"]).max())
    return (
        float(np.abs(hidden - arrays["last_hidden_state"])[compared].max()),
        pooled,
        set(arrays["mask"].sum(-1).tolist()),
    )


if __name__ == "__main__":
    main()
