"""Parses IOB1, IOB2 and BIOES tags into entities.

A tag is ``O`` (no entity) or ``PREFIX-TYPE``. The prefix is B (first word of an entity), I (inside), E (last word) or S
(single word). As in ``conlleval`` and ``seqeval``, an ``I-`` tag that does not continue an entity of its type begins a
new one.
"""

from collections.abc import Sequence
from typing import NamedTuple

OUTSIDE = "O"
PREFIXES = "BIES"


class Chunk(NamedTuple):
    """An entity as a range of words.

    Attributes:
      type: The entity's type.
      first, last: Indices of the entity's first and last word.
    """

    type: str
    first: int
    last: int


def is_tag(text: str) -> bool:
    """Whether a string is ``O`` or ``PREFIX-TYPE``."""
    prefix, dash, type_ = text.partition("-")
    return text == OUTSIDE or (len(prefix) == 1 and prefix in PREFIXES and bool(dash and type_))


def chunks(tags: Sequence[str]) -> list[Chunk]:
    """Finds the entities of a sentence.

    Example:
      >>> chunks(["B-per", "I-per", "O", "I-loc", "B-loc"])
      [Chunk(type='per', first=0, last=1), Chunk(type='loc', first=3, last=3), Chunk(type='loc', first=4, last=4)]
    """
    found: list[Chunk] = []
    begin = 0
    before, type_before = OUTSIDE, ""
    for index, tag in enumerate([*tags, OUTSIDE]):
        prefix, _, type_ = tag.partition("-")
        if _ends(before, prefix, type_before, type_):
            found.append(Chunk(type_before, begin, index - 1))
        if _begins(before, prefix, type_before, type_):
            begin = index
        before, type_before = prefix, type_
    return found


def _begins(before: str, prefix: str, type_before: str, type_: str) -> bool:
    """Whether a word begins an entity.

    Args:
      before, type_before: Prefix and type of the previous word's tag.
      prefix, type_: Prefix and type of the word's own tag.
    """
    if prefix == OUTSIDE:
        return False
    return prefix in "BS" or before in "ESO" or type_before != type_


def _ends(before: str, prefix: str, type_before: str, type_: str) -> bool:
    """Whether an entity ends just before a word. See ``_begins`` for the arguments."""
    if before == OUTSIDE:
        return False
    return before in "ES" or prefix in "BSO" or type_before != type_


def num_unmarked(sentences: Sequence[Sequence[str]]) -> int:
    """Counts the entities that begin with an ``I-`` or ``E-`` tag.

    In IOB2 and BIOES, entities begin with a ``B-`` or ``S-`` tag.
    """
    return sum(tags[chunk.first][0] in "IE" for tags in sentences for chunk in chunks(tags))
