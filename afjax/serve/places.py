"""Assigns a bank's places to entries, with least-recently-used eviction."""

from collections.abc import Collection


class Places:
    """Assigns the places 1, 2, ..., N in a bank to entries, identified by number.

    Example:
      >>> from afjax.serve.places import Places
      >>> places = Places(2)
      >>> places.assign([7, 8]), places.assign([7, 9])
      ({7: 1, 8: 2}, {9: 2})
      >>> places.place_of(7), 8 in places
      (1, False)
    """

    def __init__(self, num_places: int) -> None:
        self.num_places = num_places
        self._free = list(range(num_places, 0, -1))
        # {entry: place}, in the order of last use.
        self._places: dict[int, int] = {}

    def __contains__(self, entry: int) -> bool:
        return entry in self._places

    def place_of(self, entry: int) -> int:
        """Looks up an entry's place; the entry must have one."""
        return self._places[entry]

    def assign(self, entries: Collection[int]) -> dict[int, int]:
        """Assigns a place to each entry that has none, and marks all of them as used.

        Args:
          entries: The entries, no more than there are places.

        Returns:
          The newly assigned places. Other entries may have been evicted from them.
        """
        wanted = list(dict.fromkeys(entries))
        assert len(wanted) <= self.num_places, "a batch has at most this many entries"
        # Used entries move to the end, so the first one is the least recently used.
        for entry in wanted:
            if entry in self._places:
                self._places[entry] = self._places.pop(entry)
        added = {}
        for entry in wanted:
            if entry not in self._places:
                added[entry] = self._places[entry] = self._free_place()
        return added

    def discard(self, entry: int) -> None:
        """Frees an entry's place; the entry must have one."""
        self._free.append(self._places.pop(entry))

    def _free_place(self) -> int:
        return self._free.pop() if self._free else self._places.pop(next(iter(self._places)))
