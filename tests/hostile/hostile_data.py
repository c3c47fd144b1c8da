"""Hostile data, label and task files, and invalid sources."""

import functools
import gzip
import json
from collections.abc import Callable, Iterator

from hostile_base import jsonl, pair_rows, single_rows
from hostile_case import (
    COMMANDS,
    DEEP,
    DIGITS,
    EVAL,
    LONG,
    NOT_AN_OBJECT,
    PREDICT,
    TRAIN,
    Case,
    Damage,
    Wanted,
    changed,
    link,
    link_loop,
    make_folder,
    remove,
    write,
)

GOOD = jsonl(pair_rows())
ROW = b'{"text_a": "all of the two", "text_b": "some", "label": "few"}\n'

# Data files that no command can parse: complete contents, and lines that are appended to good rows.
WHOLE = {
    "empty": b"",
    "blank-lines": b"\n\n\n",
    "only-spaces": b"   \n",
    "utf-16": GOOD.decode().encode("utf-16"),
    "utf-16-without-a-mark": GOOD.decode().encode("utf-16-le"),
    "utf-32": GOOD.decode().encode("utf-32"),
    "gzipped-without-the-ending": gzip.compress(GOOD, mtime=0),
    "half-of-the-bytes": GOOD[: len(GOOD) // 2 - 9],
    "first-byte-missing": GOOD[1:],
    "one-json-list": json.dumps(pair_rows()).encode(),
    "one-indented-json-list": json.dumps(pair_rows(), indent=1).encode(),
    "web-page": b"<!DOCTYPE html>\n<html><body>404</body></html>\n",
    "random-bytes": bytes(index * 37 % 256 for index in range(1000)),
    "nul-bytes": bytes(100),
    "csv-named-jsonl": b"text_a,text_b,label\nall,some,few\n",
}
APPENDED = {
    "not-utf-8": b'{"text_a": "caf\xe9", "text_b": "a", "label": "few"}',
    "overlong-utf-8": b'{"text_a": "\xc0\xaf", "text_b": "a", "label": "few"}',
    "surrogate-bytes": b'{"text_a": "\xed\xa0\x80", "text_b": "a", "label": "few"}',
    "nul-bytes": b"\0\0\0",
    "nul-in-a-text": b'{"text_a": "a\0b", "text_b": "a", "label": "few"}',
    "tab-in-a-text": b'{"text_a": "a\tb", "text_b": "a", "label": "few"}',
    "cut-off": ROW[:30],
    "number": b"3",
    "string": b'"text"',
    "null": b"null",
    "list": b'["a", "b", "few"]',
    "nan": b"NaN",
    "no-columns": b"{}",
    "two-objects": ROW.strip() + ROW,
    "trailing-comma": b'{"text_a": "a", "text_b": "b", "label": "few",}',
    "comment": b"# a comment",
    "single-quotes": b"{'text_a': 'a', 'text_b': 'b', 'label': 'few'}",
    "python-words": b'{"text_a": "a", "text_b": None, "label": "few"}',
    "bad-escape": b'{"text_a": "\\x41", "text_b": "b", "label": "few"}',
    "text-is-null": b'{"text_a": null, "text_b": "b", "label": "few"}',
    "text-is-a-number": b'{"text_a": 3, "text_b": "b", "label": "few"}',
    "text-is-a-bool": b'{"text_a": true, "text_b": "b", "label": "few"}',
    "text-is-a-list": b'{"text_a": ["a"], "text_b": "b", "label": "few"}',
    "text-is-an-object": b'{"text_a": {"a": 1}, "text_b": "b", "label": "few"}',
    "half-a-surrogate": b'{"text_a": "\\ud800", "text_b": "b", "label": "few"}',
    "other-columns": b'{"premise": "a", "hypothesis": "b", "label": "few"}',
    "columns-in-capitals": b'{"TEXT_A": "a", "TEXT_B": "b", "label": "few"}',
    "deep-list-in-another-column": b'{"text_a": "a", "text_b": "b", "label": "few", "x": ' + DEEP.encode() + b"}",
    "deep-list-as-a-text": b'{"text_a": ' + DEEP.encode() + b', "text_b": "b", "label": "few"}',
    "many-digits-in-another-column": b'{"text_a": "a", "text_b": "b", "label": "few", "x": ' + DIGITS.encode() + b"}",
}
# Rows that are bad only for commands that need labels or text pairs.
LABELED = {
    "no-second-text": b'{"text_a": "a", "label": "few"}',
    "label-missing": b'{"text_a": "a", "text_b": "b"}',
    "label-null": b'{"text_a": "a", "text_b": "b", "label": null}',
    "label-empty": b'{"text_a": "a", "text_b": "b", "label": ""}',
    "label-blank": b'{"text_a": "a", "text_b": "b", "label": "  "}',
    "label-nan": b'{"text_a": "a", "text_b": "b", "label": NaN}',
    "label-infinity": b'{"text_a": "a", "text_b": "b", "label": Infinity}',
    "label-list": b'{"text_a": "a", "text_b": "b", "label": ["few"]}',
    "label-object": b'{"text_a": "a", "text_b": "b", "label": {"few": 1}}',
    "label-bool": b'{"text_a": "a", "text_b": "b", "label": true}',
    "label-fraction": b'{"text_a": "a", "text_b": "b", "label": 0.5}',
    "label-unknown": b'{"text_a": "a", "text_b": "b", "label": "fwe"}',
    "label-in-capitals": b'{"text_a": "a", "text_b": "b", "label": "FEW"}',
    "label-out-of-range": b'{"text_a": "a", "text_b": "b", "label": 7}',
    "label-negative": b'{"text_a": "a", "text_b": "b", "label": -1}',
    "label-of-30-digits": b'{"text_a": "a", "text_b": "b", "label": 999999999999999999999999999999}',
    "label-of-5000-digits": b'{"text_a": "a", "text_b": "b", "label": ' + DIGITS.encode() + b"}",
    "label-text-of-5000-digits": b'{"text_a": "a", "text_b": "b", "label": "' + DIGITS.encode() + b'"}',
    "label-too-large-a-number": b'{"text_a": "a", "text_b": "b", "label": 1e999}',
    "label-half-a-surrogate": b'{"text_a": "a", "text_b": "b", "label": "\\ud800"}',
    "label-with-a-nul": b'{"text_a": "a", "text_b": "b", "label": "few\\u0000"}',
    "label-with-a-space": b'{"text_a": "a", "text_b": "b", "label": "few "}',
    "label-with-zero-width": b'{"text_a": "a", "text_b": "b", "label": "few\\u200b"}',
}
# Rows that must not be accepted without a warning.
DOUBTFUL = {
    "text-empty": b'{"text_a": "", "text_b": "", "label": "few"}',
    "text-blank": b'{"text_a": " \\t", "text_b": " ", "label": "few"}',
}


def _with(line: bytes) -> bytes:
    return GOOD + line.rstrip(b"\n") + b"\n"


def _split(name: str, contents: bytes, ending: str = "jsonl") -> tuple[Damage, ...]:
    """Returns changes that replace the rows in a split of ``data``, or in ``rows.jsonl`` if the name is "rows"."""
    if name == "rows":
        return (write(f"rows.{ending}", contents),)
    return remove(f"data/{name}.jsonl"), write(f"data/{name}.{ending}", contents)


# The split to replace for each command, or "rows" for rows.jsonl.
READS = {"train": "dev", "eval": "test", "predict": "rows"}


def row_files() -> Iterator[Case]:
    everything = {**WHOLE, **{name: _with(line) for name, line in APPENDED.items()}}
    for index, (name, contents) in enumerate(everything.items()):
        for command in ("train", "predict", *(("eval",) if index % 2 else ())):
            yield Case(f"rows/{command}-{name}", COMMANDS[command], _split(READS[command], contents))
        if not index % 2:
            yield Case(f"rows/train-split-{name}", TRAIN, _split("train", contents))
    for name, line in LABELED.items():
        for command in ("train", "eval"):
            yield Case(f"rows/{command}-{name}", COMMANDS[command], _split(READS[command], _with(line)))
    one_id = jsonl([{**row, "id": "1"} for row in pair_rows()])
    for command in ("train", "eval"):
        yield Case(f"rows/{command}-one-id-for-all", COMMANDS[command], _split(READS[command], one_id))
    for name, line in DOUBTFUL.items():
        for command in ("train", "eval", "predict"):
            damage = _split(READS[command], _with(line))
            yield Case(f"rows/{command}-{name}", COMMANDS[command], damage, wanted="warned", slow=True)
    for command in ("train", "eval", "predict"):
        path = "rows.jsonl" if command == "predict" else f"data/{READS[command]}.jsonl"
        for name, damage in places(path).items():
            yield Case(f"rows/{command}-{name}", COMMANDS[command], (damage,))
    twice = (write("data/dev.csv", b"text_a,text_b,label\na,b,few\n"),)
    yield Case("rows/train-two-files-of-one-split", TRAIN, twice)


def places(path: str) -> dict[str, Damage]:
    """Returns changes by name, which remove a file or replace it with another kind of entry."""
    return {
        "missing": remove(path),
        "folder": make_folder(path),
        "link-to-itself": link_loop(path),
        "link-to-nothing": link(path, "nowhere"),
        "link-to-a-folder": link(path, "."),
    }


TABLES = {
    "header-only": "text_a{0}text_b{0}label\n",
    "no-header": "all{0}some{0}few\nsome{0}all{0}many\n",
    "missing-column": "text_a{0}label\nall{0}few\n",
    "no-label-column": "text_a{0}text_b\nall{0}some\n",
    "column-in-capitals": "text_a{0}text_b{0}Label\nall{0}some{0}few\n",
    "column-with-a-space": "text_a{0}text_b{0} label\nall{0}some{0}few\n",
    "too-few-cells": "text_a{0}text_b{0}label\nall{0}some{0}few\nall{0}few\n",
    "too-many-cells": "text_a{0}text_b{0}label\nall{0}some{0}few{0}many\n",
    "duplicate-column": "text_a{0}text_b{0}label{0}label\nall{0}some{0}few{0}many\n",
    "duplicate-text-column": "text_a{0}text_a{0}text_b{0}label\nall{0}some{0}few{0}few\n",
    "empty-label": "text_a{0}text_b{0}label\nall{0}some{0}\n",
    "unknown-label": "text_a{0}text_b{0}label\nall{0}some{0}fwe\n",
    "label-with-a-space": "text_a{0}text_b{0}label\nall{0}some{0}few \n",
    "nul-byte": "text_a{0}text_b{0}label\nall{0}so\0me{0}few\n",
    "other-separator": "text_a;text_b;label\nall;some;few\n",
    "empty": "",
}
CSV = {
    "unclosed-quote": b'text_a,text_b,label\nall,"some,few\n',
    "text-after-a-quote": b'text_a,text_b,label\nall,"some"x,few\n',
    "quote-in-the-header": b'text_a,"text_b,label\nall,some,few\n',
    "huge-field": b"text_a,text_b,label\n" + b"a" * 200_000 + b",some,few\n",
    "not-utf-8": b"text_a,text_b,label\ncaf\xe9,some,few\n",
    "utf-16": "text_a,text_b,label\nall,some,few\n".encode("utf-16"),
    "tabs": b"text_a\ttext_b\tlabel\nall\tsome\tfew\n",
}
TSV = {
    "not-utf-8": b"text_a\ttext_b\tlabel\ncaf\xe9\tsome\tfew\n",
    "utf-16": "text_a\ttext_b\tlabel\nall\tsome\tfew\n".encode("utf-16"),
    "commas": b"text_a,text_b,label\nall,some,few\n",
    "spaces": b"text_a text_b label\nall some few\n",
}


def tables() -> Iterator[Case]:
    for ending, separator, own in (("csv", ",", CSV), ("tsv", "\t", TSV)):
        contents = {name: text.format(separator).encode() for name, text in TABLES.items()} | own
        for index, (name, table) in enumerate(contents.items()):
            command = ("train", "eval")[index % 2]
            wanted: Wanted = "clean" if name in ("huge-field", "text-after-a-quote") else "refused"
            damage = _split(READS[command], table, ending)
            yield Case(f"tables/{ending}-{command}-{name}", COMMANDS[command], damage, wanted=wanted)


PACKED = gzip.compress(GOOD * 200, mtime=0)
GZIPPED = {
    "truncated": PACKED[: len(PACKED) // 2],
    "header-only": PACKED[:10],
    "cut-in-the-header": PACKED[:5],
    "not-gzip": GOOD,
    "empty": b"",
    "of-nothing": gzip.compress(b"", mtime=0),
    "wrong-checksum": PACKED[:-8] + b"\0\0\0\0" + PACKED[-4:],
    "wrong-length": PACKED[:-4] + b"\xff\xff\xff\x7f",
    "flipped-bit": PACKED[:100] + bytes([PACKED[100] ^ 1]) + PACKED[101:],
    "gzipped-twice": gzip.compress(PACKED, mtime=0),
    "garbage-at-the-end": PACKED + b"garbage",
    "zip": b"PK\x03\x04" + bytes(60),
    "of-not-utf-8": gzip.compress(b'{"text": "caf\xe9"}\n', mtime=0),
}


def gzipped() -> Iterator[Case]:
    for name, contents in GZIPPED.items():
        for command in ("train", "predict"):
            argv = changed(PREDICT, "--input=rows.jsonl.gz") if command == "predict" else TRAIN
            yield Case(f"gzip/{command}-{name}", argv, _split(READS[command], contents, "jsonl.gz"))


SOURCES = {
    "missing": "nowhere",
    "file-of-another-kind": "tiny.py",
    "folder-without-splits": "trunk",
    "archive": "packed.tar",
    "tfds-without-a-name": "tfds:",
    "tfds-unknown": "tfds:no_such_dataset",
    "tfds-with-slashes": "tfds:../../x/y/z",
    "hf-without-a-name": "hf:",
    "hf-with-slashes": "hf:../../x/y/z",
    "http": "http://x/y",
    "https": "https://example.invalid/data.jsonl",
    "s3": "s3://bucket/key",
    "file-url": "file:///data",
    "hdfs": "hdfs://host/path",
    "builtin-without-a-name": "builtin:",
    "builtin-unknown": "builtin:ential",
    "official-without-a-name": "official:",
    "official-without-a-folder": "official:rte:",
    "official-unknown": "official:ret:data",
    "official-missing": "official:rte:nowhere",
    "colon": ":",
    "nul": "da\0ta",
    "300-characters": LONG,
    "5000-characters": "a" * 5000,
    "half-a-surrogate": "\udcff",
    "no-such-user": "~nosuchuser/data",
    "device": "/dev/null",
    "missing-toml": "nowhere.toml",
    "link-to-itself": "loop",
    "link-to-itself-toml": "loop.toml",
}
SHOW = ("data", "show", "target", "--trunk=trunk", "--max_length=16")


def sources() -> Iterator[Case]:
    loops = (link_loop("loop"), link_loop("loop.toml"))
    for name, source in SOURCES.items():
        slow = source.startswith("tfds:")
        yield Case(f"sources/train-{name}", changed(TRAIN, f"--config.task.source={source!r}"), loops, slow=slow)
        if name == "nul":  # A command-line argument cannot contain NUL.
            continue
        yield Case(f"sources/eval-{name}", changed(EVAL, f"--source={source}"), loops, slow=slow)
        yield Case(f"sources/show-{name}", (*SHOW, f"--source={source}"), loops, slow=slow)
    for name in ("missing", "http", "300-characters", "half-a-surrogate", "link-to-itself", "device"):
        argv = tuple(word for word in EVAL if not word.startswith("--source"))
        yield Case(f"sources/eval-data_dir-{name}", (*argv, f"--data_dir={SOURCES[name]}"), loops)


TOML = {
    "empty": b"",
    "syntax": b"name = \n",
    "not-utf-8": b'name = "caf\xe9"\n',
    "nul": b'name = "a\0b"\n',
    "utf-16": 'name = "new"\n'.encode("utf-16"),
    "no-source": b'name = "new"\n',
    "name-is-a-number": b'name = 3\nsource = "data"\n',
    "name-with-a-slash": b'name = "a/b"\nsource = "data"\n',
    "unknown-key": b'name = "new"\nsource = "data"\nsoruce = "data"\n',
    "misspelled-kind": b'name = "new"\nsource = "data"\nkind = "clasification"\n',
    "kind-is-a-list": b'name = "new"\nsource = "data"\nkind = ["classification"]\n',
    "labels-are-numbers": b'name = "new"\nsource = "data"\nlabels = [1, 2]\n',
    "labels-twice": b'name = "new"\nsource = "data"\nlabels = ["few", "few"]\n',
    "scale-is-nan": b'name = "new"\nsource = "data"\nkind = "regression"\nscale = nan\n',
    "source-missing": b'name = "new"\nsource = "nowhere"\n',
    "train-is-a-date": b'name = "new"\nsource = "data"\ntrain = 2020-01-01\n',
    "key-twice": b'name = "new"\nname = "other"\nsource = "data"\n',
    "deep": b'name = "new"\nsource = "data"\nlabels = ' + b"[" * 20_000 + b"]" * 20_000 + b"\n",
}


def toml_tasks() -> Iterator[Case]:
    for name, contents in TOML.items():
        damage = (write("task.toml", contents),)
        yield Case(f"toml/show-{name}", changed(("data", "show", "task.toml", "--trunk=trunk")), damage)
        if name not in ("name-is-a-number", "name-with-a-slash"):
            yield Case(f"toml/eval-{name}", changed(EVAL, "--source=task.toml"), damage)


# Contents of labels.json for data labeled few and many.
LABEL_FILES = {
    **{name: contents for name, contents in NOT_AN_OBJECT.items() if name not in ("list",)},
    "object": b"{}",
    "empty-list": b"[]",
    "one-label": b'["few"]',
    "other-labels": b'["a", "b"]',
    "same-label-twice": b'["few", "many", "few"]',
    "empty-label": b'["few", "many", ""]',
    "number": b'["few", "many", 1]',
    "null-label": b'["few", "many", null]',
    "bool-label": b'["few", "many", true]',
    "nested-list": b'[["few", "many"]]',
    "object-of-numbers": b'{"few": 0, "many": 1}',
    "half-a-surrogate": b'["few", "many", "\\ud800"]',
    "label-of-many-digits": f'["few", "many", {DIGITS}]'.encode(),
    "nan": b'["few", "many", NaN]',
    "deep-label": b'["few", "many", ' + DEEP.encode() + b"]",
    "cut-off": b'["few", "ma',
}


def label_files() -> Iterator[Case]:
    for index, (name, contents) in enumerate(LABEL_FILES.items()):
        damage = (write("data/labels.json", contents),)
        yield Case(f"labels-file/train-{name}", TRAIN, damage)
        if index % 3 == 0:
            yield Case(f"labels-file/eval-{name}", EVAL, damage)
    for name in ("folder", "link-to-itself"):
        damage = (places("data/labels.json")[name],)
        # A folder may be handled like a missing file.
        yield Case(f"labels-file/train-{name}", TRAIN, damage, wanted="refused" if "link" in name else "clean")


# Labels that look equal.
COLLIDING = {
    "space-after": ("few", "few "),
    "space-before": ("few", " few"),
    "tab-after": ("few", "few\t"),
    "no-break-space": ("few", "few\u00a0"),
    "zero-width-space": ("few", "few\u200b"),
    "zero-width-joiner": ("few", "fe\u200dw"),
    "word-joiner": ("few", "few\u2060"),
    "byte-order-mark": ("few", "\ufefffew"),
    "soft-hyphen": ("few", "f\u00adew"),
    "composed-and-decomposed": ("caf\u00e9", "cafe\u0301"),
    "hangul": ("\uac00", "\u1100\u1161"),
    "1-and-1.0": ("1", "1.0"),
    "1.0-and-1.00": ("1.0", "1.00"),
}


def label_collisions() -> Iterator[Case]:
    for name, (one, other) in COLLIDING.items():
        rows = [{"text_a": f"a {n}", "text_b": "b", "label": label} for n in range(2) for label in (one, other, "many")]
        only_one = [row for row in rows if row["label"] != other]
        only_other = [row for row in rows if row["label"] != one]
        dev = (write("data/dev.jsonl", jsonl(only_one)),)
        both = (write("data/train.jsonl", jsonl(rows)), *dev)
        yield Case(f"label-names/train-{name}", TRAIN, both, wanted="warned", slow=True)
        apart = (write("data/train.jsonl", jsonl(only_one)), write("data/dev.jsonl", jsonl(only_other)))
        yield Case(f"label-names/dev-{name}", TRAIN, apart, wanted="warned")
        listed = (write("data/labels.json", json.dumps([one, other, "few", "many"])),)
        yield Case(f"label-names/file-{name}", TRAIN, listed, wanted="warned", slow=True)
        call = functools.partial(_from_lists, ["a", "b", "c"], [one, other, "many"])
        yield Case(f"label-names/lists-{name}", call=call, wanted="warned")
    numbers = [{"text_a": f"a {n}", "text_b": "b", "label": label} for n in range(3) for label in ("1.0", "2.0", "3.0")]
    shorter = [{**row, "label": row["label"][0]} for row in numbers if row["label"] != "3.0"]
    damage = (write("data/train.jsonl", jsonl(numbers)), write("data/dev.jsonl", jsonl(shorter)))
    yield Case("label-names/dev-numbers-without-a-fraction", TRAIN, damage, wanted="warned")
    as_numbers = (
        write("data/train.jsonl", jsonl(numbers)),
        write("data/dev.jsonl", jsonl([{**row, "label": int(row["label"])} for row in shorter])),
    )
    yield Case("label-names/dev-integers-for-1.0", TRAIN, as_numbers, wanted="warned")


def _from_lists(*arguments: object, **settings: object) -> object:
    from afjax.tasks.load import rows_from_lists

    return rows_from_lists(*arguments, **settings)  # type: ignore[arg-type]


# Heads trained on text pairs get single texts, and vice versa.
ALONE = ("--adapter=solo", "--head=solo")
SINGLES, PAIRS = jsonl(single_rows()), GOOD


def pairs() -> Iterator[Case]:
    mixed = SINGLES[: SINGLES.index(b"\n") + 1] + PAIRS
    for name, contents in (("singles", SINGLES), ("mixed", PAIRS + SINGLES), ("mixed-singles-first", mixed)):
        for command, argv in COMMANDS.items():
            if command != "resume":
                yield Case(f"pairs/{command}-{name}", argv, _split(READS[command], contents))
    for command, argv in (("eval", EVAL), ("predict", PREDICT)):
        damage = _split(READS[command], PAIRS)
        yield Case(f"pairs/{command}-pairs-for-single-texts", changed(argv, *ALONE), damage)
    both = b'{"text": "a", "text_a": "a", "text_b": "b", "label": "few"}\n'
    yield Case("pairs/predict-choices", PREDICT, _split("rows", b'{"context": "a", "choices": ["b", "c"]}\n'))
    yield Case("pairs/predict-question", PREDICT, _split("rows", b'{"question": "a", "context": "b"}\n'))
    yield Case("pairs/predict-all-columns", PREDICT, _split("rows", both), wanted="clean")


def cases() -> Iterator[Case]:
    families: tuple[Callable[[], Iterator[Case]], ...] = (
        row_files,
        tables,
        gzipped,
        sources,
        toml_tasks,
        label_files,
        label_collisions,
        pairs,
    )
    for family in families:
        yield from family()
