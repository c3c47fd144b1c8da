"""Values that several runs of one program share."""

from collections.abc import Callable, Hashable
from typing import Any, TypeVar

T = TypeVar("T")


class Shared:
    """Compiled functions and frozen parameters that the runs of one program share.

    Pass the same object to runs with ``RunOptions.shared``. Runs that differ only in seed, rows, learning rate or
    schedule then compile once, and the devices hold one copy of the frozen trunk. Results do not change. Everything is
    kept until the object is deleted.

    Example:
      >>> from afjax import RunOptions, Shared
      >>> shared = Shared()
      >>> options = [RunOptions(seed=seed, shared=shared) for seed in range(3)]
    """

    def __init__(self) -> None:
        self._values: dict[Hashable, Any] = {}

    def __repr__(self) -> str:
        return f"<Shared: {len(self._values)} values>"

    def once(self, key: Hashable, make: Callable[[], T]) -> T:
        """Returns the value that was made for an equal key, or makes it.

        Args:
          key: The value's kind, and everything that the value depends on.
          make: Makes the value. The value is never changed afterwards.
        """
        if key not in self._values:
            self._values[key] = make()
        return self._values[key]
