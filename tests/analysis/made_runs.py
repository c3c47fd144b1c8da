"""Writes workdirs of synthetic runs with afjax's own functions, without training."""

import dataclasses
import itertools
from pathlib import Path
from typing import Any

import numpy as np
from etils import epath

from afjax import store
from afjax.config.adapters import ADAPTER_PRESETS, Adapter
from afjax.config.experiment import ExperimentConfig, SourceConfig
from afjax.config.from_dict import to_dict
from afjax.config.tasks import TaskConfig
from afjax.storage.writing import write_json
from afjax.train.workdir import RESULT, TARGET, claim_workdir, source_folder

# A fake digest for the pretrained trunk.
PRETRAINED = "a" * 64


def experiment(task: str, method: str, *, seed: int = 0, **settings: Any) -> ExperimentConfig:
    """Builds a run's config.

    Args:
      task: The task's name.
      method: A partition, an adapter preset, or ``top-K`` for the top K layers.
      seed: The run's seed.
      **settings: Other config fields. ``of`` replaces the default ``TaskConfig``.
    """
    own: dict[str, Any] = {"partition": method}
    if method.startswith("top-"):
        own = {"partition": "top_k", "top_k": int(method[4:])}
    elif method in ADAPTER_PRESETS:
        own = {"partition": "adapter", "adapter": ADAPTER_PRESETS[method]}
    config = {"task": TaskConfig(name=task, source=f"data/{task}"), "seed": seed, "name": f"{task}-{method}"}
    if "of" in settings:
        config["task"] = settings.pop("of")
    return ExperimentConfig(**{**config, **own, **settings})


def adapter(preset: str, **settings: Any) -> Adapter:
    return dataclasses.replace(ADAPTER_PRESETS[preset], **settings)


def fusion(task: str, sources: tuple[str, ...], *, seed: int = 0, **settings: Any) -> ExperimentConfig:
    configs = tuple(SourceConfig(task=TaskConfig(name=name, source=f"data/{name}")) for name in sources)
    own = TaskConfig(name=task, source=f"data/{task}")
    return ExperimentConfig(recipe="fusion", task=own, sources=configs, seed=seed, **settings)


def finish(
    workdir: Path,
    config: ExperimentConfig,
    scores: dict[str, float] | float,
    *,
    trunk: str = PRETRAINED,
    saved: int = 0,
    trained_trunk: str = "",
    metric: str = "",
    store_folder: Path | None = None,
    rows: dict[str, str] | None = None,
) -> Path:
    """Writes a finished run's workdir, and returns its path.

    Args:
      workdir: The run's folder.
      config: The run's config.
      scores: The task's main metric on dev, or ``{task: score}`` for several tasks.
      trunk: The digest of the initial trunk.
      saved: Parameter count of each artifact in the run's store, or 0 to store none.
      store_folder: The run's store. Defaults to the store in the workdir.
      rows: Additional entries for ``inputs.json``.
      trained_trunk: The trunk digest recorded in manifests. Defaults to ``trunk``.
      metric: The metric of the scores. Defaults to the main metric.
    """
    begin(workdir, config, trunk=trunk, store_folder=store_folder, rows=rows)
    results = []
    for task in config.tasks or (config.target,):
        score = scores[task.name] if isinstance(scores, dict) else scores
        metrics = {metric or task.main_metric: score, "step": 7}
        kind = config.partition if config.recipe == "single" else config.recipe
        name = config.artifact_name(task)
        results.append(
            {"name": name, "kind": kind, "task": task.name, "metrics": metrics, "main_metric": task.main_metric}
        )
        if saved:
            identity = {"name": config.trunk, "sha256": trained_trunk or trunk}
            kinds = ("fusion",) if config.recipe == "fusion" else ("adapters",) if config.has_adapter else ()
            for each in (*kinds, "heads"):
                own = config.fusion if each == "fusion" else config.adapter if each == "adapters" else config.head
                draft = store.Draft(each, name, {"leaf": np.zeros(saved)}, config=to_dict(own), trunk=identity)
                draft = dataclasses.replace(draft, task=to_dict(task), metrics=metrics, seed=config.seed)
                store.save(store_folder or workdir / "store", draft)
    write_json(epath.Path(workdir / TARGET / RESULT), results)
    return workdir


def begin(
    workdir: Path,
    config: ExperimentConfig,
    *,
    trunk: str = PRETRAINED,
    store_folder: Path | None = None,
    rows: dict[str, str] | None = None,
) -> Path:
    """Writes an unfinished run's workdir, and returns its path. Takes the same arguments as ``finish``."""
    folder = epath.Path(workdir)
    claim_workdir(folder, config, {"the trunk": trunk, **(rows or {})}, epath.Path(store_folder or folder / "store"))
    (workdir / TARGET).mkdir(exist_ok=True)
    return workdir


def finish_source(workdir: Path, name: str, score: float) -> None:
    """Adds a finished run of the source adapter ``name`` to a fusion's workdir."""
    folder = source_folder(epath.Path(workdir), name)
    folder.mkdir(parents=True)
    metrics = {"accuracy": score}
    write_json(
        folder / RESULT,
        [{"name": name, "kind": "adapter", "task": name, "metrics": metrics, "main_metric": "accuracy"}],
    )


def finish_all(folder: Path, scores: dict[tuple[str, str], tuple[float, ...]], **options: Any) -> Path:
    """Writes finished runs to subfolders of ``folder``. ``scores`` has a score per seed for each task and method."""
    numbers = itertools.count()
    for (task, method), values in scores.items():
        for seed, score in enumerate(values):
            finish(folder / f"run{next(numbers):02}", experiment(task, method, seed=seed), score, **options)
    return folder
