"""Matches module names against regular expressions from PEFT's settings.

The files are untrusted, and a malicious expression can backtrack almost forever. Expressions are therefore matched in
a subprocess with a time limit, unless all of them are plain names.
"""

import json
import re
import subprocess
import sys
from collections.abc import Sequence

from afjax.errors import UserError
from afjax.storage.json_files import short_json

TIME_LIMIT = 10.0
_NAME = re.compile(r"[\w.-]+", re.ASCII)
_PROGRAM = """\
import json, re, sys
expressions, names = json.load(sys.stdin)
print(json.dumps([[bool(re.fullmatch(expression, name)) for name in names] for expression in expressions]))
"""


def matching(
    expressions: Sequence[str], names: Sequence[str], *, where: str, before: str = "", after: str = ""
) -> list[set[str]]:
    """Finds the names that fully match each expression.

    Args:
      expressions: The regular expressions.
      names: Module names.
      where: The setting and its file, for error messages.
      before, after: Trusted expressions to add before and after each expression.

    Returns:
      The matching names for each expression.

    Raises:
      UserError: An expression is invalid or takes too long to match.

    Example:
      >>> from afjax.interop.peft.patterns import matching
      >>> matching(["query"], ["layer.0.query", "layer.0.query_norm"], where="rank_pattern", before=r"(.*\\.)?")
      [{'layer.0.query'}]
    """
    # Leave an expression unwrapped if possible, because it may begin with flags.
    enclosed = [f"{before}(?:{expression}){after}" if before or after else expression for expression in expressions]
    if all(_NAME.fullmatch(expression) for expression in expressions):
        return [{name for name in names if re.fullmatch(expression, name)} for expression in enclosed]
    try:
        done = subprocess.run(
            [sys.executable, "-I", "-c", _PROGRAM],
            input=json.dumps([enclosed, list(names)]),
            capture_output=True,
            text=True,
            encoding="utf-8",
            timeout=TIME_LIMIT,
        )
    except subprocess.TimeoutExpired:
        raise UserError(
            f"{where} is {short_json(expressions)}, which takes more than {TIME_LIMIT:.0f} s to match; list the module "
            "names instead."
        ) from None
    if done.returncode:
        raise UserError(f"{where} is {short_json(expressions)}, which is not a valid regular expression; correct it.")
    rows = json.loads(done.stdout)
    return [{name for name, matches in zip(names, row, strict=True) if matches} for row in rows]
