"""File layouts of benchmarks: tables, JSON lines, folders of texts and SQuAD's JSON.

A layout finds the files of each split in a task's folder (``find``), and reads them as rows with the keys that are
common to all tasks (``read``). ``afjax.data.sources.official_tasks`` lists the tasks with their layouts.
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

# Converts a row to the common keys. The arguments are the row's name in errors, the row in the file's format, and
# whether it must have a label.
RowReader = Callable[[str, Row, bool], Row]

# Given a split and its files, returns a predicate that decides whether a row belongs to the split. The predicate's
# arguments are the row's name in errors, the row in the file's format, and the row with common keys.
RowChooser = Callable[[Split, tuple[Path, ...]], Callable[[str, Row, Row], bool]]

# File names in order of preference. All files of an inner tuple must exist.
Candidates = tuple[str | tuple[str, ...], ...]


@dataclass(frozen=True, kw_only=True)
class Files:
    """A layout with the files of each split. Each file may be gzipped, with .gz appended to its name.

    Attributes:
      train, dev, test: The files of each split, as candidates in order of preference.
      every: Candidates for files that have the rows of all splits.
      needs: Glob patterns. The folder belongs to the benchmark only if at least one of them matches; empty to skip this
        check.
    """

    train: Candidates = ()
    dev: Candidates = ()
    test: Candidates = ()
    every: Candidates = ()
    needs: tuple[str, ...] = ()

    def candidates(self, split: Split) -> list[tuple[str, ...]]:
        return [(names,) if isinstance(names, str) else names for names in (*getattr(self, split), *self.every)]

    def find(self, folder: Path, split: Split) -> tuple[Path, ...]:
        """Finds the files of a split. Returns an empty tuple if the folder does not have all of them."""
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
    """A layout of tables, either TSV without quoting or CSV with quoting.

    Attributes:
      row: Converts a row to the common keys.
      commas: Whether the table is CSV instead of TSV.
      names: Column names, for a table without a header line.
      encodings: Encodings to try; the first that fits the file is used.
      lenient: Whether to accept unnamed columns and stray quotes, which spreadsheets write.
      choose: Selects the rows of a split, if its files also have rows of other splits.
      aside: Names of auxiliary files of a split, which have no rows.
      skip_short: Whether rows with too few columns are skipped with a warning instead of raising an error.
      drop_empty: Whether rows without text or label are skipped with a warning.
      drop_labels: Rows with these labels are skipped.
      number: Whether rows without an id get their index as id.
    """

    row: RowReader
    commas: bool = False
    names: tuple[str, ...] = ()
    encodings: tuple[str, ...] = ("utf-8",)
    lenient: bool = False
    choose: RowChooser | None = None
    aside: tuple[str, ...] = ()
    skip_short: bool = False
    drop_empty: bool = False
    drop_labels: tuple[str, ...] = ()
    number: bool = False

    def read(self, split: Split, files: tuple[Path, ...]) -> Iterator[tuple[str, Row]]:
        tables = [path for path in files if path.name.removesuffix(".gz") not in self.aside]
        belongs = self.choose(split, files) if self.choose else None
        labelled = split != "test" or bool(self.every)
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
                row = self.row(place, raw, labelled)
                total += 1
                if self.number:
                    row.setdefault("id", str(total - 1))
                if self.drop_empty and not all(str(value).strip() for value in row.values()):
                    empty.append(place)
                elif row.get("label") not in self.drop_labels and (belongs is None or belongs(place, raw, row)):
                    yield place, row
        warn_left_out(short, total + len(short), "too few columns")
        warn_left_out(empty, total, "no text or no label")


def warn_left_out(places: list[str], total: int, what: str) -> None:
    if places:
        warnings.warn(
            f"Left out {len(places)} of {counted(total, 'row')} with {what}; the first is {places[0]}.", stacklevel=2
        )


@dataclass(frozen=True, kw_only=True)
class JsonLines(Files):
    """A layout with one JSON object per line, optionally with a separate file of one label per line.

    Attributes:
      row: Converts an object to the common keys.
      label_lines: The label index of each possible line of the label file.
    """

    row: RowReader
    label_lines: Mapping[str, int] = field(default_factory=dict)

    def read(self, split: Split, files: tuple[Path, ...]) -> Iterator[tuple[str, Row]]:
        path, *label_files = files
        labelled = split != "test" and not label_files
        rows = ((place, self.row(place, raw, labelled)) for place, raw in json_rows(path, read_lines(path)))
        yield from add_labels(path, list(rows), label_files[0], self.label_lines) if label_files else rows


def add_labels(
    path: Path, rows: list[tuple[str, Row]], labels_path: Path, meaning: Mapping[str, int]
) -> Iterator[tuple[str, Row]]:
    lines = [(number, line.strip()) for number, line in read_lines(labels_path) if line.strip()]
    if len(lines) != len(rows):
        raise UserError(
            f"{labels_path} has {counted(len(lines), 'label')}, but {path} has {counted(len(rows), 'row')}; fetch both "
            "again from the same place."
        )
    for (place, row), (number, line) in zip(rows, lines, strict=True):
        if line not in meaning:
            raise UserError(
                f"{labels_path}:{number} has the label {shorten(line)}; it must be one of {', '.join(meaning)}."
            )
        if row.setdefault("label", meaning[line]) != meaning[line]:
            raise UserError(f"{place} has another label than {labels_path}:{number}; fetch both files again.")
        yield place, row


@dataclass(frozen=True, kw_only=True)
class Conll(Files):
    """A layout of CoNLL files: one word per line with its tag, and a blank line after each sentence.

    Words without a visible character, such as the variation selectors after emojis in WNUT-17, are left out with a
    warning, because tokenizers have no token for them.
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
    """A layout with one file per text in one folder per class, unpacked or in an archive (.tar.gz, .tgz, .zip).

    Attributes:
      roots: The folder of each split, which has the folders of the classes.
      archives: Names of archives with all roots, without endings.
      classes: The label of each class's folder. If empty, the folders are named by their labels.
      encoding: Encoding of the texts.
      choose: Decides whether a text belongs to a split, because splits can share a root. Its arguments are the split,
        the text, and the text's index in its class.
    """

    roots: Mapping[Split, str]
    archives: tuple[str, ...] = ()
    classes: Mapping[str, str] = field(default_factory=dict)
    encoding: str = "utf-8"
    choose: Callable[[Split, str, int], bool]

    def find(self, folder: Path, split: Split) -> tuple[Path, ...]:
        """Finds the root folder of a split, or else an archive. Returns an empty tuple if there is neither."""
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
        """Yields rows, ordered by class folder and file name."""
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
    """The layout of SQuAD's files: nested JSON of articles, paragraphs and questions.

    Attributes:
      no_answer: Whether questions may have no answer (SQuAD v2).
    """

    no_answer: bool = False

    def read(self, split: Split, files: tuple[Path, ...]) -> Iterator[tuple[str, Row]]:
        (path,) = files
        content = parse_json(read_text(path), str(path), expected=None, advice="fetch it again", constants=True)
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
            raise UserError(f"{place} has no answer, which only SQuAD v2 may have; read the file as squad_v2.")
        row["answers"] = {
            "text": [member(place, answer, "text", str) for answer in answers],
            "answer_start": [member(place, answer, "answer_start", int) for answer in answers],
        }
        for answer, start in zip(row["answers"]["text"], row["answers"]["answer_start"], strict=True):
            excerpt = context[max(start, 0) : max(start, 0) + len(answer)]
            if start < 0 or excerpt != answer:
                raise UserError(
                    f"{place} has the answer {shorten(answer)} at {start}, where its context has {shorten(excerpt)}; "
                    "fetch the file again, or correct answer_start (it counts characters from 0)."
                )
        return row


def member(place: str, value: Any, name: str, kind: type) -> Any:
    """Returns ``value[name]`` of SQuAD's JSON. Raises UserError if it is missing or not of the given type."""
    content = value.get(name) if isinstance(value, dict) else None
    if not isinstance(content, kind) or isinstance(content, bool):
        kinds = {list: "list", str: "string", int: "integer"}
        raise UserError(
            f'{place} has no {kinds[kind]} "{name}"; SQuAD files are of the form {{"data": [{{"paragraphs": '
            '[{"context", "qas": [{"id", "question", "answers": [{"text", "answer_start"}]}]}]}]}.'
        )
    return content


Layout = Table | JsonLines | Conll | Folders | Squad
