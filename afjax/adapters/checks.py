"""Checks whether one adapter can compute the weighted sum of several adapters."""

from collections.abc import Sequence
from typing import Any

from afjax.errors import UserError


def check_equal(configs: Sequence[Any], fields: Sequence[str]) -> None:
    """Raises UserError unless all architectures agree on the given fields.

    The order of ``target_modules`` is ignored.
    """
    for field in fields:
        values = dict.fromkeys(getattr(config, field) for config in configs)
        if len({frozenset(value) if field == "target_modules" else value for value in values}) > 1:
            raise UserError(
                f"Outputs can only be averaged if all adapters have the same {field}; these have "
                f"{field}={' and '.join(map(repr, values))}."
            )


def check_same_trunk(sizes: Sequence[tuple[int, ...]]) -> None:
    """Raises UserError unless all adapters fit a trunk of the same size.

    Args:
      sizes: For each adapter, the number of adapted layers, then its input or output sizes.
    """
    if len(set(sizes)) > 1:
        raise UserError(
            f"The adapters' numbers of layers and sizes differ: {' and '.join(map(str, dict.fromkeys(sizes)))}. Only "
            "average adapters that were trained on the same trunk."
        )
