"""Values shared by several runs in one process."""

from collections.abc import Callable, Hashable
from typing import Any, TypeVar

T = TypeVar("T")

# How many values of a kind to keep by default. A run's compiled functions take about 85 MB on a CPU (minilm).
KEPT = 16
# How many trunks to keep in memory, and frozen trunks on the devices. A sequential run that trains LayerNorms creates a
# new trunk per task.
TRUNKS = 2
# For how many target tasks to keep the rows in memory, at least. An experiment keeps the rows of all its tasks.
ROWS = 4


class Shared:
    """Compiled functions and frozen parameters shared by the runs in one process.

    Pass the same object to several runs as ``RunOptions.shared``. Runs that differ only in name, seed, rows, learning
    rate or schedule then compile once, and the devices hold one copy of the frozen trunk. Results do not change. The
    object keeps the most recently used values: the compiled functions of at most 16 different kinds of runs on one task
    and 16 on several tasks, at most two trunks with their tokenizers, and the rows of at most four tasks, or of all
    tasks of an experiment if it has more.

    Example:
      >>> from afjax import RunOptions, Shared
      >>> shared = Shared()
      >>> options = [RunOptions(seed=seed, shared=shared) for seed in range(3)]
    """

    def __init__(self) -> None:
        # The values of each kind, by key, from least to most recently used.
        self._values: dict[str, dict[Hashable, Any]] = {}

    def __repr__(self) -> str:
        return f"<Shared: {sum(map(len, self._values.values()))} values>"

    def once(self, kind: str, key: Hashable, make: Callable[[], T], *, capacity: int = KEPT) -> T:
        """Returns the value cached for a key, or creates it.

        Args:
          kind: The kind of the value.
          key: Everything that the value depends on.
          make: Creates the value, which must never be changed afterwards.
          capacity: The number of values of this kind to keep. The least recently used value is dropped first.
        """
        values = self._values.setdefault(kind, {})
        value: T = values.pop(key) if key in values else make()
        values[key] = value
        while len(values) > capacity:
            del values[next(iter(values))]
        return value
