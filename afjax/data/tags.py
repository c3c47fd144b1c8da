"""Tags of words, and the entities that they mark.

A tag is ``O`` (no entity) or ``PREFIX-TYPE``. The prefix is B (first word of an entity), I (inside), E (last word) or S
(the only word), so that IOB1, IOB2 and BIOES are read alike. Entities are found as by ``conlleval`` and ``seqeval``: an
``I-`` tag without a ``B-`` tag of its type before it also begins an entity.
"""

from collections.abc import Sequence
from typing import NamedTuple

OUTSIDE = "O"
PREFIXES = "BIES"


class Chunk(NamedTuple):
    """An entity as a range of words.

    Attributes:
      type: The entity's type.
      first, last: The indices of its first and last word.
    """

    type: str
    first: int
    last: int


def is_tag(text: str) -> bool:
    """Returns whether a text is ``O`` or ``PREFIX-TYPE``."""
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
        if begins(before, prefix, type_before, type_):
            begin = index
        before, type_before = prefix, type_
    return found


def begins(before: str, prefix: str, type_before: str, type_: str) -> bool:
    """Returns whether a word begins an entity.

    Args:
      before, type_before: Prefix and type in the tag of the word before it.
      prefix, type_: Prefix and type in its own tag.
    """
    if prefix == OUTSIDE:
        return False
    return prefix in "BS" or before in "ESO" or type_before != type_


def _ends(before: str, prefix: str, type_before: str, type_: str) -> bool:
    """Returns whether an entity ends before a word. The arguments are the same as for :func:`begins`."""
    if before == OUTSIDE:
        return False
    return before in "ES" or prefix in "BSO" or type_before != type_


def num_unmarked(sentences: Sequence[Sequence[str]]) -> int:
    """Returns the number of entities that begin with an ``I-`` or ``E-`` tag instead of a ``B-`` or ``S-`` tag."""
    return sum(tags[chunk.first][0] in "IE" for tags in sentences for chunk in chunks(tags))
