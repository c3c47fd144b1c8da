"""The table of encoder families. Each family is a module; add it here."""

from collections.abc import Mapping

from afjax.trunk import bert, roberta
from afjax.trunk.family import EncoderFamily

ENCODER_FAMILIES: Mapping[str, EncoderFamily] = {module.FAMILY.name: module.FAMILY for module in (bert, roberta)}
