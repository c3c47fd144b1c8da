"""Expands ``preset`` and ``data_dir`` in the values of a config to the settings that they stand for."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from afjax.cli.config_overrides import setting_parts
from afjax.config.adapters import ADAPTER_PRESETS
from afjax.config.from_dict import to_dict
from afjax.errors import UserError, did_you_mean
from afjax.tasks.by_name import find_task, known_task, task_from_source

# Settings that :func:`load_experiment` expands to other settings.
TASK_SHORTHANDS = ("preset", "data_dir")
SHORTHANDS = {"task": TASK_SHORTHANDS, "tasks": TASK_SHORTHANDS, "adapter": ("preset",)}


def with_name(name: str, task: Any, *, needs_data: bool) -> Any:
    """Adds the name to a task's settings.

    A value that is not a mapping is returned unchanged, and ``from_dict`` rejects it later.
    """
    return with_known_task({"name": name, **task}, needs_data=needs_data) if isinstance(task, Mapping) else task


def with_source_name(name: str, source: Any, find_store: Callable[[], str | Path] | None, *, needs_data: bool) -> Any:
    """Adds the task's name to a source's settings.

    The source's data may be missing if the store has its adapter.
    """
    if not isinstance(source, Mapping):
        return source
    task = source.get("task", {})
    try:
        named = with_name(name, task, needs_data=needs_data)
    except UserError as error:
        if find_store is None:
            raise
        from afjax.train.checks import why_rows_are_needed

        if reason := why_rows_are_needed(name, find_store()):
            raise UserError(f"{error}{reason}") from error
        named = with_name(name, task, needs_data=False)
    return {**source, "task": named}


def with_known_task(task: Any, *, needs_data: bool) -> Any:
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


def with_preset(adapter: Mapping[str, Any]) -> dict[str, Any]:
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


def advice_on_preset(adapter: Mapping[str, Any]) -> str:
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


def prepare_shorthands(values: dict[str, Any], overrides: Sequence[str]) -> None:
    """Prepares the values of a ``config.json`` for overrides that are expanded to other settings.

    The file contains every setting, and these would override the settings of a shorthand. An adapter's preset therefore
    replaces the recorded adapter.

    Raises:
      UserError: An override is a shorthand of a task. It could not replace the recorded task, because most of its
        settings describe the data.
    """
    for override in overrides:
        *parents, last = setting_parts(values, override.partition("=")[0])
        if parents == ["adapter"] and last == "preset":
            values["adapter"] = {}
        if parents and (parents[-1] == "task" or parents[:-1] == ["tasks"]) and last in TASK_SHORTHANDS:
            raise UserError(
                f"--config.{override} does not apply to a config.json, which contains every setting of the task; set "
                f"--config.{'.'.join(parents)}.source, or use a Python config."
            )
