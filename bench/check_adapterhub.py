"""Exchanges adapters with the library `adapters` 1.3.0, and compares the outputs.

    python bench/check_adapterhub.py                     about ten minutes on two cores
    python bench/check_adapterhub.py --trunks=electra    only this trunk

First, `adapters` trains for a few steps with PyTorch on the CPU, and afjax imports the result. Then afjax trains for a
few steps and exports the result, and `adapters` loads it. The script compares the logits, and for fusions also the
attention weights. It covers single adapters of several architectures, a fusion of three adapters, and all kinds of
heads, on `minilm` and on small encoders of other families with random weights. It prints a Markdown table, and exits
with code 1 if a difference exceeds 1e-5. The first run installs PyTorch and `adapters` in a separate virtual
environment (`--venv=DIR`).
"""

import argparse
import dataclasses
import itertools
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from vs_adapterhub import DEFAULT_VENV, ready_environment

import afjax
from afjax.interop.adapterhub import export_adapterhub, import_adapterhub

WORKER = Path(__file__).with_name("check_worker.py")
LIMIT = 1e-5
LENGTH, ROWS = 32, 32
TRUNKS = ("minilm", "roberta", "xlm-roberta", "distilbert", "electra", "deberta-v2")

# Adapters to train with `adapters`, by name: preset, settings that differ from it, and kind of task.
FROM_ADAPTERHUB = {
    "pfeiffer": ("seq_bn", {"reduction_factor": 16}, "classification"),
    "houlsby": ("double_seq_bn", {"reduction_factor": 8}, "classification"),
    "norms": (
        "seq_bn",
        {"ln_after": True, "residual_before_ln": "post_add", "non_linearity": "gelu"},
        "classification",
    ),
    "mam": ("seq_bn", {"scaling": 4.0, "leave_out": [0], "non_linearity": "gelu_new"}, "classification"),
    "regression": ("seq_bn", {}, "regression"),
    "choices": ("seq_bn", {}, "multiple_choice"),
    "span": ("seq_bn", {}, "span"),
}
# Adapters to train with afjax, by name: architecture, head and kind of task.
TO_ADAPTERHUB = {
    "pfeiffer": (afjax.AdapterConfig(reduction_factor=8.0), afjax.HeadConfig(pooling="first"), "classification"),
    "houlsby": (
        dataclasses.replace(afjax.ADAPTER_PRESETS["houlsby"], layer_norms=False),
        afjax.HeadConfig(pooling="first", pooler="none", hidden_layers=1, activation="relu"),
        "classification",
    ),
    "norms": (
        afjax.AdapterConfig(new_layer_norm="both", residual_from="sum", size=50, activation="tanh", scaling=0.5),
        afjax.HeadConfig(pooling="first", hidden_layers=1),
        "classification",
    ),
    "top": (afjax.AdapterConfig(layers=(1, 2)), afjax.HeadConfig(pooling="first", pooler="none"), "classification"),
    "regression": (afjax.AdapterConfig(), afjax.HeadConfig(pooling="first"), "regression"),
    "choices": (afjax.AdapterConfig(), afjax.HeadConfig(pooling="first"), "multiple_choice"),
    "span": (afjax.AdapterConfig(), afjax.HeadConfig(pooling="first"), "span"),
}
# Adapters to fuse with `adapters` (and their reduction factors), and with afjax.
FUSED_FROM_ADAPTERHUB = {"a": 4, "b": 16, "c": 64}
FUSED_TO_ADAPTERHUB = ("pfeiffer", "regression", "span")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--venv", type=Path, default=DEFAULT_VENV, help="virtual environment (created if missing)")
    parser.add_argument("--trunks", default=",".join(TRUNKS), help=f"comma-separated, by default {','.join(TRUNKS)}")
    flags = parser.parse_args()
    python = ready_environment(flags.venv)
    compare(flags.trunks.split(","), python, (from_adapterhub, to_adapterhub))


def compare(trunks: Sequence[str], python: Path, directions: Sequence[Callable[..., Any]]) -> NoReturn:
    """Prints the largest difference in each case, and exits.

    The exit code is 1 if a difference exceeds the limit or is NaN, otherwise 0.

    Args:
      trunks: Trunk names: ``minilm`` or encoder families.
      python: The Python interpreter in the other library's environment.
      directions: One function per direction. It takes python, trunk, batch and folder, and yields the direction, the
        case and the difference.
    """
    rows = []
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        minilm = afjax.load_trunk("minilm").folder
        for family in trunks:
            folder, work = minilm, root / family
            if family != "minilm":
                folder = root / f"random-{family}"
                ask(python, "random", family=family, trunk=str(minilm), output=str(folder))
            trunk = afjax.load_trunk(str(folder))
            title = f"{trunk.config.family} ({'minilm' if family == 'minilm' else 'random'})"
            work.mkdir()
            batch = write_batch(trunk, work / "batch.npz")
            for direction, case, difference in itertools.chain(
                *(run(python, trunk, batch, work) for run in directions)
            ):
                rows.append((title, direction, case, difference))
                print(f"{title}, {direction}, {case}: {difference:.1e}", file=sys.stderr, flush=True)
    print("| trunk | direction | case | largest difference |\n|---|---|---|---|")
    for row in rows:
        print(f"| {row[0]} | {row[1]} | {row[2]} | {row[3]:.1e} |")
    # max() would ignore NaNs.
    worst = float(np.max([row[3] for row in rows]))
    print(f"\nlargest difference over all cases: {worst:.1e}, limit {LIMIT:.0e}")
    sys.exit(not worst <= LIMIT)


def ask(python: Path, command: str, *, worker: Path = WORKER, **arguments: Any) -> None:
    """Runs a command of a worker in the other library's environment."""
    subprocess.run([python, worker, command, json.dumps(arguments)], check=True, stdout=sys.stderr)


def write_batch(trunk: afjax.Trunk, path: Path) -> dict[str, np.ndarray]:
    """Tokenizes and pads rows of a built-in task.

    Writes the arrays to a file for `adapters`, and returns them.
    """
    rows = builtin_pairs()[:ROWS]
    encoded = trunk.tokenizer()(
        [pair[0] for pair, _ in rows],
        [pair[1] for pair, _ in rows],
        max_length=LENGTH,
        truncation=True,
        padding="max_length",
    )
    mask = np.array(encoded["attention_mask"], bool)
    tokens = np.where(mask, encoded["input_ids"], trunk.config.pad_id).astype(np.int32)
    # Some trunks have no token types.
    types = np.array(encoded["token_type_ids"]) if trunk.config.type_vocab_size > 1 else np.zeros_like(tokens)
    batch = {"tokens": tokens, "types": types.astype(np.int32), "mask": mask}
    np.savez(path, labels=np.array([label for _, label in rows]), **batch)
    return batch


def builtin_pairs() -> list[tuple[tuple[str, str], int]]:
    """Loads sentence pairs, each with a label from 0 to 2."""
    rows = afjax.load_task(afjax.TaskConfig(name="entail", source="builtin:entail"))["dev"]
    pairs = zip(rows.text_a, rows.text_b, strict=True)
    return [(pair, int(label)) for pair, label in zip(pairs, rows.labels, strict=True)]


def from_adapterhub(python: Path, trunk: afjax.Trunk, batch: dict[str, np.ndarray], work: Path) -> Any:
    """Trains with `adapters` and imports the results into afjax.

    Yields the direction, the case and the difference.
    """
    ask(
        python,
        "train",
        trunk=str(trunk.folder),
        batch=str(work / "batch.npz"),
        output=str(work / "trained"),
        adapters=FROM_ADAPTERHUB,
        fused=FUSED_FROM_ADAPTERHUB,
    )
    for name in [*FROM_ADAPTERHUB, "fusion"]:
        source, store = work / "trained" / name, work / f"store-{name}"
        import_adapterhub(source, store, trunk=trunk, name="fused" if name == "fusion" else "")
        chosen = {"fusion": "fused", "head": "fusion"} if name == "fusion" else {"adapter": name, "head": name}
        yield "adapters to afjax", name, largest_difference(trunk, store, batch, source / "expected.npz", chosen)


def to_adapterhub(python: Path, trunk: afjax.Trunk, batch: dict[str, np.ndarray], work: Path) -> Any:
    """Trains with afjax, exports the results, and loads them with `adapters`.

    Yields the direction, the case and the difference.
    """
    store = work / "store"
    # Use a single padded length, so that only one program is compiled.
    settings = afjax.TrainConfig(
        learning_rate=1e-3, max_steps=10, batch_size=16, max_length=LENGTH, buckets=(LENGTH,), eval_every=10
    )
    for name, (adapter, head, kind) in TO_ADAPTERHUB.items():
        task = afjax.TaskConfig(name=name, kind=kind)
        rows = rows_of(kind)
        trained = afjax.train_single(
            trunk,
            task,
            {"train": rows, "dev": rows},
            workdir=work / "runs" / name,
            config=settings,
            method=afjax.Method(adapter=adapter, head=head),
        )
        trained.save(store)
    rows = rows_of("classification")
    fused = afjax.train_fusion(
        trunk,
        afjax.TaskConfig(name="fusion"),
        {"train": rows, "dev": rows},
        afjax.FusionMethod(
            adapters=FUSED_TO_ADAPTERHUB,
            store=store,
            fusion=afjax.FusionConfig(temperature=2.0),
            head=afjax.HeadConfig(pooling="first"),
        ),
        workdir=work / "runs/fusion",
        config=settings,
        options=afjax.RunOptions(name="fusion"),
    )
    fused.save(store)
    names, exported = [*TO_ADAPTERHUB, "fusion"], work / "exported"
    for name in names:
        export_adapterhub(store, name, exported / name, num_choices=2)
    ask(python, "load", trunk=str(trunk.folder), batch=str(work / "batch.npz"), folder=str(exported), names=names)
    for name in names:
        chosen = {"fusion": name, "head": name} if name == "fusion" else {"adapter": name, "head": name}
        yield (
            "afjax to adapters",
            name,
            largest_difference(trunk, store, batch, exported / name / "computed.npz", chosen),
        )


def rows_of(kind: str) -> Any:
    pairs = builtin_pairs()[:64]
    texts = [pair for pair, _ in pairs]
    labels = [label for _, label in pairs]
    if kind == "regression":
        return afjax.rows_from_lists(texts, [float(label) for label in labels], kind=kind)
    if kind == "multiple_choice":
        choices = [(one[0], [one[1], other[1]]) for one, other in itertools.pairwise(texts)]
        return afjax.rows_from_lists(choices, [number % 2 for number in range(len(choices))], kind=kind)
    if kind == "span":
        words = [context.split()[1] for _, context in texts]
        answers = [
            {"text": [word], "answer_start": [context.index(word)]}
            for word, (_, context) in zip(words, texts, strict=True)
        ]
        return afjax.rows_from_lists(texts, answers, kind=kind)
    return afjax.rows_from_lists(texts, labels, label_names=("yes", "maybe", "no"))


def largest_difference(
    trunk: afjax.Trunk, store: Path, batch: dict[str, np.ndarray], theirs: Path, chosen: dict[str, str]
) -> float:
    """Computes the largest difference between the outputs of the two libraries.

    The outputs are logits, and for a fusion also attention weights. DeBERTa's hidden states for padding differ
    (docs/how_to/encoders.md), so outputs at padding positions are ignored for DeBERTa.
    """
    task_model = afjax.load_task_model(store, trunk, **chosen)
    if task_model.task.kind == "multiple_choice":
        batch = {name: array.reshape(-1, 2, LENGTH) for name, array in batch.items()}
    params = {"trunk": trunk.params, **task_model.params}
    outputs = task_model.model(params, batch, fusion_attention="fusion" in chosen)
    ours = {"logits": outputs.logits} | {
        f"attention/{layer}/{slot}": of_layer
        for slot, of_slot in outputs.fusion_attention.items()
        for layer, of_layer in enumerate(of_slot)
    }
    with np.load(theirs) as file:
        assert ours.keys() == set(file), (sorted(ours), sorted(file))
        differences = [np.abs(np.asarray(ours[name]) - file[name]) for name in ours]
    if trunk.config.relative_buckets:
        differences = [array[batch["mask"]] if array.ndim == 3 else array for array in differences]
    return float(np.max([array.max() for array in differences]))


if __name__ == "__main__":
    main()
