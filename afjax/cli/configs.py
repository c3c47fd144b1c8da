"""Parses ``--config=NAME:key=value --config.a.b=value`` into an ExperimentConfig."""

import dataclasses
import inspect
import re
import runpy
import traceback
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from etils import epath

from afjax.config.adapters import ADAPTER_PRESETS
from afjax.config.experiment import ExperimentConfig, check_distinct
from afjax.config.flags import parse_value
from afjax.config.from_dict import UnknownSettingError, field_types, from_dict, to_dict
from afjax.errors import UserError, did_you_mean
from afjax.storage.json_files import read_existing_json
from afjax.storage.paths import expanded, open_path
from afjax.tasks.by_name import find_task, known_task, task_from_source

# Settings that :func:`load_experiment` expands to other settings.
TASK_SHORTHANDS = ("preset", "data_dir")
SHORTHANDS = {"task": TASK_SHORTHANDS, "tasks": TASK_SHORTHANDS, "adapter": ("preset",)}


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
    values = _run_config(given, _split_pairs(arguments))
    if given.endswith(".json"):
        _check_shorthands(values, overrides)
    for override in overrides:
        _override(values, override)

    # Config files and overrides store sources and tasks in dicts by task name.
    sources, tasks = values.get("sources", ()), values.get("tasks", ())
    if isinstance(sources, Mapping):
        values["sources"] = [_named_source(*item, find_store, needs_data=reads_rows) for item in sources.items()]
    if isinstance(tasks, Mapping):
        values["tasks"] = [_named(name, task, needs_data=reads_rows) for name, task in tasks.items()]
    if "task" in values:
        values["task"] = _with_data_dir(values["task"], needs_data=reads_rows)
    given_adapter = values.get("adapter", {})
    if given_adapter and isinstance(given_adapter, Mapping):
        values["adapter"] = _with_preset(given_adapter)
    try:
        return from_dict(ExperimentConfig, values)
    except UnknownSettingError as error:
        # The last part of a path such as config.sources[0].task or config.tasks[1].
        part = re.sub(r"\[\d+\]$", "", error.path.rpartition(".")[2])
        if part == "adapter" and (advice := _advice_on_preset(given_adapter)):
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


def _named(name: str, task: Any, *, needs_data: bool) -> Any:
    """Adds the name to a task's settings.

    A value that is not a mapping is returned unchanged, and ``from_dict`` rejects it later.
    """
    return _with_data_dir({"name": name, **task}, needs_data=needs_data) if isinstance(task, Mapping) else task


def _named_source(name: str, source: Any, find_store: Callable[[], str | Path] | None, *, needs_data: bool) -> Any:
    """Adds the task's name to a source's settings.

    The source's data may be missing if the store has its adapter.
    """
    if not isinstance(source, Mapping):
        return source
    task = source.get("task", {})
    try:
        named = _named(name, task, needs_data=needs_data)
    except UserError as error:
        if find_store is None:
            raise
        from afjax.train.checks import why_rows_are_needed

        if reason := why_rows_are_needed(name, find_store()):
            raise UserError(f"{error}{reason}") from error
        named = _named(name, task, needs_data=False)
    return {**source, "task": named}


def _with_data_dir(task: Any, *, needs_data: bool) -> Any:
    """Expands a task's ``data_dir`` and ``preset`` to the known task's settings.

    The known task is looked up by ``preset`` (a task's name or a TOML file), or else by the task's own name. Other
    settings in ``task``, including its ``source``, override the known task's. Without ``data_dir`` and ``preset``, the
    task is returned unchanged. If its data is missing and not needed, its source is the folder where the data would be.
    """
    if not isinstance(task, Mapping) or not task.keys() & TASK_SHORTHANDS:
        return task
    settings = dict(task)
    if not settings.keys() & {"preset", "name"}:
        raise UserError("A task with data_dir needs a name or a preset; add one of them.")
    data_dir, preset = str(settings.pop("data_dir", "")), str(settings.pop("preset", settings.get("name")))
    if data_dir and settings.get("source"):
        raise UserError(
            f'The task "{settings.get("name", preset)}" has both data_dir={data_dir} and source={settings["source"]}; '
            "leave one of them out."
        )
    source = settings.get("source")
    try:
        if isinstance(source, str) and source and not preset.endswith(".toml"):
            known_settings = to_dict(task_from_source(preset, source))
        else:
            known_settings = to_dict(find_task(preset, data_dir))
    except UserError:
        if needs_data or preset.endswith(".toml"):
            raise
        known_settings = {**to_dict(known_task(preset)), "source": str(Path(data_dir) / preset)}
    for name in ("span", "multi_label"):
        if isinstance(settings.get(name), Mapping):
            settings[name] = {**known_settings[name], **settings[name]}
    return {**known_settings, **settings}


def _with_preset(adapter: Mapping[str, Any]) -> dict[str, Any]:
    """Expands ``{"preset": NAME, ...}`` to the preset's settings.

    Other settings in ``adapter`` override the preset's.
    """
    settings = dict(adapter)
    name = settings.pop("preset", None)
    if name is None:
        return settings
    if not isinstance(name, str) or name not in ADAPTER_PRESETS:
        raise UserError(
            f'config.adapter.preset is "{name}"; choose from {", ".join(ADAPTER_PRESETS)}.'
            f"{did_you_mean(str(name), ADAPTER_PRESETS)}"
        )
    return {**to_dict(ADAPTER_PRESETS[name]), **settings}


def _advice_on_preset(adapter: Mapping[str, Any]) -> str:
    """Returns the presets to choose from if ``kind`` is set in addition to a preset of another kind."""
    name, kind = adapter.get("preset"), adapter.get("kind")
    preset = ADAPTER_PRESETS.get(str(name))
    names = [other for other, config in ADAPTER_PRESETS.items() if preset and config.kind == kind != preset.kind]
    choices = " or ".join(names)
    return (
        f" The config's preset {name} is not of the kind {kind}; set --config.adapter.preset={choices}."
        if names
        else ""
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


def _split_pairs(text: str) -> dict[str, str]:
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


def argument_settings(config: str) -> dict[str, str]:
    """Finds the settings that a config's arguments set directly: ``{setting: argument}``.

    An argument sets a setting if the two have the same value, and the setting has another value without the argument.
    """
    given, text = split_arguments(config)
    arguments = _split_pairs(text)
    found: dict[str, str] = {}
    if not arguments or given.endswith(".json"):
        return found
    values = _leaves(_run_config(given, arguments))
    for key, argument in arguments.items():
        others = {name: value for name, value in arguments.items() if name != key}
        try:
            without = _leaves(_run_config(given, others))
        except UserError:  # The config requires this argument.
            continue
        for setting, value in values.items():
            if value == parse_value(argument) and without.get(setting) != value:
                found[setting] = f"{key}={argument}"
    return found


def _leaves(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Returns nested values by dotted setting."""
    found: dict[str, Any] = {}
    for key, value in values.items():
        found |= _leaves(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value}
    return found


def _run_config(given: str, arguments: Mapping[str, str]) -> dict[str, Any]:
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


def _check_shorthands(values: dict[str, Any], overrides: Sequence[str]) -> None:
    """Prepares the values of a ``config.json`` for overrides that are expanded to other settings.

    The file contains every setting, and these would override the settings of a shorthand. An adapter's preset therefore
    replaces the recorded adapter.

    Raises:
      UserError: An override is a shorthand of a task. It could not replace the recorded task, because most of its
        settings describe the data.
    """
    for override in overrides:
        *parents, last = _parts(values, override.partition("=")[0])
        if parents == ["adapter"] and last == "preset":
            values["adapter"] = {}
        if parents and (parents[-1] == "task" or parents[:-1] == ["tasks"]) and last in TASK_SHORTHANDS:
            raise UserError(
                f"--config.{override} does not apply to a config.json, which contains every setting of the task; set "
                f"--config.{'.'.join(parents)}.source, or use a Python config."
            )


def _failure(given: str, path: Path, error: BaseException) -> UserError:
    """Builds the error for a config whose code fails, with the line number if known."""
    if isinstance(error, SyntaxError):
        number = error.lineno
    else:
        frames = traceback.extract_tb(error.__traceback__)
        number = next((frame.lineno for frame in reversed(frames) if frame.filename == str(path)), None)
    line = f" in line {number}" if number else ""
    return UserError(f"The config {given} fails{line}: {type(error).__name__}: {error}.")


def _parts(values: Mapping[str, Any], key: str) -> list[str]:
    """Splits a dotted setting into its parts. The name of a source or task can itself contain dots."""
    root, _, rest = key.partition(".")
    named = values.get(root) if root in ("sources", "tasks") else None
    names = map(str, named) if isinstance(named, Mapping) else ()
    name = max((name for name in names if f"{rest}.".startswith(f"{name}.")), key=len, default="")
    return [root, name, *rest.removeprefix(name).split(".")[1:]] if name else key.split(".")


def _override(values: dict[str, Any], override: str) -> None:
    key, equals, text = override.partition("=")
    if not equals:
        raise UserError(f"--config.{override} has no value; use --config.{override}=VALUE.")
    *parents, last = _parts(values, key)
    node = values
    for parent in parents:
        # Add missing parents here. If there is no such setting, from_dict raises an error later.
        # train.class_weights is "" or a dict.
        if node.get(parent) == "":
            node[parent] = {}
        node = node.setdefault(parent, {})
        if not isinstance(node, dict):
            raise UserError(f"--config.{key}: {parent} has no nested settings.")
    value = parse_value(text)
    # A name or column can look like a number.
    node[last] = text if isinstance(value, int | float) and _is_text([*parents, last]) else value


def _is_text(parts: Sequence[str]) -> bool:
    """Whether the type of a setting is ``str``."""
    hint: Any = ExperimentConfig
    for part in parts:
        if typing.get_origin(hint) is tuple:
            hint = typing.get_args(hint)[0]  # The part is the name of a source or task.
        else:
            members: Iterable[Any] = filter(dataclasses.is_dataclass, (hint, *typing.get_args(hint)))
            hint = next((field_types(member).get(part) for member in members), None)
    return hint is str
