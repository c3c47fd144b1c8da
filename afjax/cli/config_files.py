"""Finds and runs configs: Python files with ``get_config``, and the ``config.json`` of workdirs."""

import inspect
import re
import runpy
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from etils import epath

from afjax.config.experiment import check_distinct
from afjax.config.flags import parse_value
from afjax.errors import UserError, did_you_mean
from afjax.storage.json_files import read_existing_json
from afjax.storage.paths import expanded, open_path


def builtin_configs() -> dict[str, Path]:
    """Lists the configs that come with afjax: ``{name: file}``.

    They are in ``configs/`` in the repository, and in ``afjax/configs`` in an installed package.
    """
    package = Path(__file__).parents[1]
    installed = package / "configs"
    folder = installed if installed.is_dir() else package.parent / "configs"
    return {path.stem: path for path in sorted(folder.glob("*.py"))}


def find_config(given: str) -> Path:
    """Finds the file of a config.

    Args:
      given: The name of a built-in config, such as ``single``, or a path. The path ``configs/NAME.py`` refers to the
        built-in config if that file does not exist in the current folder.

    Raises:
      UserError: There is no such config.
    """
    builtin, path = builtin_configs(), expanded(given)
    if given in builtin:
        return builtin[given]
    if path.is_file():
        return path
    if path.parent == Path("configs") and path.suffix == ".py" and path.stem in builtin:
        return builtin[path.stem]
    candidates = [str(other) for other in path.parent.glob("*.py")] if path.parent.is_dir() else []
    if path.name == given:
        candidates = [*builtin, *candidates]
    elif path.parent == Path("configs"):
        candidates += [f"configs/{name}.py" for name in builtin]
    raise UserError(
        f"The config {given} does not exist; pass a Python file, or the name of a built-in config (afjax configs)."
        f"{did_you_mean(given, candidates)}"
    )


def split_arguments(config: str) -> tuple[str, str]:
    """Splits ``NAME:key=value,...`` into the config and its arguments.

    A path may contain colons.

    Example:
      >>> split_arguments("single:task=rte"), split_arguments("gs://bucket/run/config.json")
      (('single', 'task=rte'), ('gs://bucket/run/config.json', ''))
    """
    key = re.search(r":[^\W\d]\w*=", config)
    path = config[: key.start()] if key else config
    if path.endswith((".json", ".py")):
        return path, config[len(path) + 1 :]
    name, _, arguments = config.partition(":")
    return name, arguments


def run_config_file(given: str) -> tuple[Path, dict[str, Any]]:
    """Executes a config file.

    Args:
      given: The config's name or path, as for :func:`find_config`.

    Returns:
      A tuple ``(path, names)``: the config's file, and the global variables it defines as ``{name: value}``.

    Raises:
      UserError: There is no such config, or its file fails.
    """
    path = find_config(given)
    try:
        return path, runpy.run_path(str(path))
    except (Exception, SystemExit) as error:
        raise _failure(given, path, error) from error


def config_function(given: str) -> tuple[Path, Callable[..., Any]]:
    """Executes a config file and returns its path and its function ``get_config``.

    Raises:
      UserError: There is no such config, its file fails, or it does not define ``get_config``.
    """
    path, names = run_config_file(given)
    get_config = names.get("get_config")
    if not callable(get_config):
        raise UserError(f"The config {given} has no function get_config; define one that returns a ConfigDict.")
    return path, get_config


def run_config(given: str, arguments: Mapping[str, str]) -> dict[str, Any]:
    """Returns a config's values, with sources and tasks in dicts by task name.

    Args:
      given: The name or path of a config, or a workdir's ``config.json``.
      arguments: The arguments of ``get_config``, as text.

    Raises:
      UserError: The config does not exist or fails, or an argument is unknown.
    """
    if given.endswith(".json"):
        return _read_config(open_path(given), arguments)
    path, get_config = config_function(given)
    allowed = inspect.signature(get_config).parameters
    for key in arguments:
        if key not in allowed:
            takes = ", ".join(allowed) or "none"
            raise UserError(
                f'The config {given} has no argument "{key}"; it takes: {takes}.{did_you_mean(key, allowed)}'
            )
    try:
        config = get_config(**{key: _argument(text, allowed[key]) for key, text in arguments.items()})
    except UserError:
        raise
    except (Exception, SystemExit) as error:
        raise _failure(given, path, error) from error
    if hasattr(config, "to_dict"):
        config = config.to_dict()
        if config.get("recipe") == "sequential" and isinstance(config.get("tasks"), Mapping):
            raise UserError(
                f"get_config of {given} has a dict of tasks, but a ConfigDict sorts a dict's keys, and the sequential "
                'recipe trains in order; use a list: config.tasks = [{"name": NAME, ...}, ...].'
            )
    if not isinstance(config, dict):
        raise UserError(f"get_config of {given} returns {type(config).__name__}; it must return a ConfigDict.")
    return _by_task_name(_copied(config), f"The config {given} is invalid", "name each task")


def argument_settings(config: str) -> dict[str, str]:
    """Finds the settings that a config's arguments set directly: ``{setting: argument}``.

    An argument sets a setting if the two have the same value, and the setting has another value without the argument.
    """
    given, text = split_arguments(config)
    arguments = parse_arguments(text)
    found: dict[str, str] = {}
    if not arguments or given.endswith(".json"):
        return found
    values = _leaves(run_config(given, arguments))
    for key, argument in arguments.items():
        others = {name: value for name, value in arguments.items() if name != key}
        try:
            without = _leaves(run_config(given, others))
        except UserError:  # The config requires this argument.
            continue
        for setting, value in values.items():
            if value == parse_value(argument) and without.get(setting) != value:
                found[setting] = f"{key}={argument}"
    return found


def parse_arguments(text: str) -> dict[str, str]:
    """Parses ``key=value,...``. The values are kept as text."""
    arguments: dict[str, str] = {}
    for part in filter(None, text.split(",")):
        key, equals, value = part.partition("=")
        if not equals or not key.isidentifier():
            raise UserError(f'The config argument "{part}" does not have the form key=value; use NAME:key=value,...')
        if key in arguments:
            raise UserError(f'The config argument "{key}" is given twice ({arguments[key]}, {value}); give it once.')
        arguments[key] = value
    return arguments


def _argument(text: str, parameter: inspect.Parameter) -> Any:
    """Parses an argument's value. For a ``str`` parameter, text that looks like a number, such as a name, is kept."""
    value = parse_value(text)
    return text if parameter.annotation in (str, "str") and not isinstance(value, str) else value


def _leaves(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Returns nested values by dotted setting."""
    found: dict[str, Any] = {}
    for key, value in values.items():
        found |= _leaves(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value}
    return found


def _copied(value: Any) -> Any:
    """Copies nested dicts and lists.

    A config can use the same dict in several places. With a copy for each place, an override changes only one of them.
    (``copy.deepcopy`` would copy the dict once.)
    """
    if isinstance(value, dict):
        return {key: _copied(item) for key, item in value.items()}
    return [_copied(item) for item in value] if isinstance(value, list) else value


def _read_config(path: epath.Path, arguments: Mapping[str, str]) -> dict[str, Any]:
    """Reads a workdir's ``config.json``, with sources and tasks in dicts by task name."""
    if arguments:
        raise UserError(f"The config {path} takes no arguments; use --config={path} --config.SETTING=VALUE.")
    advice = "pass a workdir's config.json, or a Python file"
    values = read_existing_json(path, advice=advice)
    return _by_task_name(values, f"The config {path} is not a workdir's config.json", advice)


def _by_task_name(values: dict[str, Any], problem: str, advice: str) -> dict[str, Any]:
    """Converts lists of sources and tasks to dicts by task name, so that overrides can refer to them by name.

    Raises:
      UserError: A task has no name, or two have the same name.
    """
    try:
        for key in ("sources", "tasks"):
            items = values.get(key)
            if isinstance(items, list | tuple):
                names = [item["task"]["name"] if key == "sources" else item["name"] for item in items]
                check_distinct(key, names)
                values[key] = dict(zip(names, items, strict=True))
    except (TypeError, KeyError, AttributeError) as error:
        raise UserError(f"{problem} ({type(error).__name__}: {error}); {advice}.") from None
    return values


def _failure(given: str, path: Path, error: BaseException) -> UserError:
    """Builds the error for a config whose code fails, with the line number if known."""
    if isinstance(error, SyntaxError):
        number = error.lineno
    else:
        frames = traceback.extract_tb(error.__traceback__)
        number = next((frame.lineno for frame in reversed(frames) if frame.filename == str(path)), None)
    line = f" in line {number}" if number else ""
    return UserError(f"The config {given} fails{line}: {type(error).__name__}: {error}.")
