"""Run records for tables and figures."""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from typing import Any

from etils import epath

from afjax.analysis.workdirs import IGNORED_SETTINGS
from afjax.config.adapters import Adapter
from afjax.config.experiment import ExperimentConfig
from afjax.config.from_dict import to_dict
from afjax.config.tasks import TaskConfig
from afjax.display.words import first_of


def adapter_of(config: ExperimentConfig) -> Adapter | None:
    """Returns the architecture of an experiment's adapters, or None without adapters."""
    return config.adapter if config.has_adapter or config.recipe == "fusion" else None


def sampler_of(config: ExperimentConfig) -> str:
    """Returns the sampler of a multi-task experiment, or an empty string for other experiments."""
    return config.sampling.sampler if config.recipe == "multitask" else ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunRecord:
    """The result of a finished run on one task.

    Attributes:
      task_config: The task.
      method: The name of the run's method; see :func:`afjax.analysis.methods.method_of`.
      seed: The run's seed.
      metrics: The finite dev metrics.
      config: The run's experiment. For a fusion's source, the experiment that trains only this source. None if only the
        run's artifacts were found in a store.
      adapter: The adapters' architecture, or None without adapters.
      adapters: The frozen adapters of a fusion, as ``{digest: number of parameters}``.
      own_parameters: The number of parameters trained only for this task, or None if the run's artifacts were not
        found.
      shared_parameters: The number of trained parameters that all tasks of the run share.
      inputs: Digests of the run's inputs, from ``inputs.json``; empty if only its artifacts were found.
      trunk: SHA-256 of the pretrained trunk.
      origin: The settings of the run that trained the trunk on several tasks, with the pretrained trunk's digest; empty
        if there is no such run.
      trunk_name: The pretrained trunk's name.
      trunk_parameters: The pretrained trunk's number of parameters, or None if unknown.
      folder: The workdir, or the store.
      store: The store with the run's artifacts, or an empty string if they were not found.
    """

    task_config: TaskConfig
    method: str
    seed: int
    metrics: Mapping[str, float]
    config: ExperimentConfig | None = None
    adapter: Adapter | None
    adapters: Mapping[str, int] = dataclasses.field(default_factory=dict)
    own_parameters: int | None
    shared_parameters: int = 0
    inputs: Mapping[str, str] = dataclasses.field(default_factory=dict)
    trunk: str
    trunk_name: str
    trunk_parameters: int | None
    folder: epath.Path
    store: str
    origin: str = ""

    @property
    def task(self) -> str:
        return self.task_config.name

    @property
    def main_metric(self) -> str:
        """The metric used for early stopping."""
        return self.task_config.main_metric

    @property
    def trained_parameters(self) -> int | None:
        return None if self.own_parameters is None else self.own_parameters + self.shared_parameters

    @property
    def replaces_trunk(self) -> bool:
        """Whether the task has its own trunk and does not need the pretrained one."""
        method = self.method.removesuffix("-mt")
        return method == "full" or method.endswith("-trunk")

    @property
    def sampler(self) -> str:
        """The sampler of a multi-task run; empty for other runs."""
        return sampler_of(self.config) if self.config else ""

    @property
    def settings(self) -> str:
        """The settings that affect the result, except the seed, as a JSON string.

        Runs with the same string are repetitions of each other. The trunk is identified by its digest, and so are a
        task's rows if their digests are recorded; otherwise the string contains their paths. Without a config, the
        string contains only the method and the adapter's architecture.
        """
        if self.config is None:
            return json.dumps([self.method, to_dict(self.adapter) if self.adapter else None])
        values = {key: value for key, value in to_dict(self.config).items() if key not in IGNORED_SETTINGS}
        values["trunk"] = self.origin or self.trunk
        values["task"] = self._by_rows(values["task"])
        values["tasks"] = [self._by_rows(task) for task in values["tasks"]]
        values["sources"] = [{**source, "task": self._by_rows(source["task"])} for source in values["sources"]]
        return json.dumps(values, sort_keys=True)

    def _by_rows(self, task: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
        """Replaces the paths in a task's settings with its rows' digests, if known."""
        if task is None:
            return None
        rows = [self.rows_digest(task["name"], split) for split in ("train", "dev")]
        paths = dict.fromkeys(("source", "train", "dev", "test"), "")
        return {**task, **paths, "rows": rows} if all(rows) else task

    def rows_digest(self, task: str, split: str) -> str | None:
        """Returns the digest of a task's rows, or None if it is not recorded."""
        digests = (self.inputs.get(f"{role} {task}'s {split} rows") for role in ("task", "source"))
        return next((digest for digest in digests if digest), None)


@dataclasses.dataclass(frozen=True)
class UnfinishedTask:
    """A task of an unfinished run. See :class:`RunRecord` for the attributes."""

    task: str
    method: str
    seed: int
    adapter: Adapter | None
    sampler: str
    folder: epath.Path
    trunk: str


@dataclasses.dataclass(frozen=True)
class Collection:
    """The runs in some folders.

    Attributes:
      records: Finished runs with a dev score, at least one.
      unfinished: Unfinished runs.
      scoreless: Finished runs without a dev score.
      from_python: Folders of runs that were trained from Python. They record no config, so they are left out.
      failed: Folders of a sweep's runs that failed before their config was written.
    """

    records: tuple[RunRecord, ...]
    unfinished: tuple[UnfinishedTask, ...] = ()
    scoreless: tuple[RunRecord, ...] = ()
    from_python: tuple[epath.Path, ...] = ()
    failed: tuple[epath.Path, ...] = ()

    def left_out(self, tasks: Sequence[str]) -> list[str]:
        """Returns one sentence for each left-out run on these tasks, with the reason.

        Runs without a config, whose tasks are unknown, share one sentence per reason.
        """
        sentences = [
            f"{run.folder} ({run.method} on {run.task}, seed {run.seed}) is not finished"
            for run in self.unfinished
            if run.task in tasks
        ]
        sentences += [f"{run.folder} has no dev score on {run.task}" for run in self.scoreless if run.task in tasks]
        reasons = {"trained from Python, without a config": self.from_python, "failed before training": self.failed}
        sentences += [f"{first_of(list(map(str, runs)))}: {reason}" for reason, runs in reasons.items() if runs]
        return sentences
