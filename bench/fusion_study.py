"""Repeats AdapterFusion's main experiment (table 1) on gte-small, and part of it on mpnet-base.

    python bench/fusion_study.py --data=DATA --trunk=GTE_SMALL --folder=FOLDER
    python bench/fusion_study.py --data=DATA --trunk=MPNET_BASE --folder=FOLDER --encoder=mpnet-base
    python bench/fusion_study.py --table

DATA contains one folder per task, each with train and dev files. GTE_SMALL is a local copy of gte-small (BERT with 12
layers and hidden size 384, MIT license; thenlper/gte-small on the Hugging Face hub). MPNET_BASE is a local copy of
all-mpnet-base-v2 (12 layers and hidden size 768, Apache 2.0 license). Each run appends one line to the encoder's
results file (``bench/results/fusion_study.jsonl`` or ``fusion_study_mpnet.jsonl``). To resume, repeat the command:
finished runs are skipped, and the interrupted run continues from its last checkpoint. If a line in the file records a
different trunk, different rows or different settings, the script stops with an error. FOLDER stores the adapters for
the fusions; missing adapters are retrained. ``--processes=N`` trains N runs at a time, on a machine with many cores or
on a GPU. ``--slots=N`` trains up to N runs at a time in one program (:func:`afjax.train_many`): the seeds of a
method and task or, for ``fusion_mt``, the tasks of a seed. Joint training and averages are computed one at a time.
``--methods``, ``--tasks`` and ``--seeds`` select runs; the adapters that these runs fuse are trained too:

    python bench/fusion_study.py ... --methods=fusion_nli --tasks=rte,cb --seeds=1,2

The study covers twelve of the paper's sixteen tasks, with at most 1,000 train rows each and three seeds. On mpnet-base,
a step takes four times as long, so the study has eleven tasks, fewer methods, steps and dev rows, and smaller batches
(``MPNET_BASE``). The methods are:

- ``head``: trains only the head, on the frozen trunk.
- ``full``: trains the entire trunk and the head.
- ``pfeiffer``, ``houlsby``: train adapters on the frozen trunk.
- ``nli``: trains a Pfeiffer adapter for natural language inference, for one epoch on LingNLI's 29,986 rows.
- ``fusion``: fuses the Pfeiffer adapters of all tasks, including the target (the paper's "F. w/ ST-A").
- ``fusion_nli``: fuses the same adapters and ``nli``. This method uses more training data than all others, so the score
  of ``fusion`` shows the effect of fusion, and the difference between the two scores shows the effect of the
  additional data.
- ``fusion_without_own``: fuses the adapters of ``fusion_nli``, except the target's adapter.
- ``average_nli``, ``add_half_nli``: combine the target's adapter and ``nli`` into one adapter, without training. The
  outputs are averaged (weights 0.5 and 0.5) or added (weights 1 and 0.5). They use the
  head that was trained with the target's adapter.
- ``average_seeds``: averages the outputs of the target's adapters over all seeds, and uses each seed's head.
- ``mt``: trains Pfeiffer adapters for all tasks jointly with the trunk, in one run (MT-A).
- ``fusion_mt``: fuses the adapters from ``mt``, on the trunk trained jointly with them ("F. w/ MT-A").

``fusion_nli``, ``fusion_without_own`` and the averages are only run on the four small tasks. Scores are the best of
three dev evaluations (two on mpnet-base), so they are optimistic. ``mt`` selects one checkpoint for all tasks; the
other methods select one per task. Both encoders were tuned on NLI pairs and duplicate questions. The three
``average_seeds`` runs share the same adapter and differ only in the head.
"""

import argparse
import dataclasses
import functools
import hashlib
import itertools
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
from results_file import (
    INPUTS,
    add_missing_in_groups,
    add_missing_in_processes,
    add_selection,
    parse_study,
    read_results,
    selected_runs,
    sources_to_repeat,
    spread,
    study_parser,
)

import afjax
from afjax.analysis.activations import ALL as ALL_ROWS
from afjax.analysis.activations import mean_activations
from afjax.config.defaults import LEARNING_RATES
from afjax.config.tasks import TaskKind
from afjax.config.values import Partition
from afjax.data.splits import AnyRows

TRAIN_ROWS, DEV_ROWS = 1000, 500
STEPS, EVALUATIONS = 150, 3
NLI_STEPS = 937
# Joint training gets slightly fewer steps per task than STEPS, because training the trunk makes steps slower.
MT_STEPS = 1500
SEEDS = (0, 1, 2)


@dataclasses.dataclass(frozen=True)
class Task:
    """A task of the study. Its rows are truncated to ``max_length`` tokens."""

    folder: str
    max_length: int
    kind: TaskKind = "classification"


TASKS: Mapping[str, Task] = {
    "mnli": Task("mnli_official", 64),
    "qqp": Task("qqp", 48),
    "sst2": Task("sst2", 48),
    "winogrande": Task("winogrande", 40, "multiple_choice"),
    "socialiqa": Task("socialiqa", 48, "multiple_choice"),
    "scitail": Task("scitail_official", 64),
    "csqa": Task("csqa", 32, "multiple_choice"),
    "boolq": Task("boolq", 128),
    "mrpc": Task("mrpc", 80),
    "sick": Task("sick", 48),
    "rte": Task("rte", 96),
    "cb": Task("cb", 96),
}
NLI = Task("lingnli", 64)
# The small tasks, on which fusion helps most in the paper.
SMALL = ("mrpc", "sick", "rte", "cb")
PARTITIONS: Mapping[str, Partition] = {
    "head": "head",
    "full": "full",
    "pfeiffer": "adapter",
    "houlsby": "adapter",
    "nli": "adapter",
    "fusion": "fusion",
    "fusion_nli": "fusion",
    "fusion_without_own": "fusion",
    "mt": "adapter+trunk",
    "fusion_mt": "fusion",
}
# Untrained averages of stored adapters, with the weights of the target's adapter and of nli.
WEIGHTS = {"average_nli": (0.5, 0.5), "add_half_nli": (1.0, 0.5)}
AVERAGES = (*WEIGHTS, "average_seeds")
# Methods that keep the pretrained trunk frozen.
FROZEN = ("head", "pfeiffer", "houlsby", "nli", "fusion", "fusion_nli", "fusion_without_own")
ALL = "all"
ACTIVATIONS = "activations"


@dataclasses.dataclass(frozen=True)
class Plan:
    """The extent of the study on an encoder.

    Attributes:
      results: Default results file.
      tasks: The tasks by name.
      methods: The methods, in training order. A method comes after the methods whose adapters it uses.
      num_steps: Steps per run, except for ``nli`` and ``mt``.
      num_evaluations: Evaluations per run, at equal distances.
      batch_size: Rows per step.
      dev_rows: Maximum number of dev rows per task.
    """

    results: Path
    tasks: Mapping[str, Task]
    methods: tuple[str, ...]
    num_steps: int
    num_evaluations: int
    batch_size: int
    dev_rows: int


_RESULTS = Path(__file__).with_name("results")
GTE_SMALL = Plan(
    results=_RESULTS / "fusion_study.jsonl",
    tasks=TASKS,
    methods=(
        "nli",
        "head",
        "pfeiffer",
        "fusion",
        "fusion_nli",
        "fusion_without_own",
        *WEIGHTS,
        "houlsby",
        "full",
        "mt",
        "fusion_mt",
        "average_seeds",
    ),
    num_steps=STEPS,
    num_evaluations=EVALUATIONS,
    batch_size=32,
    dev_rows=DEV_ROWS,
)
MPNET_BASE = Plan(
    results=_RESULTS / "fusion_study_mpnet.jsonl",
    tasks={name: task for name, task in TASKS.items() if name != "sst2"},
    methods=("pfeiffer", "fusion", "head", "full"),
    # About one epoch.
    num_steps=60,
    num_evaluations=2,
    batch_size=16,
    dev_rows=300,
)
PLANS = {"gte-small": GTE_SMALL, "mpnet-base": MPNET_BASE}
# Methods that are only run on the small tasks.
ON_SMALL = ("fusion_nli", "fusion_without_own", *AVERAGES)


@dataclasses.dataclass(frozen=True, order=True)
class Run:
    """One training run. For joint training, the task is ``all``."""

    method: str
    task: str
    seed: int


def all_runs(plan: Plan) -> list[Run]:
    """Lists all runs, seed by seed, with each run after its sources."""
    runs = [
        Run(method, task, seed) for seed in SEEDS for method in plan.methods for task in _tasks_of_method(plan, method)
    ]
    # These use the adapters of all seeds.
    return sorted(runs, key=lambda run: run.method == "average_seeds")


def grouped(plan: Plan, runs: Iterable[Run], slots: int) -> list[list[Run]]:
    """Groups up to ``slots`` runs that can be trained in one program, with each group after its sources.

    The runs of a group differ in their seed. In ``fusion_mt``, each seed has its own trunk, so they differ in their
    task.
    """
    if slots == 1:
        return [[run] for run in runs]

    def key(run: Run) -> tuple[int, str]:
        return plan.methods.index(run.method), str(run.seed) if run.method == "fusion_mt" else run.task

    groups = [list(group) for _, group in itertools.groupby(sorted(runs, key=key), key)]
    return [group[first : first + slots] for group in groups for first in range(0, len(group), slots)]


def _tasks_of_method(plan: Plan, method: str) -> tuple[str, ...]:
    if method in ON_SMALL:
        return SMALL
    return {"nli": ("nli",), "mt": (ALL,)}.get(method, tuple(plan.tasks))


class Study:
    """The trunk, the rows and the folder of a study."""

    def __init__(self, plan: Plan, data: Path, trunk: afjax.Trunk, folder: Path, *, scan_layers: bool = False) -> None:
        self.plan, self.trunk, self.folder, self.scan_layers = plan, trunk, folder, scan_layers
        with_nli = {"nli": NLI} if "nli" in plan.methods else {}
        self.tasks = {
            name: afjax.TaskConfig(
                name=name, source=str(data / task.folder), kind=task.kind, train_rows=0 if name == "nli" else TRAIN_ROWS
            )
            for name, task in {**plan.tasks, **with_nli}.items()
        }
        self.rows = {name: self._rows(task) for name, task in self.tasks.items()}
        self.digests = {name: f"{rows['train'].digest()} {rows['dev'].digest()}" for name, rows in self.rows.items()}

    def _rows(self, task: afjax.TaskConfig) -> dict[str, AnyRows]:
        rows = afjax.load_task(task)
        return {"train": rows["train"], "dev": rows["dev"].every(self.plan.dev_rows)}

    def inputs(self, run: Run) -> dict[str, Any]:
        """Describes a run's inputs: trunk, rows and settings, but not the code."""
        if run.method in AVERAGES:
            own = self.inputs(Run("pfeiffer", run.task, run.seed))
            added = {} if run.method == "average_seeds" else {"sources' rows": self._rows_digest(("nli",))}
            return {**own, **added, "method": f"{run.method} {WEIGHTS.get(run.method, SEEDS)}"}
        config, method = self.config(run), self.method(run)
        inputs = {"trunk": self.trunk.sha256[:12], "rows": self._rows_digest(self._targets(run))}
        if sources := self._source_adapters(run):
            inputs["sources' rows"] = self._rows_digest(sources)
        return {
            **inputs,
            "method": repr(method),
            "learning_rate": config.learning_rate,
            "steps": config.max_steps,
            "batch_size": config.batch_size,
            "lengths": config.buckets,
        }

    def _targets(self, run: Run) -> tuple[str, ...]:
        return tuple(self.plan.tasks) if run.task == ALL else (run.task,)

    def _source_adapters(self, run: Run) -> tuple[str, ...]:
        """Lists the adapters of a fusion. Other methods have none."""
        tasks = tuple(self.plan.tasks)
        with_nli = (*tasks, "nli")
        sources = {"fusion": tasks, "fusion_nli": with_nli, "fusion_without_own": with_nli, "fusion_mt": tasks}
        own = run.task if run.method == "fusion_without_own" else ""
        return tuple(name for name in sources.get(run.method, ()) if name != own)

    def _rows_digest(self, names: tuple[str, ...]) -> str:
        return hashlib.sha256("\n".join(self.digests[name] for name in names).encode()).hexdigest()[:12]

    def config(self, run: Run) -> afjax.TrainConfig:
        num_steps = {"nli": NLI_STEPS, "mt": MT_STEPS}.get(run.method, self.plan.num_steps)
        max_length = 128 if run.task == ALL else {**TASKS, "nli": NLI}[run.task].max_length
        return afjax.TrainConfig(
            learning_rate=LEARNING_RATES[PARTITIONS[run.method]],
            batch_size=self.plan.batch_size,
            # Use one padded length per task, so that few programs are compiled.
            buckets=(max_length,),
            max_length=max_length,
            max_steps=num_steps,
            eval_every=-(-num_steps // self.plan.num_evaluations),
        )

    def method(self, run: Run) -> afjax.Method | afjax.FusionMethod:
        partition = PARTITIONS[run.method]
        # Both encoders were pretrained with mean pooling. A trained trunk can learn to represent the row in its first
        # token.
        head = afjax.HeadConfig(pooling="mean" if run.method in FROZEN else "first")
        adapter = afjax.ADAPTER_PRESETS["houlsby" if run.method == "houlsby" else "pfeiffer"]
        if partition == "fusion":
            store = self._joint_store(run.seed) if run.method == "fusion_mt" else self._store(run.seed)
            return afjax.FusionMethod(adapters=self._source_adapters(run), store=store, head=head)
        if run.method == "mt":
            sampling = afjax.SamplingConfig(sampler="square_root", steps_per_epoch=MT_STEPS)
            return afjax.MultitaskMethod(partition=partition, adapter=adapter, head=head, sampling=sampling)
        return afjax.Method(partition=partition, adapter=adapter, head=head)

    # Use relative store paths, so that results do not depend on the folder's location.
    def _store(self, seed: int) -> str:
        return f"{seed}/store"

    def _joint_store(self, seed: int) -> str:
        return f"{seed}/joint/store"

    def measure(self, runs: Sequence[Run]) -> list[dict[str, Any]]:
        """Trains a group of :func:`grouped`, and returns each run's results for the results file."""
        begin = time.monotonic()
        models: list[afjax.TaskModel] = []
        if runs[0].method in AVERAGES:
            values = [self._average_score(run) for run in runs]
        elif runs[0].method == "mt":
            values = [self._joint_scores(run) for run in runs]
        else:
            models = self._train(runs)
            values = [_score_of(model.task, model.metrics) for model in models]
        minutes = round((time.monotonic() - begin) / 60 / len(runs), 2)
        if PARTITIONS.get(runs[0].method) == "fusion":
            values = [
                {**scores, ACTIVATIONS: self._activations(model)} for scores, model in zip(values, models, strict=True)
            ]
        device = jax.devices()[0].device_kind
        return [
            {**scores, "minutes": minutes, "device": device, INPUTS: self.inputs(run)}
            for run, scores in zip(runs, values, strict=True)
        ]

    def _average_score(self, run: Run) -> dict[str, Any]:
        return _score_of(self.tasks[run.task], self._average(run).evaluate(self.rows[run.task]["dev"]))

    def _joint_scores(self, run: Run) -> dict[str, Any]:
        models = self._joint_models(run)
        scores = {name: round(model.metrics[model.task.main_metric], 4) for name, model in models.items()}
        return {"score": round(statistics.mean(scores.values()), 4), "scores": scores}

    def _activations(self, model: afjax.TaskModel) -> dict[str, Any]:
        """Computes a fusion's mean activations over the dev rows: ``{slot: {adapter: [layer 0, layer 1, ...]}}``."""
        rows = self.rows[model.task.name]["dev"]
        found = mean_activations(model, rows)
        means = {
            slot: dict(zip(found.adapters, groups[ALL_ROWS].T.astype(float).round(3).tolist(), strict=True))
            for slot, groups in found.means.items()
        }
        return {"num_rows": len(rows), "means": means}

    def _train(self, runs: Sequence[Run]) -> list[afjax.TaskModel]:
        """Trains runs of one method, each on one task, at the same time.

        Pfeiffer adapters are stored for fusions. All other models are discarded.
        """
        trunk = self._joint_trunk(runs[0].seed) if runs[0].method == "fusion_mt" else self.trunk
        planned, models = [self._planned(run) for run in runs], []
        for outcome in afjax.train_many(trunk, planned, slots=len(runs)):
            if isinstance(outcome, Exception):
                # The other runs' files are kept, so a repeated command does not train these runs again.
                raise outcome
            models.append(outcome)
        for run, plan, model in zip(runs, planned, models, strict=True):
            if run.method in ("pfeiffer", "nli"):
                model.save(self.folder / self._store(run.seed), overwrite=True)
            shutil.rmtree(plan.workdir)
        return models

    def _planned(self, run: Run) -> afjax.PlannedRun:
        method = self.method(run)
        if isinstance(method, afjax.FusionMethod):
            method = dataclasses.replace(method, store=str(self.folder / method.store))
        return afjax.PlannedRun(
            task=self.tasks[run.task],
            data=self.rows[run.task],
            workdir=self.folder / f"{run.seed}/{run.task}-{run.method}",
            method=method,
            config=self.config(run),
            options=afjax.RunOptions(seed=run.seed, scan_layers=self.scan_layers),
        )

    def _average(self, run: Run) -> afjax.TaskModel:
        """Builds the model for an average: the target's model, with its adapter replaced."""
        parts = [(seed, run.task) for seed in SEEDS]
        if run.method != "average_seeds":
            parts = [(run.seed, run.task), (run.seed, "nli")]
        stores = [self.folder / self._store(seed) for seed, _ in parts]
        adapters = [
            afjax.load_adapter(store, name, trunk_sha256=self.trunk.sha256)
            for store, (_, name) in zip(stores, parts, strict=True)
        ]
        own = afjax.load_task_model(self.folder / self._store(run.seed), self.trunk, head=run.task, adapter=run.task)
        return own.with_adapter(afjax.average_adapters(adapters, WEIGHTS.get(run.method)))

    def sources(self, run: Run) -> list[Run]:
        """Lists the runs whose stored adapters this run uses."""
        if run.method == "fusion_mt":
            return [Run("mt", ALL, run.seed)]
        if run.method == "average_seeds":
            return [Run("pfeiffer", run.task, seed) for seed in SEEDS]
        names = (run.task, "nli") if run.method in AVERAGES else self._source_adapters(run)
        return [Run("nli" if name == "nli" else "pfeiffer", name, run.seed) for name in names]

    def with_sources(self, runs: Iterable[Run]) -> list[Run]:
        """Adds the runs whose adapters these runs use, in the order of :func:`all_runs`."""
        needed, in_order = set(runs), all_runs(self.plan)
        for run in reversed(in_order):
            if run in needed:
                needed.update(self.sources(run))
        return [run for run in in_order if run in needed]

    def is_stored(self, run: Run) -> bool:
        """Whether the adapters of this run are stored.

        Heads and trunks are written last, so if they exist, all other files of the run exist too.
        """
        if run.method == "mt":
            return (self.folder / f"{run.seed}/joint/trunk/model.safetensors").exists()
        return (self.folder / self._store(run.seed) / "heads" / run.task).exists()

    def _joint_models(self, run: Run) -> dict[str, afjax.TaskModel]:
        workdir, tasks = self.folder / f"{run.seed}/mt", [self.tasks[name] for name in self.plan.tasks]
        method = self.method(run)
        assert isinstance(method, afjax.MultitaskMethod)
        models = afjax.train_multitask(
            self.trunk,
            tasks,
            {name: self.rows[name] for name in self.plan.tasks},
            workdir=workdir,
            method=method,
            config=self.config(run),
            options=afjax.RunOptions(seed=run.seed, scan_layers=self.scan_layers),
        )
        for model in models.values():
            model.save(self.folder / self._joint_store(run.seed), overwrite=True)
        afjax.save_trunk(self.folder / f"{run.seed}/joint/trunk", next(iter(models.values())).trunk)
        shutil.rmtree(workdir)
        return models

    def _joint_trunk(self, seed: int) -> afjax.Trunk:
        return afjax.load_trunk(str(self.folder / f"{seed}/joint/trunk"))


def _score_of(task: afjax.TaskConfig, scores: Mapping[str, float]) -> dict[str, Any]:
    return {"score": round(scores[task.main_metric], 4), "metric": task.main_metric}


def table(plan: Plan, results: Mapping[Run, Mapping[str, Any]]) -> Iterator[str]:
    """Formats the results as a table with one row per task and one column per method.

    The cells contain the mean and standard deviation over the finished seeds.
    """
    methods = [method for method in (*PARTITIONS, *AVERAGES) if method != "nli" and method in plan.methods]
    yield f"| task | {' | '.join(methods)} | seeds |"
    yield "|" + "---|" * (2 + len(methods))
    for task in plan.tasks:
        cells, counts = [], []
        for method in methods:
            scores = [found for seed in SEEDS if (found := score(results, method, task, seed)) is not None]
            counts.append(len(scores))
            cells.append(spread(scores))
        yield f"| {task} | {' | '.join(cells)} | {'/'.join(map(str, counts))} |"
    missing = [run for run in all_runs(plan) if run not in results]
    minutes = sum(line["minutes"] for line in results.values())
    yield f"\n{len(results)} runs took {minutes / 60:.1f} hours; {len(missing)} runs are missing."


def score(results: Mapping[Run, Mapping[str, Any]], method: str, task: str, seed: int) -> float | None:
    """Returns a run's dev score on a task, or None if the run is not finished."""
    if method == "mt":
        return results.get(Run(method, ALL, seed), {}).get("scores", {}).get(task)
    return results.get(Run(method, task, seed), {}).get("score")


def open_study(arguments: argparse.Namespace) -> Study:
    """Loads the trunk and all rows."""
    jax.config.update("jax_compilation_cache_dir", str(Path(tempfile.gettempdir()) / "afjax-fusion-study-compiled"))
    trunk = afjax.load_trunk(str(arguments.trunk))
    return Study(PLANS[arguments.encoder], arguments.data, trunk, arguments.folder, scan_layers=arguments.scan_layers)


def open_measure(arguments: argparse.Namespace) -> Callable[[Run], dict[str, Any]]:
    """Opens the study in a worker process, and returns a function that measures one run."""
    study = open_study(arguments)
    return lambda run: study.measure([run])[0]


def main() -> None:
    parser = study_parser(__doc__, GTE_SMALL.results)
    parser.add_argument("--encoder", choices=PLANS, default="gte-small", help="the encoder in --trunk (gte-small)")
    # The default depends on the encoder.
    parser.set_defaults(results=None)
    parser.add_argument("--processes", type=int, default=1, help="runs at a time, each in its own process (1)")
    parser.add_argument("--slots", type=int, default=1, help="runs at a time in one process (1)")
    parser.add_argument("--scan_layers", action="store_true", help="compile the layers as one loop, to save time")
    add_selection(parser, method=(*PARTITIONS, *AVERAGES), task=(*TASKS, "nli", ALL), seed=SEEDS)
    arguments = parse_study(parser)
    plan = PLANS[arguments.encoder]
    arguments.results = arguments.results or plan.results
    if arguments.table:
        print("\n".join(table(plan, read_results(arguments.results, Run))))
        return
    for flag in ("processes", "slots"):
        if getattr(arguments, flag) < 1:
            parser.error(f"--{flag}={getattr(arguments, flag)}; it must be at least 1")
    if arguments.processes > 1 and arguments.slots > 1:
        parser.error("--processes and --slots cannot be combined; remove one of them")
    selected = selected_runs(parser, all_runs(plan), arguments)
    study = open_study(arguments)
    runs = study.with_sources(selected)
    results = read_results(arguments.results, Run, study.inputs, all_runs(plan))
    repeated = sources_to_repeat(runs, results, study.sources, study.is_stored)
    if arguments.processes == 1:
        # Train in this process, because only one process can use a TPU's chips.
        groups = grouped(plan, runs, arguments.slots)
        add_missing_in_groups(arguments.results, groups, results, study.measure, repeated=repeated)
        return
    add_missing_in_processes(
        arguments.results,
        runs,
        results,
        functools.partial(open_measure, arguments),
        sources=study.sources,
        num_processes=arguments.processes,
        repeated=repeated,
    )


if __name__ == "__main__":
    main()
