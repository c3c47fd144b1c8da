"""Assigns places on the device to a bank's entries. The least recently used entry makes room for a new one."""

from collections.abc import Collection


class Places:
    """Assigns the places 1, 2, ..., N of a bank to entries, which are identified by numbers.

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
        # {entry: place}, in the order of last use.
        self._places: dict[int, int] = {}

    def __contains__(self, entry: int) -> bool:
        return entry in self._places

    def place_of(self, entry: int) -> int:
        """Returns the place of an entry, which must have one."""
        return self._places[entry]

    def assign(self, entries: Collection[int]) -> dict[int, int]:
        """Gives each of the entries a place, and marks them as used.

        Args:
          entries: At most as many distinct entries as there are places.

        Returns:
          The places of the entries that had none before. Other entries may have lost these places.
        """
        wanted = list(dict.fromkeys(entries))
        assert len(wanted) <= self.num_places, "a batch has no more entries"
        # Used entries move to the end, so the first one is the least recently used.
        for entry in wanted:
            if entry in self._places:
                self._places[entry] = self._places.pop(entry)
        added = {}
        for entry in wanted:
            if entry not in self._places:
                added[entry] = self._places[entry] = self._free_place()
        return added

    def _free_place(self) -> int:
        if len(self._places) == self.num_places:
            return self._places.pop(next(iter(self._places)))
        return len(self._places) + 1
