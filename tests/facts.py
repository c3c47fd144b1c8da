"""Checks the facts in messages, and not their sentences, so that a message can be reworded without changing tests."""

import re


def has_facts(text: str, *facts: str) -> bool:
    """Whether one line of the text contains the facts, in this order: names, paths, values, flags, suggestions."""
    return re.search(".*".join(map(re.escape, facts)), text) is not None
