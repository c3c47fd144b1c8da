"""Entries get places on the device, and the least recently used are evicted."""

from hypothesis import given
from hypothesis import strategies as st

from afjax.serve.places import Places


@given(st.integers(1, 4), st.lists(st.lists(st.integers(0, 7), min_size=1, max_size=4, unique=True), max_size=20))
def test_places_are_distinct_and_the_least_recently_used_entry_is_evicted(
    num_places: int, batches: list[list[int]]
) -> None:
    places = Places(num_places)
    # The entries that have a place, from the least to the most recently used.
    expected: list[int] = []
    for batch in batches:
        batch = batch[:num_places]
        added = places.assign(batch)
        assert set(added) == set(batch) - set(expected)
        expected = [entry for entry in expected if entry not in batch] + [
            *(entry for entry in batch if entry in expected),
            *(entry for entry in batch if entry not in expected),
        ]
        expected = expected[-num_places:]
        assert {entry for entry in range(8) if entry in places} == set(expected)
        assert all(places.place_of(entry) == place for entry, place in added.items())
        used = [places.place_of(entry) for entry in expected]
        assert len(set(used)) == len(used)
        assert set(used) <= set(range(1, num_places + 1))


def test_entry_keeps_its_place() -> None:
    places = Places(2)
    assert places.assign([5, 6]) == {5: 1, 6: 2}
    assert places.assign([6]) == {}
    assert places.assign([7]) == {7: 1}
    assert (places.place_of(6), 5 in places) == (2, False)


def test_discarded_entries_free_their_places() -> None:
    places = Places(3)
    places.assign([5, 6, 7])
    places.discard(5)
    places.discard(7)
    assert [entry in places for entry in (5, 6, 7)] == [False, True, False]
    assert sorted(places.assign([7, 8]).values()) == [1, 3]
    assert places.assign([9]) == {9: 2}
