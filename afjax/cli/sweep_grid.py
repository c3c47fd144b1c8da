"""Parses the values of a sweep's settings: the flags ``--grid`` and ``--seeds``, and a config's ``get_sweep``."""

from collections.abc import Mapping, Sequence
from typing import Any

from afjax.cli.config_files import argument_settings, run_config_file, split_arguments
from afjax.config.flags import parse_seeds, parse_value, value_text
from afjax.errors import UserError


def parse_grid(config: str, overrides: Sequence[str], flags: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Collects the values of each swept setting.

    Args:
      config: The value of ``--config``. Its file can have a function ``get_sweep``.
      overrides: The ``--config.SETTING=VALUE`` flags, without ``--config.``.
      flags: The ``--grid.SETTING=VALUE,...`` flags, without ``--grid.``. They replace the values of ``get_sweep``.

    Raises:
      UserError: A flag or the result of ``get_sweep`` is malformed, or a swept setting is also set elsewhere.
    """
    given: dict[str, tuple[str, ...]] = {}
    for flag in flags:
        setting, _, text = flag.partition("=")
        if setting in given:
            raise UserError(f"--grid.{setting} is given twice; list all its values in one flag, separated by commas.")
        given[setting] = _values(f"--grid.{setting}", [parse_value(piece) for piece in _split(setting, text)])
    grid = {**_file_grid(config), **given}
    fixed = [override.partition("=")[0] for override in overrides]
    arguments = argument_settings(config)
    if "seed" in (*grid, *fixed, *arguments):
        raise UserError(
            'The setting "seed" is set by --config, --grid or get_sweep; use --seeds instead, such as --seeds=0,1,2.'
        )
    for swept in grid:
        set_elsewhere = [(f"--config.{other}", other) for other in fixed]
        set_elsewhere += [(f"the config argument {argument}", other) for other, argument in arguments.items()]
        set_elsewhere += [(f'the swept "{other}"', other) for other in grid if other != swept]
        for name, other in set_elsewhere:
            if f"{swept}.".startswith(f"{other}.") or f"{other}.".startswith(f"{swept}."):
                raise UserError(
                    f'The swept setting "{swept}" is also set by {name}; leave one of them out '
                    f"(--grid.{swept}=VALUE gives it a single value)."
                )
    return grid


def _file_grid(config: str) -> dict[str, tuple[str, ...]]:
    """Calls the config file's ``get_sweep``. Without one, the grid is empty."""
    path, _ = split_arguments(config)
    if path.endswith(".json"):
        return {}
    _, names = run_config_file(path)
    get_sweep = names.get("get_sweep")
    if get_sweep is None:
        return {}
    try:
        grid = get_sweep()
    except Exception as error:
        raise UserError(f"get_sweep of {path} fails: {type(error).__name__}: {error}.") from error
    if not isinstance(grid, Mapping) or not all(isinstance(values, list | tuple) for values in grid.values()):
        raise UserError(f"get_sweep of {path} returns {grid!r}; it must return {{dotted setting: [values]}}.")
    return {str(setting): _values(f"{setting} in get_sweep of {path}", values) for setting, values in grid.items()}


def _values(origin: str, values: Sequence[Any]) -> tuple[str, ...]:
    """Checks a setting's values and formats them as in ``--config.SETTING=VALUE``."""
    if not values:
        raise UserError(f"{origin} has no values; list at least one, as in --grid.train.learning_rate=1e-4,3e-4.")
    texts = [_text(origin, value) for value in values]
    for text in texts:
        if texts.count(text) > 1:
            raise UserError(f"{origin} has the value {text} twice; list each value once.")
    return tuple(texts)


def _text(origin: str, value: Any) -> str:
    """Formats a value so that a config override parses to the same value."""
    text = value_text(value)
    read = parse_value(text)
    if type(read) is not type(value) or read != value:
        raise UserError(
            f"{origin} has the value {text}, which is not a Python literal; use finite numbers, strings, True, False, "
            "None, or lists of them (for an array, its .tolist())."
        )
    return text


def _split(setting: str, text: str) -> list[str]:
    """Splits a setting's values at commas outside of brackets and quotes."""
    pieces, depth, quote = [""], 0, ""
    for sign in text:
        if sign == "," and not depth and not quote:
            pieces.append("")
            continue
        pieces[-1] += sign
        if quote:
            quote = "" if sign == quote else quote
        elif sign in "'\"":
            quote = sign
        else:
            depth += (sign in "([{") - (sign in ")]}")
        if depth < 0:
            break
    if depth or quote:
        raise UserError(f"--grid.{setting}={text} has an unmatched bracket or quote; close it.")
    pieces = [piece.strip() for piece in pieces]
    if pieces == [""]:
        return []
    if "" in pieces:
        raise UserError(
            f"--grid.{setting}={text} has an empty value; use comma-separated values ('' is the empty string)."
        )
    return pieces


def parse_distinct_seeds(text: str) -> tuple[int, ...]:
    """Parses ``--seeds``. Raises UserError if it is not a list of distinct integers."""
    seeds = parse_seeds(text)
    if len(set(seeds)) != len(seeds):
        raise UserError(f'--seeds is "{text}"; list each seed once.')
    return seeds
