"""Values of --config flags are parsed as literals or strings, and formatted values are parsed to the same value."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from afjax.config.flags import parse_value, value_text

SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()


@given(SCALARS | st.lists(SCALARS).map(tuple) | st.dictionaries(st.text(), st.floats(0, 10)))
def test_formatted_values_are_parsed_to_the_same_value(value: Any) -> None:
    parsed = parse_value(value_text(value))
    assert parsed == value
    assert type(parsed) is type(value)


@pytest.mark.parametrize("text", ["{[1]}", "{{}}", "-" * 5000, "(" * 5000, "data/rte", "1e-3x", "", "\0"])
def test_text_that_is_not_a_literal_is_a_string(text: str) -> None:
    assert parse_value(text) == text
