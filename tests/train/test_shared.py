"""Runs share values, and the values that were used last are kept."""

from afjax.train.shared import KEPT, Shared


def test_value_is_made_once_per_kind_and_key() -> None:
    shared, made = Shared(), []

    def make() -> object:
        made.append(object())
        return made[-1]

    first = shared.once("programs", "a", make)
    assert shared.once("programs", "a", make) is first
    assert shared.once("programs", "b", make) is not first
    assert shared.once("trunk", "a", make) is not first
    assert len(made) == 3


def test_failed_value_is_made_again() -> None:
    shared = Shared()

    def broken() -> int:
        raise ValueError

    for _ in range(2):
        try:
            shared.once("rows", "a", broken)
        except ValueError:
            continue
    assert shared.once("rows", "a", lambda: 3) == 3


def test_values_that_were_used_last_are_kept() -> None:
    shared = Shared()
    for number in range(KEPT):
        shared.once("programs", number, lambda: "first")
    shared.once("trunk", 0, lambda: "trunk")
    assert shared.once("programs", 0, lambda: "second") == "first"
    # There is now one value more than is kept, so the least recently used value is dropped.
    shared.once("programs", KEPT, lambda: "first")
    assert shared.once("programs", 0, lambda: "second") == "first"
    assert shared.once("trunk", 0, lambda: "second") == "trunk"
    assert shared.once("programs", 1, lambda: "second") == "second"
    # With kept=2, only two values are kept, for example because they are large.
    for number in range(3):
        shared.once("frozen trunk", number, lambda: "first", kept=2)
    assert shared.once("frozen trunk", 1, lambda: "second", kept=2) == "first"
    assert shared.once("frozen trunk", 0, lambda: "second", kept=2) == "second"
