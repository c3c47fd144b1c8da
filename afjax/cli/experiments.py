"""Parses ``--config=NAME:key=value --config.a.b=value`` into an ExperimentConfig."""

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from afjax.cli.config_files import parse_arguments, run_config, split_arguments
from afjax.cli.config_overrides import apply_override
from afjax.cli.config_shorthands import (
    SHORTHANDS,
    advice_on_preset,
    prepare_shorthands,
    with_known_task,
    with_name,
    with_preset,
    with_source_name,
)
from afjax.config.experiment import ExperimentConfig
from afjax.config.from_dict import UnknownSettingError, from_dict
from afjax.errors import UserError


def load_experiment(
    config: str,
    overrides: Sequence[str] = (),
    *,
    find_store: Callable[[], str | Path] | None = None,
    reads_rows: bool = True,
) -> ExperimentConfig:
    """Runs a config's ``get_config`` and applies overrides.

    Args:
      config: ``NAME`` or ``NAME:key=value,key=value``, where the keys are arguments of ``get_config``. ``FILE.py`` can
        replace ``NAME``. Alternatively, ``WORKDIR/config.json``, local or ``gs://``, which contains a workdir's
        experiment.
      overrides: Overrides such as ``train.learning_rate=1e-3`` or ``sources.rte.train.epochs=5``. A value that is not a
        Python literal is a string, as is a number for a setting of type ``str``.
      find_store: Returns the experiment's store. It is only called if the data of a fusion's source is missing, which
        is allowed if the source's adapter is in the store.
      reads_rows: Whether the experiment's rows will be read. If not, the tasks' data may be missing.

    Raises:
      UserError: The config does not exist or fails, an argument or key is unknown, a value has the wrong type, or a
        task's data is missing.
    """
    given, arguments = split_arguments(config)
    values = run_config(given, parse_arguments(arguments))
    if given.endswith(".json"):
        prepare_shorthands(values, overrides)
    for override in overrides:
        apply_override(values, override)

    # Config files and overrides store sources and tasks in dicts by task name.
    sources, tasks = values.get("sources", ()), values.get("tasks", ())
    if isinstance(sources, Mapping):
        values["sources"] = [with_source_name(*item, find_store, needs_data=reads_rows) for item in sources.items()]
    if isinstance(tasks, Mapping):
        values["tasks"] = [with_name(name, task, needs_data=reads_rows) for name, task in tasks.items()]
    if "task" in values:
        values["task"] = with_known_task(values["task"], needs_data=reads_rows)
    given_adapter = values.get("adapter", {})
    if given_adapter and isinstance(given_adapter, Mapping):
        values["adapter"] = with_preset(given_adapter)
    try:
        return from_dict(ExperimentConfig, values)
    except UnknownSettingError as error:
        # The last part of a path such as config.sources[0].task or config.tasks[1].
        part = re.sub(r"\[\d+\]$", "", error.path.rpartition(".")[2])
        if part == "adapter" and (advice := advice_on_preset(given_adapter)):
            raise UserError(f"{error}{advice}") from None
        raise UnknownSettingError(error.path, error.key, (*error.known, *SHORTHANDS.get(part, ()))) from None


def check_used(experiments: Sequence[ExperimentConfig], overrides: Sequence[str]) -> None:
    """Raises UserError if an override has no effect with any experiment's recipe.

    Overrides of the adapter are not refused, because a sweep over partitions passes them to runs without adapters too;
    see :func:`unused_adapter_lines`.
    """
    unused = set.intersection(*({*experiment.unused_settings} for experiment in experiments)) - {"adapter"}
    for override in overrides:
        setting = override.partition("=")[0]
        if setting.partition(".")[0] in unused:
            recipes = ", ".join(dict.fromkeys(experiment.recipe for experiment in experiments))
            raise UserError(f"--config.{setting} has no effect with recipe={recipes}; leave it out.")


def unused_adapter_lines(experiment: ExperimentConfig, overrides: Sequence[str]) -> list[str]:
    """Returns a line for each override of the adapter that has no effect."""
    lines, size = [], getattr(experiment.adapter, "size", None)
    for override in overrides:
        setting = override.partition("=")[0]
        if setting.partition(".")[0] == "adapter" and "adapter" in experiment.unused_settings:
            lines.append(f"--config.{setting} has no effect with partition={experiment.partition}.")
        elif setting == "adapter.reduction_factor" and setting in experiment.unused_settings:
            lines.append(f"--config.{setting} has no effect, because adapter.size={size} replaces it.")
    return lines
