"""File layouts of benchmarks.

There are layouts for tables, JSON lines, CoNLL files, folders of texts and SQuAD's JSON. A layout finds each split's
files in a task's folder (``find``) and converts their rows to the keys that all tasks share (``read``).
``afjax.data.sources.official`` lists the tasks and their layouts.
"""

import itertools
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from afjax.data.columns import is_visible
from afjax.data.sources.archives import ARCHIVE_ENDINGS, read_archive
from afjax.data.sources.conll import conll_rows
from afjax.data.sources.files import decode, json_rows, read_lines, read_raw_lines, read_text, shorten, table_rows
from afjax.data.sources.kind import Split
from afjax.display.words import counted
from afjax.errors import UserError
from afjax.storage.json_files import parse_json

Row = dict[str, Any]

# Converts a row to the common keys. The arguments are the row's name in errors, the original row, and whether a label
# is required.
RowReader = Callable[[str, Row, bool], Row]

# Builds a predicate that decides whether a row belongs to a split, given the split and its files. The predicate's
# arguments are the row's name in errors, the original row, and the row with common keys.
RowChooser = Callable[[Split, tuple[Path, ...]], Callable[[str, Row, Row], bool]]

# Candidate file names in order of preference. All files in an inner tuple must exist.
Candidates = tuple[str | tuple[str, ...], ...]


@dataclass(frozen=True, kw_only=True)
class Files:
    """Base class of layouts with separate files.

    Files may be gzipped, with .gz appended to their names.

    Attributes:
      train, dev, test: Candidate files of each split, in order of preference.
      every: Candidate files that contain the rows of all splits.
      needs: Glob patterns. At least one must match for the folder to belong to the benchmark; empty to skip this check.
    """

    train: Candidates = ()
    dev: Candidates = ()
    test: Candidates = ()
    every: Candidates = ()
    needs: tuple[str, ...] = ()

    def candidates(self, split: Split) -> list[tuple[str, ...]]:
        return [(names,) if isinstance(names, str) else names for names in (*getattr(self, split), *self.every)]

    def find(self, folder: Path, split: Split) -> tuple[Path, ...]:
        """Finds a split's files. Returns an empty tuple unless all of them exist."""
        if self.needs and not any(any(folder.glob(need + packed)) for need in self.needs for packed in ("", ".gz")):
            return ()
        for names in self.candidates(split):
            files = [path for name in names if (path := find_file(folder / name))]
            if len(files) == len(names):
                return tuple(files)
        return ()

    def describe(self, split: Split) -> list[str]:
        return [" with ".join(names) if len(names) == 2 else ", ".join(names) for names in self.candidates(split)]


def find_file(path: Path) -> Path | None:
    packed = path.with_name(f"{path.name}.gz")
    return path if path.is_file() else packed if packed.is_file() else None


@dataclass(frozen=True, kw_only=True)
class Table(Files):
    """A layout with tables, either TSV without quoting or CSV with quoting.

    Attributes:
      row: Converts a row to the common keys.
      commas: Whether the table is CSV instead of TSV.
      names: Column names, for a table without a header line.
      encodings: Encodings to try in order.
      lenient: Whether to accept unnamed columns and stray quotes, which spreadsheets write.
      choose: Selects a split's rows if its files also contain other splits.
      auxiliary: Names of auxiliary files, which do not contain rows.
      skip_short: Whether to skip rows with too few columns with a warning instead of raising an error.
      drop_empty: Whether to skip rows without a text or label with a warning.
      drop_labels: Labels whose rows are skipped.
      number: Whether to use the row's index as its id if it has none.
    """

    row: RowReader
    commas: bool = False
    names: tuple[str, ...] = ()
    encodings: tuple[str, ...] = ("utf-8",)
    lenient: bool = False
    choose: RowChooser | None = None
    auxiliary: tuple[str, ...] = ()
    skip_short: bool = False
    drop_empty: bool = False
    drop_labels: tuple[str, ...] = ()
    number: bool = False

    def read(self, split: Split, files: tuple[Path, ...]) -> Iterator[tuple[str, Row]]:
        tables = [path for path in files if path.name.removesuffix(".gz") not in self.auxiliary]
        belongs = self.choose(split, files) if self.choose else None
        labeled = split != "test" or bool(self.every)
        total = 0
        short: list[str] = []
        empty: list[str] = []
        for path in tables:
            raw_rows = table_rows(
                path,
                read_lines(path, self.encodings),
                tabs=not self.commas,
                names=self.names,
                lenient=self.lenient,
                short=short if self.skip_short else None,
            )
            for place, raw in raw_rows:
                row = self.row(place, raw, labeled)
                total += 1
                if self.number:
                    row.setdefault("id", str(total - 1))
                if self.drop_empty and not all(str(value).strip() for value in row.values()):
                    empty.append(place)
                elif row.get("label") not in self.drop_labels and (belongs is None or belongs(place, raw, row)):
                    yield place, row
        warn_left_out(short, total + len(short), "too few columns")
        warn_left_out(empty, total, "no text or no label")


def tsv(row: RowReader, **options: Any) -> Table:
    """Returns the layout with one TSV table per split. The options are further fields of :class:`Table`."""
    return Table(train=("train.tsv",), dev=("dev.tsv",), test=("test.tsv",), row=row, **options)


def warn_left_out(places: list[str], total: int, what: str) -> None:
    if places:
        warnings.warn(
            f"Left out {len(places)} of {counted(total, 'row')} with {what}; the first is {places[0]}.", stacklevel=2
        )


@dataclass(frozen=True, kw_only=True)
class JsonLines(Files):
    """A layout with one JSON object per line.

    Optionally, a separate file has one label per line.

    Attributes:
      row: Converts an object to the common keys.
      label_lines: Maps lines of the label file to label indices.
    """

    row: RowReader
    label_lines: Mapping[str, int] = field(default_factory=dict)

    def read(self, split: Split, files: tuple[Path, ...]) -> Iterator[tuple[str, Row]]:
        path, *label_files = files
        labeled = split != "test" and not label_files
        rows = ((place, self.row(place, raw, labeled)) for place, raw in json_rows(path, read_lines(path)))
        yield from add_labels(path, list(rows), label_files[0], self.label_lines) if label_files else rows


def add_labels(
    path: Path, rows: list[tuple[str, Row]], labels_path: Path, meaning: Mapping[str, int]
) -> Iterator[tuple[str, Row]]:
    lines = [(number, line.strip()) for number, line in read_lines(labels_path) if line.strip()]
    if len(lines) != len(rows):
        raise UserError(
            f"{labels_path} has {counted(len(lines), 'label')}, but {path} has {counted(len(rows), 'row')}; download "
            "both again from the same source."
        )
    for (place, row), (number, line) in zip(rows, lines, strict=True):
        if line not in meaning:
            raise UserError(
                f"{labels_path}:{number} has the label {shorten(line)}; it must be one of {', '.join(meaning)}."
            )
        if row.setdefault("label", meaning[line]) != meaning[line]:
            raise UserError(f"{place} and {labels_path}:{number} have different labels; download both files again.")
        yield place, row


@dataclass(frozen=True, kw_only=True)
class Conll(Files):
    """A layout with CoNLL files.

    They have one word and its tag per line, and blank lines between sentences. Words without visible characters, such
    as the variation selectors after emojis in WNUT-17, are skipped with a warning, because tokenizers produce no tokens
    for them.
    """

    def read(self, split: Split, files: tuple[Path, ...]) -> Iterator[tuple[str, Row]]:
        invisible: list[str] = []
        for path in files:
            for place, row in conll_rows(path, read_lines(path)):
                is_kept = [is_visible(word) for word in row["words"]]
                invisible += [place] * is_kept.count(False)
                if any(is_kept):
                    yield place, {name: list(itertools.compress(values, is_kept)) for name, values in row.items()}
        if invisible:
            warnings.warn(
                f"Left out {counted(len(invisible), 'word')} without a visible character; the first is in the sentence "
                f"at {invisible[0]}.",
                stacklevel=2,
            )


@dataclass(frozen=True, kw_only=True)
class Folders:
    """A layout with one folder per class and one file per text.

    The folders are unpacked, or in an archive (.tar.gz, .tgz or .zip).

    Attributes:
      roots: The folder of each split, which contains the class folders.
      archives: Names of archives that contain all roots, without extensions.
      classes: Maps class folders to labels. If empty, the folder names are the labels.
      encoding: Encoding of the texts.
      choose: Whether a text belongs to a split, because splits can share a root. Its arguments are the split, the text,
        and the text's index in its class.
    """

    roots: Mapping[Split, str]
    archives: tuple[str, ...] = ()
    classes: Mapping[str, str] = field(default_factory=dict)
    encoding: str = "utf-8"
    choose: Callable[[Split, str, int], bool]

    def find(self, folder: Path, split: Split) -> tuple[Path, ...]:
        """Finds a split's root folder, or else an archive.

        Returns an empty tuple if neither exists.
        """
        if split not in self.roots:
            return ()
        root = folder / self.roots[split]
        names = {entry.name for entry in root.iterdir() if entry.is_dir()} if root.is_dir() else set()
        if names and names >= self.classes.keys():
            return (root,)
        archives = [folder / f"{name}{ending}" for name in self.archives for ending in ARCHIVE_ENDINGS]
        return next(((path,) for path in archives if path.is_file()), ())

    def describe(self, split: Split) -> list[str]:
        names = [f"{name}{ARCHIVE_ENDINGS[0]} (or {', '.join(ARCHIVE_ENDINGS[1:])})" for name in self.archives]
        return [f"{self.roots[split]}/", *names] if split in self.roots else []

    def read(self, split: Split, files: tuple[Path, ...]) -> Iterator[tuple[str, Row]]:
        """Yields rows in order of class folder and file name."""
        (source,) = files
        texts = self.archived_texts(source, self.roots[split]) if source.is_file() else self.folder_texts(source)
        num_seen: Counter[str] = Counter()
        for place, name, raw in texts:
            text = decode(place, raw, (self.encoding,)).strip()
            if self.choose(split, text, num_seen[name]):
                yield place, {"text": text, "label": self.classes.get(name, name)}
            num_seen[name] += 1

    def folder_texts(self, root: Path) -> Iterator[tuple[str, str, bytes]]:
        for folder in sorted(root.iterdir()):
            if folder.is_dir() and self.is_class(folder.name):
                for path in sorted(folder.iterdir()):
                    if path.is_file() and not path.name.startswith("."):
                        yield str(path), folder.name, b"".join(line for _, line in read_raw_lines(path))

    def archived_texts(self, archive: Path, root: str) -> Iterator[tuple[str, str, bytes]]:
        def wanted(member: str) -> bool:
            parts = member.split("/")
            return len(parts) > 2 and parts[-3] == root and self.is_class(parts[-2]) and not parts[-1].startswith(".")

        members = {tuple(member.split("/")[-2:]): (member, raw) for member, raw in read_archive(archive, wanted)}
        for (name, _), (member, raw) in sorted(members.items()):
            yield f"{archive}:{member}", name, raw

    def is_class(self, name: str) -> bool:
        return name in self.classes or not (self.classes or name.startswith("."))


@dataclass(frozen=True, kw_only=True)
class Squad(Files):
    """The layout of SQuAD: nested JSON with articles, paragraphs and questions.

    Attributes:
      no_answer: Whether questions can be unanswerable (SQuAD v2).
    """

    no_answer: bool = False

    def read(self, split: Split, files: tuple[Path, ...]) -> Iterator[tuple[str, Row]]:
        (path,) = files
        content = parse_json(read_text(path), str(path), expected=None, advice="download it again", constants=True)
        for number, article in enumerate(member(str(path), content, "data", list)):
            paragraphs = member(f"{path}: data[{number}]", article, "paragraphs", list)
            for count, paragraph in enumerate(paragraphs):
                place = f"{path}: data[{number}].paragraphs[{count}]"
                context = member(place, paragraph, "context", str)
                for question in member(place, paragraph, "qas", list):
                    name = member(f"{place}.qas", question, "id", str)
                    yield f"{path}:{name}", self.question_row(f"{path}:{name}", question, context)

    def question_row(self, place: str, question: Row, context: str) -> Row:
        row: Row = {"id": question["id"], "question": member(place, question, "question", str), "context": context}
        if "answers" not in question:
            return row
        impossible = self.no_answer and question.get("is_impossible") is True
        answers = [] if impossible else member(place, question, "answers", list)
        if not (answers or self.no_answer):
            raise UserError(f"{place} has no answer, which is only allowed in SQuAD v2; load the file as squad_v2.")
        row["answers"] = {
            "text": [member(place, answer, "text", str) for answer in answers],
            "answer_start": [member(place, answer, "answer_start", int) for answer in answers],
        }
        for answer, start in zip(row["answers"]["text"], row["answers"]["answer_start"], strict=True):
            excerpt = context[max(start, 0) : max(start, 0) + len(answer)]
            if start < 0 or excerpt != answer:
                raise UserError(
                    f"{place} has the answer {shorten(answer)} at {start}, but its context has {shorten(excerpt)} "
                    "there; download the file again, or correct answer_start (a character offset from 0)."
                )
        return row


def member(place: str, value: Any, name: str, kind: type) -> Any:
    """Returns ``value[name]`` from SQuAD's JSON.

    Raises UserError if it is missing or has the wrong type.
    """
    content = value.get(name) if isinstance(value, dict) else None
    if not isinstance(content, kind) or isinstance(content, bool):
        kinds = {list: "list", str: "string", int: "integer"}
        raise UserError(
            f'{place} has no {kinds[kind]} "{name}"; SQuAD files are of the form {{"data": [{{"paragraphs": '
            '[{"context", "qas": [{"id", "question", "answers": [{"text", "answer_start"}]}]}]}]}.'
        )
    return content


Layout = Table | JsonLines | Conll | Folders | Squad
