"""Checks the facts in a message, not its wording, so that messages can be reworded without changing tests."""

import re


def has_facts(text: str, *facts: str) -> bool:
    """Whether one line of the text contains the facts (such as names, paths, values and flags), in this order."""
    return re.search(".*".join(map(re.escape, facts)), text) is not None
