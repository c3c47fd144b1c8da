"""Checks whether one adapter can compute a weighted sum of adapters' outputs."""

from collections.abc import Sequence
from typing import Any

from afjax.errors import UserError


def check_equal(configs: Sequence[Any], fields: Sequence[str]) -> None:
    """Raises UserError unless all architectures have the same values in some fields.

    The order of ``target_modules`` does not matter.
    """
    for field in fields:
        values = dict.fromkeys(getattr(config, field) for config in configs)
        if len({frozenset(value) if field == "target_modules" else value for value in values}) > 1:
            raise UserError(
                f"The outputs of adapters with {field}={' and '.join(map(repr, values))} cannot be added in one "
                f"adapter; average adapters with the same {field}."
            )


def check_same_trunk(sizes: Sequence[tuple[int, ...]]) -> None:
    """Raises UserError unless all adapters belong to trunks of one size.

    Args:
      sizes: For each adapter, the number of layers that have it, and the sizes of its inputs or outputs.
    """
    if len(set(sizes)) > 1:
        raise UserError(
            f"The adapters have the layers and sizes {' and '.join(map(str, dict.fromkeys(sizes)))}; average adapters "
            "of the same trunk."
        )
