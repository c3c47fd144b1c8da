"""``Shared`` makes each value once, and keeps the most recently used values."""

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


def test_value_is_made_again_after_an_error() -> None:
    shared = Shared()

    def broken() -> int:
        raise ValueError

    for _ in range(2):
        try:
            shared.once("rows", "a", broken)
        except ValueError:
            continue
    assert shared.once("rows", "a", lambda: 3) == 3


def test_least_recently_used_value_is_dropped() -> None:
    shared = Shared()
    for number in range(KEPT):
        shared.once("programs", number, lambda: "first")
    shared.once("trunk", 0, lambda: "trunk")
    assert shared.once("programs", 0, lambda: "second") == "first"
    # Adding one more value drops the least recently used value, which has the key 1.
    shared.once("programs", KEPT, lambda: "first")
    assert shared.once("programs", 0, lambda: "second") == "first"
    assert shared.once("trunk", 0, lambda: "second") == "trunk"
    assert shared.once("programs", 1, lambda: "second") == "second"
    # A lower limit can be set, for example for large values.
    for number in range(3):
        shared.once("frozen trunk", number, lambda: "first", capacity=2)
    assert shared.once("frozen trunk", 1, lambda: "second", capacity=2) == "first"
    assert shared.once("frozen trunk", 0, lambda: "second", capacity=2) == "second"
