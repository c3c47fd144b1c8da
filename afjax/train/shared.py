"""Values that several runs of one process share."""

from collections.abc import Callable, Hashable
from typing import Any, TypeVar

T = TypeVar("T")

# The default number of values of a kind to keep. The compiled functions of a run take about 85 MB on a CPU (minilm).
KEPT = 16
# Trunks to keep in memory, and frozen trunks on the devices. A sequence of tasks that trains LayerNorms has a new one
# per task.
TRUNKS = 2


class Shared:
    """Compiled functions and frozen parameters that the runs of one process share.

    Pass the same object to runs with ``RunOptions.shared``. Runs that differ only in name, seed, rows, rate or
    schedule then compile once, and the devices hold one copy of the frozen trunk. Results do not change. The object
    keeps the most recently used values: the compiled functions of at most 16 different kinds of runs, and at most two
    trunks.

    Example:
      >>> from afjax import RunOptions, Shared
      >>> shared = Shared()
      >>> options = [RunOptions(seed=seed, shared=shared) for seed in range(3)]
    """

    def __init__(self) -> None:
        # For each kind of value, the values by key, the last used at the end.
        self._values: dict[str, dict[Hashable, Any]] = {}

    def __repr__(self) -> str:
        return f"<Shared: {sum(map(len, self._values.values()))} values>"

    def once(self, kind: str, key: Hashable, make: Callable[[], T], *, kept: int = KEPT) -> T:
        """Returns the value that was made for an equal key, or makes it.

        Args:
          kind: The kind of the value.
          key: Everything that the value depends on.
          make: Makes the value. The value is never changed afterwards.
          kept: The number of values of this kind to keep. The least recently used value is dropped first.
        """
        values = self._values.setdefault(kind, {})
        value: T = values.pop(key) if key in values else make()
        values[key] = value
        while len(values) > kept:
            del values[next(iter(values))]
        return value
