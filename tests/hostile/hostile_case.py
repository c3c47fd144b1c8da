"""Defines hostile cases, and functions that damage a copy of the base folder."""

import dataclasses
import hashlib
import json
import os
import re
import shutil
import stat
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

# A function that changes the sandbox at the given path. The sandbox is a copy of the base folder, and the case's
# working directory.
Damage = Callable[[Path], None]

# refused: exit code 2 with one line, or a UserError. warned: refused, or success with a warning. clean: refused, or
# success. accepted: success.
Wanted = Literal["refused", "warned", "clean", "accepted"]


@dataclasses.dataclass(frozen=True)
class Case:
    """One input and its expected outcome.

    Attributes:
      id: ``family/name``.
      argv: The command. If empty, ``call`` is used instead.
      damage: Changes to the sandbox, applied in order before the command.
      call: A Python call, without arguments.
      wanted: The expected outcome.
      separate: Whether the case may exhaust memory or hang. It then runs in a separate process with limits.
      slow: Whether the case takes seconds, because of compilation or imports.
      max_file_bytes: The file size beyond which writes fail, as on a full disk. None for no limit.
      begins: Whether the run may write files, because it can only detect the error after it has started.
    """

    id: str
    argv: tuple[str, ...] = ()
    damage: tuple[Damage, ...] = ()
    call: Callable[[], object] | None = None
    wanted: Wanted = "refused"
    separate: bool = False
    slow: bool = False
    max_file_bytes: int | None = None
    begins: bool = False

    @property
    def family(self) -> str:
        return self.id.partition("/")[0]

    def needs(self, part: str) -> bool:
        """Whether the sandbox needs an entry from the base folder.

        Entries in ``LARGE`` are needed only if the command uses them.
        """
        names = set(re.findall(r"\w+", " ".join(self.argv)))
        return part not in LARGE or part in names or (part == "store" and bool(names & {"run", "solo"}))


# Base folder entries with many files.
LARGE = ("store", "run", "solo", "half")

# Commands on the base folder. Flags that may not be repeated cannot override an earlier value, so cases use `changed`.

MODEL = ("--store=store", "--trunk=trunk", "--adapter=first", "--head=first")
TRAIN = ("train", "--config=tiny.py:recipe=single,task=new", "--workdir=new")
EVAL = ("eval", *MODEL, "--source=data", "--split=test")
PREDICT = ("predict", *MODEL, "--input=rows.jsonl", "--output=out.jsonl")
RESUME = (
    "train",
    "--config=tiny.py:recipe=single,task=half,max_steps=2",
    "--workdir=half",
    "--config.train.eval_every=1",
)
REPEAT = ("train", "--config=tiny.py", "--workdir=run", "--store=store")
COMMANDS = {"train": TRAIN, "eval": EVAL, "predict": PREDICT, "resume": RESUME}


def changed(argv: tuple[str, ...], *flags: str) -> tuple[str, ...]:
    """Replaces or adds flags in a command. ``--name`` without a value removes the flag."""
    names = {flag.partition("=")[0] for flag in flags}
    kept = tuple(word for word in argv if word.partition("=")[0] not in names)
    return (*kept, *(flag for flag in flags if "=" in flag))


# Functions that return a change to a sandbox.


def write(path: str, contents: bytes | str) -> Damage:
    """Returns a change that writes a file and replaces any existing entry."""

    def damage(sandbox: Path) -> None:
        target = sandbox / path
        _remove(target)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(contents.encode("utf-8", "surrogatepass") if isinstance(contents, str) else contents)

    return damage


def remove(path: str) -> Damage:
    return lambda sandbox: _remove(sandbox / path)


def link_loop(path: str) -> Damage:
    """Returns a change that creates a symbolic link to itself and replaces any existing entry."""

    def damage(sandbox: Path) -> None:
        _remove(sandbox / path)
        (sandbox / path).symlink_to((sandbox / path).name)

    return damage


def link(path: str, target: str) -> Damage:
    def damage(sandbox: Path) -> None:
        _remove(sandbox / path)
        (sandbox / path).symlink_to(target)

    return damage


def make_folder(path: str) -> Damage:
    """Returns a change that creates an empty folder and replaces any existing entry."""

    def damage(sandbox: Path) -> None:
        _remove(sandbox / path)
        (sandbox / path).mkdir(parents=True)

    return damage


def full_device(path: str) -> Damage:
    """Returns a change that creates a full device like ``/dev/full`` in the sandbox.

    This keeps a command from replacing the machine's own device. If devices cannot be created, the change creates a
    symbolic link to ``/dev/full`` instead.
    """

    def damage(sandbox: Path) -> None:
        _remove(sandbox / path)
        try:
            os.mknod(sandbox / path, stat.S_IFCHR | 0o666, os.makedev(1, 7))
        except PermissionError:
            (sandbox / path).symlink_to("/dev/full")

    return damage


def cut(path: str, share: float) -> Damage:
    """Returns a change that truncates a file to the fraction ``share`` of its size."""

    def damage(sandbox: Path) -> None:
        contents = (sandbox / path).read_bytes()
        (sandbox / path).write_bytes(contents[: int(len(contents) * share)])

    return damage


def flip(path: str, share: float) -> Damage:
    """Returns a change that flips one bit of a file, at the fraction ``share`` of its size.

    In a JSON file, it changes the next letter or digit instead.
    """

    def damage(sandbox: Path) -> None:
        contents = bytearray((sandbox / path).read_bytes())
        index = min(int(len(contents) * share), len(contents) - 1)
        while path.endswith(".json") and not chr(contents[index]).isalnum():
            index += 1
        contents[index] ^= 1
        (sandbox / path).write_bytes(bytes(contents))

    return damage


def append(path: str, contents: bytes) -> Damage:
    def damage(sandbox: Path) -> None:
        with (sandbox / path).open("ab") as file:
            file.write(contents)

    return damage


class Drop:
    """A placeholder value that makes ``edit_json`` remove the key."""


@dataclasses.dataclass(frozen=True)
class Raw:
    """Literal JSON for a value that json.dumps cannot write, such as 1e999 or a deeply nested list."""

    text: str


def edit_json(path: str, change: Mapping[str, Any], *, seal: bool = False) -> Damage:
    """Returns a change that sets values in a JSON object by dotted path.

    Args:
      path: The file.
      change: ``{dotted path: value}``. A value may be ``Drop`` or ``Raw``.
      seal: Whether to recompute the manifest's checksum, so that it does not reveal the change.
    """

    def damage(sandbox: Path) -> None:
        values = json.loads((sandbox / path).read_text())
        raw: dict[str, str] = {}
        for where, value in change.items():
            *parents, last = where.split(".")
            node = values
            for parent in parents:
                node = node[int(parent)] if isinstance(node, list) else node[parent]
            key: Any = int(last) if isinstance(node, list) else last
            if value is Drop:
                del node[key]
            elif isinstance(value, Raw):
                node[key] = f"raw-{len(raw)}-raw"
                raw[f'"raw-{len(raw)}-raw"'] = value.text
            else:
                node[key] = value
        if seal:
            values.pop("manifest_sha256")
            text = json.dumps(values, sort_keys=True)
            for mark, literal in raw.items():
                text = text.replace(mark, literal)
            values["manifest_sha256"] = hashlib.sha256(text.encode()).hexdigest()
        text = json.dumps(values, indent=2) + "\n"
        for mark, literal in raw.items():
            text = text.replace(mark, literal)
        (sandbox / path).write_text(text)

    return damage


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


# Values shared by several case families.

DEEP = "[" * 100_000 + "]" * 100_000
DEEP_OBJECT = '{"a":' * 100_000 + "1" + "}" * 100_000
# A list nested more deeply than any afjax file, but not too deeply for Python's parser.
NESTED = "[" * 200 + "]" * 200
DIGITS = "9" * 5000
LONG = "a" * 300
# An absolute path outside the sandbox.
OUTSIDE = "/tmp/afjax-evil"

# JSON file contents that are not the expected object, by name.
NOT_AN_OBJECT: Mapping[str, bytes] = {
    "empty": b"",
    "only-spaces": b" \n\n",
    "null": b"null",
    "number": b"3",
    "true": b"true",
    "string": b'"bert"',
    "list": b"[]",
    "list-of-an-object": b"[{}]",
    "open-brace": b"{",
    "open-list": b"[",
    "deep-list": DEEP.encode(),
    "deep-object": DEEP_OBJECT.encode(),
    "nul-bytes": bytes(64),
    "utf-16": '{"a": 1}'.encode("utf-16"),
    "latin-1": '{"a": "é"}'.encode("latin-1"),
    "not-json": b"<html>not found</html>",
    "single-quotes": b"{'a': 1}",
    "trailing-comma": b'{"a": 1,}',
    "two-objects": b"{} {}",
    "many-digits": f'{{"a": {DIGITS}}}'.encode(),
}


def plain(value: object) -> str:
    """Formats a value for use in a case's id."""
    if value is Drop:
        return "missing"
    if isinstance(value, Raw):
        return plain(value.text)
    if isinstance(value, list | tuple):
        return "-".join(["list", *map(plain, value)])
    if isinstance(value, Mapping):
        return "-".join(["object", *map(plain, value)])
    if not isinstance(value, str):
        value = f"number-{len(str(value))}-digits" if isinstance(value, int) and abs(value) > 10**20 else str(value)
        return "".join(sign if sign.isalnum() or sign in "-_.+" else "-" for sign in value)
    if len(value) > 24:
        return f"{len(value)}-characters"
    shown = "".join(
        sign if sign.isascii() and (sign.isalnum() or sign in "-_.+") else f"~{ord(sign):x}" for sign in value
    )
    return shown if shown[:1].isalpha() else f"text-{shown or 'empty'}"
