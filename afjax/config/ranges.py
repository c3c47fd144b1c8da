"""Numeric types with a limited range, for the fields of config classes.

:func:`~afjax.config.from_dict.check_fields` checks the range.
"""

import dataclasses
import math
from typing import Annotated

from afjax.config.from_dict import settings_repr


@dataclasses.dataclass(frozen=True, kw_only=True)
class Range:
    """The allowed values of a number. NaN and infinity are never allowed.

    Attributes:
      least: The smallest allowed value.
      above: The number must be greater than this.
      below: The number must be less than this.
    """

    least: float = -math.inf
    above: float = -math.inf
    below: float = math.inf

    __repr__ = settings_repr

    def __contains__(self, value: float) -> bool:
        return self.least <= value and self.above < value < self.below

    def __str__(self) -> str:
        limits = {"at least": self.least, "above": self.above, "below": self.below}
        return " and ".join(f"{words} {limit}" for words, limit in limits.items() if math.isfinite(limit))

    def requirement(self, value: float) -> str:
        """Describes the range for an error message about ``value``."""
        must_be_finite = isinstance(value, float) and self.below == math.inf
        return " and ".join(["finite"] * must_be_finite + [str(self)] * bool(str(self)))


PositiveInt = Annotated[int, Range(least=1)]
NonNegativeInt = Annotated[int, Range(least=0)]
FiniteFloat = Annotated[float, Range()]
PositiveFloat = Annotated[float, Range(above=0)]
NonNegativeFloat = Annotated[float, Range(least=0)]
# A rate or a share below 1, such as a dropout rate.
Proportion = Annotated[float, Range(least=0, below=1)]
