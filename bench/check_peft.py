"""Exchanges LoRA adapters with PEFT 0.21.2, and compares the outputs.

    python bench/check_peft.py                     about fifteen minutes on one core
    python bench/check_peft.py --trunks=roberta    only this trunk

First, PEFT trains for a few steps with PyTorch on the CPU, and afjax imports the result. Then afjax trains for a few
steps and exports the result, and PEFT loads it. The script compares the logits. It covers LoRA on several sets of dense
layers and all kinds of heads, on `minilm` and on small encoders of other families with random weights. It prints a
Markdown table, and exits with code 1 if a difference exceeds 1e-5. The first run installs PyTorch and PEFT in a
separate virtual environment (`--venv=DIR`).
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from check_adapterhub import LENGTH, builtin_pairs, compare, rows_of
from routed_vs_torch import PEFT
from vs_adapterhub import DEFAULT_VENV, ready_environment

import afjax
from afjax.config.adapters import DENSE_LAYERS
from afjax.interop.peft import export_peft, import_peft
from afjax.interop.peft.families import CLASS_OF_KIND, PEFT_FAMILIES

WORKER = Path(__file__).with_name("check_peft_worker.py")
TRUNKS = ("minilm", "roberta", "xlm-roberta", "distilbert", "electra")

# Adapters to train with PEFT, by name: base model class, number of labels, and adapter settings. "dense" stands for all
# dense layers of the model's family.
FROM_PEFT: dict[str, tuple[str, int, dict[str, Any]]] = {
    "query_value": ("ForSequenceClassification", 3, {"task_type": "SEQ_CLS", "lora_dropout": 0.1}),
    "dense": ("ForSequenceClassification", 3, {"task_type": "SEQ_CLS", "target_modules": "dense", "r": 4}),
    "rank_stabilized": (
        "ForSequenceClassification",
        3,
        {"task_type": "SEQ_CLS", "use_rslora": True, "r": 3, "lora_alpha": 16, "layers_to_transform": [1, 2]},
    ),
    "regression": ("ForSequenceClassification", 1, {"task_type": "SEQ_CLS"}),
    "choices": ("ForMultipleChoice", 2, {"modules_to_save": ["pre_classifier", "classifier", "sequence_summary"]}),
    "span": ("ForQuestionAnswering", 2, {"task_type": "QUESTION_ANS"}),
    "tagging": ("ForTokenClassification", 3, {"task_type": "TOKEN_CLS"}),
}
# Adapters to train with afjax, by name: architecture and kind of task.
TO_PEFT = {
    "query_value": (afjax.LoraConfig(), "classification"),
    "dense": (afjax.LoraConfig(target_modules=tuple(DENSE_LAYERS), rank=4, alpha=16), "classification"),
    "output": (afjax.LoraConfig(target_modules=("key", "output"), rank=3, layers=(1, 2)), "classification"),
    "regression": (afjax.LoraConfig(), "regression"),
    "choices": (afjax.LoraConfig(), "multiple_choice"),
    "span": (afjax.LoraConfig(), "span"),
    "tagging": (afjax.LoraConfig(), "tagging"),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--venv", type=Path, default=DEFAULT_VENV, help="virtual environment (created if missing)")
    parser.add_argument("--trunks", default=",".join(TRUNKS), help=f"comma-separated, by default {','.join(TRUNKS)}")
    flags = parser.parse_args()
    python = ready_environment(flags.venv, PEFT)
    compare(flags.trunks.split(","), python, (from_peft, to_peft))


def ask(python: Path, command: str, **arguments: Any) -> None:
    subprocess.run([python, WORKER, command, json.dumps(arguments)], check=True, stdout=sys.stderr)


def from_peft(
    python: Path, trunk: afjax.Trunk, batch: dict[str, np.ndarray], work: Path
) -> Iterator[tuple[str, str, float]]:
    """Trains with PEFT and imports the results into afjax.

    Yields the direction, the case and the difference.
    """
    ask(
        python,
        "train",
        trunk=str(trunk.folder),
        batch=str(work / "batch.npz"),
        output=str(work / "trained"),
        adapters=FROM_PEFT,
    )
    for name in FROM_PEFT:
        source, store = work / "trained" / name, work / f"store-{name}"
        import_peft(source, store, trunk=trunk)
        yield "PEFT to afjax", name, largest_difference(trunk, store, batch, source / "expected.npz", name)


def to_peft(
    python: Path, trunk: afjax.Trunk, batch: dict[str, np.ndarray], work: Path
) -> Iterator[tuple[str, str, float]]:
    """Trains with afjax, exports the results, and loads them with PEFT.

    Yields the direction, the case and the difference.
    """
    store, exported = work / "store", work / "exported"
    # Use a single padded length, so that only one program is compiled.
    settings = afjax.TrainConfig(
        learning_rate=1e-3, max_steps=10, batch_size=16, max_length=LENGTH, buckets=(LENGTH,), eval_every=10
    )
    for name, (adapter, kind) in TO_PEFT.items():
        rows = tagged_rows() if kind == "tagging" else rows_of(kind)
        # Match the head architecture of the Hugging Face class.
        head = PEFT_FAMILIES[trunk.config.family].heads[CLASS_OF_KIND[kind]].config
        trained = afjax.train_single(
            trunk,
            afjax.TaskConfig(name=name, kind=kind),
            {"train": rows, "dev": rows},
            workdir=work / "runs" / name,
            config=settings,
            method=afjax.Method(adapter=adapter, head=head),
        )
        trained.save(store)
        export_peft(store, name, exported / name)
    ask(python, "load", trunk=str(trunk.folder), batch=str(work / "batch.npz"), folder=str(exported))
    for name in TO_PEFT:
        yield (
            "afjax to PEFT",
            name,
            largest_difference(trunk, store, batch, exported / name / "computed.npz", name),
        )


def tagged_rows() -> Any:
    """Builds sentences with one tag per word."""
    sentences = [pair[0].split() for pair, _ in builtin_pairs()[:64]]
    tags = [["B-long" if len(word) > 4 else "O" for word in words] for words in sentences]
    return afjax.rows_from_lists(sentences, tags, kind="tagging")


def largest_difference(trunk: afjax.Trunk, store: Path, batch: dict[str, np.ndarray], theirs: Path, name: str) -> float:
    """Computes the largest difference between the logits of the two libraries."""
    task_model = afjax.load_task_model(store, trunk, adapter=name)
    if task_model.task.kind == "multiple_choice":
        batch = {field: array.reshape(-1, 2, LENGTH) for field, array in batch.items()}
    logits = task_model.model({"trunk": trunk.params, **task_model.params}, batch).logits
    with np.load(theirs) as file:
        assert logits.shape == file["logits"].shape, (name, logits.shape, file["logits"].shape)
        return float(np.abs(np.asarray(logits) - file["logits"]).max())


if __name__ == "__main__":
    main()
