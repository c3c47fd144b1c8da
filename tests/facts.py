"""Checks of messages: their facts, not their sentences, so that a message may be reworded without touching a test."""

import re


def has_facts(text: str, *facts: str) -> bool:
    """Whether one line of the text contains the facts, in this order: names, paths, values, flags, suggestions."""
    return re.search(".*".join(map(re.escape, facts)), text) is not None
