"""Repeats experiments of Houlsby 2019 and of Stickland & Murray 2019 (*BERT and PALs*) on a small encoder.

    python bench/houlsby_pals_study.py --data=DATA --trunk=GTE_SMALL --folder=FOLDER
    python bench/houlsby_pals_study.py --table

DATA contains one folder per task, each with train and dev files. GTE_SMALL is a local copy of gte-small, as in
``fusion_study.py``. Each run appends one line to the results file (``bench/results/houlsby_pals_study.jsonl``). To
resume, repeat the command: finished runs are skipped, and the interrupted run continues from its last checkpoint in
FOLDER. If a line in the file records a different trunk, different rows or different settings, the script stops with an
error. ``--methods``, ``--tasks`` and ``--seeds`` select runs.

The tasks are seven of GLUE's, with 2,490 (rte) to 67,349 train rows (sst2) and at most 500 dev rows. Houlsby's
experiments train one task at a time, for 150 steps of 32 rows:

- ``houlsby`` and ``full``: adapters of size 64, and full fine-tuning, on all tasks (table 1).
- ``houlsby:2``, ``houlsby:8`` and ``houlsby:256``: other sizes, and ``top_k:1``, ``top_k:3``, ``top_k:6`` and
  ``layernorm``: the top layers, and all LayerNorms, on sst2, mrpc and stsb (figures 3 to 5).
- ``scale:1e-07`` to ``scale:1.0``: standard deviations of the adapters' initial weights, on sst2 (figure 6, right). The
  default is 0.01.
- The adapters of ``houlsby`` on mnli and cola are removed from each span of layers (figure 6, left and center).

Stickland and Murray's experiments train all tasks jointly with the trunk, for 700 steps of 32 rows in total, in seven
epochs of annealed sampling:

- ``shared``, ``pals``, ``low_rank``, ``lhuc``, ``top_attention``, ``pfeiffer``: the task-specific modules (table 1).
  Their sizes are half of the paper's, like gte-small's hidden size.
- ``pals:proportional``, ``pals:square_root``, ``pals:round_robin``: PALs with the other samplers (section 4.1).

Scores are the best of three dev evaluations. Joint training selects one checkpoint for all tasks.
"""

import dataclasses
import hashlib
import shutil
import statistics
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
from fusion_study import ALL, DEV_ROWS, EVALUATIONS, SEEDS, STEPS, Run
from results_file import (
    INPUTS,
    add_missing,
    add_selection,
    parse_study,
    read_results,
    selected_runs,
    spread,
    study_parser,
)

import afjax
from afjax.analysis.parameters import trained_in_trunk
from afjax.analysis.spans import score_spans
from afjax.config.defaults import LEARNING_RATES
from afjax.data.splits import AnyRows

RESULTS = Path(__file__).with_name("results") / "houlsby_pals_study.jsonl"
JOINT_STEPS, JOINT_EPOCHS, JOINT_RATE = 700, 7, 1e-4


@dataclasses.dataclass(frozen=True)
class Task:
    """A task of the study. Its rows are truncated to ``max_length`` tokens."""

    folder: str
    max_length: int
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)


TASKS: Mapping[str, Task] = {
    "cola": Task("cola", 32, {"metric": "matthews"}),
    "sst2": Task("sst2", 48),
    "mrpc": Task("mrpc", 80, {"metric": "f1"}),
    "stsb": Task("stsb", 64, {"kind": "regression", "scale": 5.0}),
    "qqp": Task("qqp", 48, {"metric": "f1"}),
    "mnli": Task("mnli_official", 64),
    "rte": Task("rte", 96),
}
JOINT_LENGTHS = (48, 96)
# Removing adapters from spans of layers is measured on these tasks, as in Houlsby's figure 6.
SPANS = ("mnli", "cola")
SIZE_TASKS, SCALE_TASK = ("sst2", "mrpc", "stsb"), "sst2"
ADAPTERS = afjax.ADAPTER_PRESETS
HOULSBY = ADAPTERS["houlsby"]


def houlsby(**changes: Any) -> afjax.Method:
    return afjax.Method(adapter=dataclasses.replace(HOULSBY, **changes))


TABLE: Mapping[str, afjax.Method] = {"houlsby": houlsby(), "full": afjax.Method(partition="full")}
SIZES: Mapping[str, afjax.Method] = {
    **{f"houlsby:{size}": houlsby(size=size) for size in (2, 8, 256)},
    **{f"top_k:{top_k}": afjax.Method(partition="top_k", top_k=top_k) for top_k in (1, 3, 6)},
    "layernorm": afjax.Method(partition="layernorm"),
}
SCALES: Mapping[str, afjax.Method] = {
    f"scale:{scale}": houlsby(init_scale=scale) for scale in (1e-7, 1e-5, 1e-3, 1e-1, 1.0)
}
SINGLE = {**TABLE, **SIZES, **SCALES}


def jointly(adapter: Any = None, sampler: Any = "annealed") -> afjax.MultitaskMethod:
    """Joint training with an adapter, or of the trunk and the heads if it is None."""
    sampling = afjax.SamplingConfig(sampler=sampler, steps_per_epoch=JOINT_STEPS // JOINT_EPOCHS)
    if adapter is None:
        return afjax.MultitaskMethod(partition="full", sampling=sampling)
    return afjax.MultitaskMethod(adapter=adapter, sampling=sampling)


PALS = dataclasses.replace(ADAPTERS["pals"], size=102, num_heads=6)
JOINT: Mapping[str, afjax.MultitaskMethod] = {
    "shared": jointly(),
    "pals": jointly(PALS),
    "low_rank": jointly(dataclasses.replace(ADAPTERS["low_rank"], size=50)),
    "lhuc": jointly(ADAPTERS["lhuc"]),
    "top_attention": jointly(dataclasses.replace(ADAPTERS["top_attention"], size=102, num_heads=6)),
    "pfeiffer": jointly(ADAPTERS["pfeiffer"]),
    **{f"pals:{name}": jointly(PALS, name) for name in ("proportional", "square_root", "round_robin")},
}


def all_runs() -> list[Run]:
    """Lists all runs, seed by seed."""
    return [
        run
        for seed in SEEDS
        for run in (
            *(Run(method, task, seed) for method in TABLE for task in TASKS),
            *(Run(method, task, seed) for method in SIZES for task in SIZE_TASKS),
            *(Run(method, SCALE_TASK, seed) for method in SCALES),
            *(Run(method, ALL, seed) for method in JOINT),
        )
    ]


class Study:
    """The trunk, the rows and the folder of a study."""

    def __init__(self, data: Path, trunk: afjax.Trunk, folder: Path) -> None:
        self.trunk, self.folder = trunk, folder
        self.tasks = {
            name: afjax.TaskConfig(name=name, source=str(data / task.folder), **task.settings)
            for name, task in TASKS.items()
        }
        self.rows: dict[str, dict[str, AnyRows]] = {}
        for name, task in self.tasks.items():
            rows = afjax.load_task(task)
            self.rows[name] = {"train": rows["train"], "dev": rows["dev"].every(DEV_ROWS)}

    def inputs(self, run: Run) -> dict[str, Any]:
        """Describes a run's inputs: trunk, rows and settings, but not the code."""
        splits = [split for name in self._targets(run) for split in self.rows[name].values()]
        config = self.config(run)
        return {
            "trunk": self.trunk.sha256[:12],
            "rows": hashlib.sha256(" ".join(split.digest() for split in splits).encode()).hexdigest()[:12],
            "method": dataclasses.asdict(self.method(run)),
            "learning_rate": config.learning_rate,
            "steps": config.max_steps,
            "batch_size": config.batch_size,
            "lengths": config.buckets,
        }

    def _targets(self, run: Run) -> tuple[str, ...]:
        return tuple(TASKS) if run.task == ALL else (run.task,)

    def method(self, run: Run) -> afjax.Method:
        """Returns the method with its head.

        gte-small was pretrained with mean pooling. A trained trunk can learn to represent the row in its first token.
        """
        method = JOINT[run.method] if run.task == ALL else SINGLE[run.method]
        frozen = method.partition in ("adapter", "layernorm")
        return dataclasses.replace(method, head=afjax.HeadConfig(pooling="mean" if frozen else "first"))

    def config(self, run: Run) -> afjax.TrainConfig:
        num_steps = JOINT_STEPS if run.task == ALL else STEPS
        lengths = JOINT_LENGTHS if run.task == ALL else (TASKS[run.task].max_length,)
        return afjax.TrainConfig(
            learning_rate=JOINT_RATE if run.task == ALL else LEARNING_RATES[self.method(run).partition],
            # Use few padded lengths, so that few programs are compiled.
            buckets=lengths,
            max_length=lengths[-1],
            max_steps=num_steps,
            eval_every=-(-num_steps // EVALUATIONS),
        )

    def measure(self, run: Run) -> dict[str, Any]:
        """Trains a run and returns its results for the results file."""
        begin = time.monotonic()
        workdir = self.folder / f"{run.seed}-{run.task}-{run.method.replace(':', '-')}"
        values = self._train_jointly(run, workdir) if run.task == ALL else self._train(run, workdir)
        shutil.rmtree(workdir)
        minutes = round((time.monotonic() - begin) / 60, 2)
        return {**values, "minutes": minutes, "device": jax.devices()[0].device_kind, INPUTS: self.inputs(run)}

    def _train(self, run: Run, workdir: Path) -> dict[str, Any]:
        model = afjax.train_single(
            self.trunk,
            self.tasks[run.task],
            self.rows[run.task],
            workdir=workdir,
            method=self.method(run),
            config=self.config(run),
            options=afjax.RunOptions(seed=run.seed),
        )
        metric = model.task.main_metric
        method = self.method(run)
        trained = trained_in_trunk(self.trunk.config, method.partition, method.top_k, method.head)
        # Without the trunk, the model's parameters are the trained adapter and head.
        trained += sum(leaf.size for leaf in jax.tree.leaves(model.params))
        values = {"score": round(model.metrics[metric], 4), "metric": metric, "trained_parameters": trained}
        if run.method != "houlsby" or run.task not in SPANS:
            return values
        spans = score_spans(model, self.rows[run.task]["dev"])
        without = {f"{first}-{last}": round(scores[metric], 4) for (first, last), scores in spans.without.items()}
        return {**values, "without": without}

    def _train_jointly(self, run: Run, workdir: Path) -> dict[str, Any]:
        method = self.method(run)
        assert isinstance(method, afjax.MultitaskMethod)
        models = afjax.train_multitask(
            self.trunk,
            list(self.tasks.values()),
            self.rows,
            workdir=workdir,
            method=method,
            config=self.config(run),
            options=afjax.RunOptions(seed=run.seed),
        )
        scores = {name: round(model.metrics[model.task.main_metric], 4) for name, model in models.items()}
        return {"score": round(statistics.mean(scores.values()), 4), "scores": scores}


def tables(results: Mapping[Run, Mapping[str, Any]]) -> Iterator[str]:
    """Formats the results: one row per method and one column per task, and one line per ablation of layers.

    The cells contain the mean and standard deviation over the finished seeds.
    """
    yield f"| method | {' | '.join(TASKS)} | runs |"
    yield "|---" * (2 + len(TASKS)) + "|"
    for method, joint in [*((name, False) for name in SINGLE), *((name, True) for name in JOINT)]:
        lines = {run: line for run, line in results.items() if run.method == method and (run.task == ALL) == joint}
        if not lines:
            continue
        cells = [
            spread(
                [
                    line["scores"][task] if joint else line["score"]
                    for run, line in lines.items()
                    if run.task in (task, ALL)
                ]
            )
            for task in TASKS
        ]
        yield f"| {method}{', jointly' if joint else ''} | {' | '.join(cells)} | {len(lines)} |"
    for run, line in results.items():
        if "without" in line:
            worst = min(line["without"], key=lambda span: line["without"][span])
            singles = [line["without"][f"{layer}-{layer}"] for layer in range(12)]
            yield (
                f"\n{run.task}, seed {run.seed}: {100 * line['score']:.1f}; without the adapters of one layer "
                f"{100 * min(singles):.1f} to {100 * max(singles):.1f}; without the adapters of layers {worst} "
                f"{100 * line['without'][worst]:.1f}"
            )
    missing = [run for run in all_runs() if run not in results]
    minutes = sum(line["minutes"] for line in results.values())
    yield f"\n{len(results)} runs took {minutes / 60:.1f} hours; {len(missing)} runs are missing."


def main() -> None:
    parser = study_parser(__doc__, RESULTS)
    add_selection(parser, method={**SINGLE, **JOINT}, task=(*TASKS, ALL), seed=SEEDS)
    arguments = parse_study(parser)
    if arguments.table:
        print("\n".join(tables(read_results(arguments.results, Run))))
        return
    runs = selected_runs(parser, all_runs(), arguments)
    jax.config.update("jax_compilation_cache_dir", str(Path(tempfile.gettempdir()) / "afjax-houlsby-pals-compiled"))
    study = Study(arguments.data, afjax.load_trunk(str(arguments.trunk)), arguments.folder)
    results = read_results(arguments.results, Run, study.inputs, all_runs())
    add_missing(arguments.results, runs, results, study.measure)


if __name__ == "__main__":
    main()
