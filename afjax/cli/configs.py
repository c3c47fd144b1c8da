"""Config files and their overrides: from ``--config=FILE.py:key=value --config.a.b=value`` to an ExperimentConfig."""

import ast
import inspect
import runpy
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from afjax.architecture import ADAPTER_PRESETS
from afjax.config import ExperimentConfig
from afjax.data.tasks import find_task
from afjax.dataclass_dicts import from_dict, to_dict
from afjax.errors import UserError, did_you_mean
from afjax.storage.json_files import read_json


def load_experiment(config: str, overrides: Sequence[str] = ()) -> ExperimentConfig:
    """Runs a config file's ``get_config`` and applies overrides.

    Args:
      config: ``FILE.py`` or ``FILE.py:key=value,key=value``; the keys are arguments of ``get_config``. Or
        ``WORKDIR/config.json``, the experiment of a workdir.
      overrides: Each ``a.b=value``, as in ``train.learning_rate=1e-3`` or ``sources.rte.train.epochs=5``. Values
        are Python literals; what is none is a string.

    Raises:
      UserError: A file that is not there or fails, an unknown argument or key, a value of another type.
    """
    path, _, arguments = config.partition(":")
    values = _run_config(Path(path), _parse_arguments(arguments))
    for override in overrides:
        _override(values, override)
    # In files and overrides sources and tasks go by the task's name.
    sources, tasks = values.get("sources", ()), values.get("tasks", ())
    if isinstance(sources, Mapping):
        values["sources"] = [_named_source(name, source) for name, source in sources.items()]
    if isinstance(tasks, Mapping):
        values["tasks"] = [_named(name, task) for name, task in tasks.items()]
    if "task" in values:
        values["task"] = _found(values["task"])
    if isinstance(values.get("adapter"), Mapping):
        values["adapter"] = _with_preset(values["adapter"])
    return from_dict(ExperimentConfig, values)


def _named(name: str, task: Any) -> Any:
    """A task's settings with its name; what are none is for ``from_dict`` to refuse."""
    return _found({"name": name, **task}) if isinstance(task, Mapping) else task


def _named_source(name: str, source: Any) -> Any:
    return {**source, "task": _named(name, source.get("task", {}))} if isinstance(source, Mapping) else source


def _found(task: Any) -> Any:
    """``{"data_dir": FOLDER, ...}``: the settings of the task of that name, and in front of them those that are given.

    ``preset`` is the name that is looked for, where the task is to have another, or a TOML file.
    """
    if not isinstance(task, Mapping) or not {"data_dir", "preset"} & task.keys():
        return task
    settings = dict(task)
    data_dir, preset = settings.pop("data_dir", ""), settings.pop("preset", settings.get("name"))
    found = to_dict(find_task(str(preset), str(data_dir)))
    if isinstance(settings.get("span"), Mapping):
        settings["span"] = {**found["span"], **settings["span"]}
    return {**found, **settings}


def _with_preset(adapter: Mapping[str, Any]) -> dict[str, Any]:
    """``{"preset": NAME, ...}``: the preset's settings, and in front of them those that are given."""
    settings = dict(adapter)
    name = settings.pop("preset", None)
    if name is None:
        return settings
    if not isinstance(name, str) or name not in ADAPTER_PRESETS:
        raise UserError(
            f'config.adapter.preset is "{name}"; there are {", ".join(ADAPTER_PRESETS)}.'
            f"{did_you_mean(str(name), ADAPTER_PRESETS)}"
        )
    return {**to_dict(ADAPTER_PRESETS[name]), **settings}


def _parse_arguments(text: str) -> dict[str, Any]:
    arguments = {}
    for part in filter(None, text.split(",")):
        key, equals, value = part.partition("=")
        if not equals or not key.isidentifier():
            raise UserError(f'The config argument "{part}" is not of the form key=value; write FILE.py:key=value,...')
        arguments[key] = literal(value)
    return arguments


def _run_config(path: Path, arguments: dict[str, Any]) -> dict[str, Any]:
    if path.suffix == ".json":
        return _read_config(path, arguments)
    if not path.is_file():
        near = [str(other) for other in path.parent.glob("*.py")] if path.parent.is_dir() else []
        raise UserError(f"The config {path} does not exist; give a Python file.{did_you_mean(str(path), near)}")
    try:
        get_config = runpy.run_path(str(path)).get("get_config")
    except (Exception, SystemExit) as error:
        raise UserError(f"The config {path} fails{_line(error, path)}: {type(error).__name__}: {error}.") from error
    if not callable(get_config):
        raise UserError(f"The config {path} has no function get_config; define one that returns a ConfigDict.")
    allowed = inspect.signature(get_config).parameters
    for key in arguments:
        if key not in allowed:
            takes = ", ".join(allowed) or "none"
            raise UserError(
                f'The config {path} has no argument "{key}"; it takes: {takes}.{did_you_mean(key, allowed)}'
            )
    try:
        config = get_config(**arguments)
    except UserError:
        raise
    except (Exception, SystemExit) as error:
        raise UserError(f"The config {path} fails{_line(error, path)}: {type(error).__name__}: {error}.") from error
    if hasattr(config, "to_dict"):
        config = config.to_dict()
    if not isinstance(config, dict):
        raise UserError(f"get_config of {path} returns {type(config).__name__}; it must return a ConfigDict.")
    return config


def _read_config(path: Path, arguments: dict[str, Any]) -> dict[str, Any]:
    """What a workdir's ``config.json`` holds, sources and tasks by the task's name."""
    if arguments:
        raise UserError(f"The config {path} takes no arguments; write --config={path} --config.SETTING=VALUE.")
    advice = "give a workdir's config.json, or a Python file"
    values = read_json(path, advice=advice)
    if values is None:
        raise UserError(f"The config {path} does not exist; give a Python file, or a workdir's config.json.")
    try:
        values["sources"] = {source["task"]["name"]: source for source in values.get("sources", ())}
        values["tasks"] = {task["name"]: task for task in values.get("tasks", ())}
    except (TypeError, KeyError, AttributeError) as error:
        raise UserError(
            f"The config {path} is not a workdir's config.json ({type(error).__name__}: {error}); {advice}."
        ) from None
    return values


def _line(error: BaseException, path: Path) -> str:
    if isinstance(error, SyntaxError):
        return f" in line {error.lineno}"
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
    return f" in line {lines[-1]}" if lines else ""


def _override(values: dict[str, Any], override: str) -> None:
    key, equals, text = override.partition("=")
    if not equals:
        raise UserError(f"--config.{override} has no value; write --config.{override}=VALUE.")
    *parents, last = key.split(".")
    node = values
    for parent in parents:
        # Whether such a setting exists at all is from_dict's to say.
        node = node.setdefault(parent, {})
        if not isinstance(node, dict):
            raise UserError(f"--config.{key}: {parent} holds no further settings.")
    node[last] = literal(text)


def literal(text: str) -> Any:
    """A value as it stands behind ``--config.SETTING=``: a Python literal; what is none is a string."""
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text
