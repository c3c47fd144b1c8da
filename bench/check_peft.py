"""Exchanges LoRA adapters with PEFT 0.21.2, and compares the outputs.

    python bench/check_peft.py                     about fifteen minutes on one core
    python bench/check_peft.py --trunks=roberta    only this trunk

First, PEFT trains for a few steps with PyTorch on the CPU, and afjax imports the result. Then afjax trains for a few
steps and exports the result, and PEFT loads it. The script compares the logits, or the hidden states if there is no
head. It covers LoRA on several sets of dense layers and all kinds of heads, on `minilm` and on small encoders of other
families with random weights. It prints a Markdown table, and exits with code 1 if a difference exceeds 1e-5. The first
run installs PyTorch and PEFT in a separate virtual environment (`--venv=DIR`).
"""

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from check_adapterhub import LENGTH, ask, builtin_pairs, compare, rows_of
from routed_vs_torch import PEFT
from vs_adapterhub import DEFAULT_VENV, ready_environment

import afjax
from afjax.config.adapters import DENSE_LAYERS
from afjax.interop.model_heads import CLASS_OF_KIND, MODEL_CLASSES
from afjax.interop.peft import export_peft, import_peft
from afjax.model.model import Model
from afjax.model.stored import load_adapter

WORKER = Path(__file__).with_name("check_peft_worker.py")
TRUNKS = ("minilm", "roberta", "xlm-roberta", "distilbert", "electra", "deberta-v2", "modernbert")
# The names of the heads' modules in all families. PEFT must train and save a model's whole head.
HEAD = ["pre_classifier", "classifier", "sequence_summary", "pooler"]
SEQUENCE = {"task_type": "SEQ_CLS", "modules_to_save": HEAD}

# Adapters to train with PEFT, by name: base model class, number of labels, and adapter settings. "dense" stands for all
# dense layers of the model's family. ModernBERT only has the cases without a head.
FROM_PEFT: dict[str, tuple[str, int, dict[str, Any]]] = {
    "query_value": ("ForSequenceClassification", 3, {**SEQUENCE, "lora_dropout": 0.1}),
    "dense": ("ForSequenceClassification", 3, {**SEQUENCE, "target_modules": "dense", "r": 4}),
    "rank_stabilized": (
        "ForSequenceClassification",
        3,
        {**SEQUENCE, "use_rslora": True, "r": 3, "lora_alpha": 16, "layers_to_transform": [1, 2]},
    ),
    "regression": ("ForSequenceClassification", 1, SEQUENCE),
    "choices": ("ForMultipleChoice", 2, {"modules_to_save": HEAD}),
    "span": ("ForQuestionAnswering", 2, {"task_type": "QUESTION_ANS"}),
    "tagging": ("ForTokenClassification", 3, {"task_type": "TOKEN_CLS"}),
    "no_head": ("", 0, {"task_type": "FEATURE_EXTRACTION", "target_modules": "dense", "r": 4}),
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
    "no_head": (afjax.LoraConfig(target_modules=tuple(DENSE_LAYERS), rank=4, alpha=16), "classification"),
    "no_head_query": (afjax.LoraConfig(target_modules=("query", "output"), rank=4), "classification"),
}
NO_HEAD = ("no_head", "no_head_query")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--venv", type=Path, default=DEFAULT_VENV, help="virtual environment (created if missing)")
    parser.add_argument("--trunks", default=",".join(TRUNKS), help=f"comma-separated, by default {','.join(TRUNKS)}")
    flags = parser.parse_args()
    python = ready_environment(flags.venv, PEFT)
    compare(flags.trunks.split(","), python, (from_peft, to_peft))


def from_peft(
    python: Path, trunk: afjax.Trunk, batch: dict[str, np.ndarray], work: Path
) -> Iterator[tuple[str, str, float]]:
    """Trains with PEFT and imports the results into afjax.

    Yields the direction, the case and the difference.
    """
    ask(
        python,
        "train",
        worker=WORKER,
        trunk=str(trunk.folder),
        batch=str(work / "batch.npz"),
        output=str(work / "trained"),
        adapters=cases(FROM_PEFT, trunk),
    )
    for name in cases(FROM_PEFT, trunk):
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
    for name, (adapter, kind) in cases(TO_PEFT, trunk).items():
        rows = tagged_rows() if kind == "tagging" else rows_of(kind)
        # Match the head architecture of the Hugging Face class.
        layout = MODEL_CLASSES[trunk.config.family].heads.get(CLASS_OF_KIND[kind])
        head = layout.config if layout else afjax.HeadConfig()
        trained = afjax.train_single(
            trunk,
            afjax.TaskConfig(name=name, kind=kind),
            {"train": rows, "dev": rows},
            workdir=work / "runs" / name,
            config=settings,
            method=afjax.Method(adapter=adapter, head=head),
        )
        trained.save(store)
        export_peft(store, name, exported / name, head=None if name in NO_HEAD else "")
    ask(python, "load", worker=WORKER, trunk=str(trunk.folder), batch=str(work / "batch.npz"), folder=str(exported))
    for name in cases(TO_PEFT, trunk):
        yield ("afjax to PEFT", name, largest_difference(trunk, store, batch, exported / name / "computed.npz", name))


def cases(every: dict[str, Any], trunk: afjax.Trunk) -> dict[str, Any]:
    """Returns the cases for a trunk."""
    heads = MODEL_CLASSES[trunk.config.family].heads
    return {name: case for name, case in every.items() if heads or name in NO_HEAD}


def tagged_rows() -> Any:
    """Builds sentences with one tag per word."""
    sentences = [pair[0].split() for pair, _ in builtin_pairs()[:64]]
    tags = [["B-long" if len(word) > 4 else "O" for word in words] for words in sentences]
    return afjax.rows_from_lists(sentences, tags, kind="tagging")


def largest_difference(trunk: afjax.Trunk, store: Path, batch: dict[str, np.ndarray], theirs: Path, name: str) -> float:
    """Computes the largest difference between the logits, or the hidden states, of the two libraries.

    Padding is ignored, because the libraries' outputs for padding may differ.
    """
    kind, expected = "hidden" if name in NO_HEAD else "logits", np.load(theirs)
    if name in NO_HEAD:
        config, tree = load_adapter(store, name)
        model = Model(trunk=trunk.config, head_name="", adapters=((name, config),))
        found = model.hidden_states({"trunk": trunk.params, "adapters": {name: tree}}, batch)
    else:
        task_model = afjax.load_task_model(store, trunk, adapter=name)
        if task_model.task.kind == "multiple_choice":
            batch = {field: array.reshape(-1, 2, LENGTH) for field, array in batch.items()}
        found = task_model.model({"trunk": trunk.params, **task_model.params}, batch).logits
    assert found.shape == expected[kind].shape, (name, found.shape, expected[kind].shape)
    differences = np.abs(np.asarray(found) - expected[kind])
    # Outputs per token are [rows, length, outputs].
    return float((differences[batch["mask"]] if differences.ndim == 3 else differences).max())


if __name__ == "__main__":
    main()
