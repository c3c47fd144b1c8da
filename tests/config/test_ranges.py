"""Numbers outside their range are refused, in every position of a config."""

import dataclasses
from typing import Annotated

import pytest
from facts import has_facts
from hypothesis import given
from hypothesis import strategies as st

from afjax.cli.settings_help import settings_text
from afjax.config.from_dict import check_fields, from_dict
from afjax.config.ranges import FiniteFloat, NonNegativeFloat, PositiveFloat, PositiveInt, Proportion, Range
from afjax.errors import UserError


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    count: PositiveInt = 1
    rate: Proportion | None = None
    weight: NonNegativeFloat = 0.0
    shift: FiniteFloat = 0.0
    scale: PositiveFloat = 1.0
    sizes: tuple[PositiveInt, ...] = ()

    def __post_init__(self) -> None:
        check_fields(self, "settings")


@pytest.mark.parametrize(
    ("values", "facts"),
    [
        ({"count": 0}, ("settings.count is 0;", "at least 1.")),
        ({"count": -(10**5000)}, ("settings.count is ", "at least 1.")),
        ({"rate": 1.0}, ("settings.rate is 1.0;", "at least 0 and below 1.")),
        ({"rate": float("nan")}, ("settings.rate is nan;", "at least 0 and below 1.")),
        ({"weight": -0.5}, ("settings.weight is -0.5;", "finite and at least 0.")),
        ({"weight": float("inf")}, ("settings.weight is inf;", "finite and at least 0.")),
        ({"shift": -float("inf")}, ("settings.shift is -inf;", "must be finite.")),
        ({"scale": 0}, ("settings.scale is 0.0;", "finite and above 0.")),
        ({"sizes": (8, 0)}, ("settings.sizes[1] is 0;", "at least 1.")),
    ],
)
def test_a_number_outside_its_range_is_refused(values: dict[str, object], facts: tuple[str, ...]) -> None:
    with pytest.raises(UserError) as raised:
        from_dict(Settings, values, "settings")
    assert has_facts(str(raised.value), *facts)


def test_limits_are_inclusive_only_where_stated() -> None:
    settings = Settings(count=1, rate=0, weight=0, shift=-1e30, scale=1e-30, sizes=[1, 8])  # type: ignore[arg-type]
    assert settings == Settings(count=1, rate=0.0, shift=-1e30, scale=1e-30, sizes=(1, 8))


@given(value=st.floats(), least=st.floats(-9, 9), below=st.floats(-9, 9))
def test_a_range_contains_the_numbers_between_its_limits(value: float, least: float, below: float) -> None:
    assert (value in Range(least=least, below=below)) == (least <= value < below)
    assert (value in Range(above=least)) == (least < value < float("inf"))


def test_the_help_shows_ranges() -> None:
    lines = {line.strip() for line in settings_text().splitlines()}
    assert {
        "train.warmup=0.0  (at least 0 and below 1)",
        "adapter.size=None  (at least 1)",
        "task.scale=1.0  (above 0)",
        "adapter.scaling=1.0",
    } <= lines


def test_a_range_has_a_short_repr() -> None:
    assert str(Annotated[int, Range(least=1)]) == "typing.Annotated[int, Range(least=1)]"
