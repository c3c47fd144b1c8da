"""``afjax data``: summarizes a task's splits, and lists the known tasks."""

import dataclasses
import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from afjax.config.from_dict import check_value
from afjax.config.ranges import PositiveInt
from afjax.config.tasks import MAIN_METRICS, NAMED_SOURCES, TaskConfig
from afjax.config.training import TrainConfig
from afjax.data.columns import first_row, missing_column
from afjax.data.notices import data_notices
from afjax.data.sources import official
from afjax.data.sources.formats import ENDINGS, file_stem
from afjax.data.sources.kind import SPLITS, Split
from afjax.data.sources.kinds import has_split, open_source, source_kind, split_files
from afjax.data.sources.official import OFFICIAL
from afjax.data.splits import AnyRows
from afjax.display.tables import fitting_table
from afjax.display.terminal import page_width, print_line, terminal_width, wrapped
from afjax.display.words import alternatives, counted, first_of
from afjax.errors import UserError
from afjax.tasks.by_name import find_task, read_task, task_from_source
from afjax.tasks.kind import LabelReading
from afjax.tasks.kinds import TASK_KINDS
from afjax.tasks.load import load_split, read_source
from afjax.tasks.summary import PERCENTILES, Count, Example, SplitSummary, first_examples, summarize
from afjax.train.messages import print_notices
from afjax.trunk.pretrained import Trunk, check_length
from afjax.trunk.program_cost import program_tokens

NUM_EXAMPLES = 3
# Maximum number of characters to print per text and per row's tokens, and maximum number of labels to print.
TEXT, TOKENS, LABELS = 200, 220, 24
# Reading a file of more than LARGE_FILE bytes or tokenizing more than MANY_ROWS rows can take long, so a line on stderr
# announces it.
LARGE_FILE, MANY_ROWS = 20_000_000, 20_000


def list_lines(*, as_json: bool) -> list[str]:
    """Formats a table of the known tasks, with a header.

    With ``as_json``, the last line is a JSON object with the same content.
    """
    tasks = [
        {
            "name": name,
            "kind": task.kind,
            "metric": task.metric or MAIN_METRICS[task.kind],
            "tfds": task.tfds,
            "about": task.about,
        }
        for name, task in OFFICIAL.items()
    ]
    rows = [("name", "kind", "metric", "TFDS", "about"), *(tuple(task.values()) for task in tasks)]
    lines = fitting_table(rows, terminal_width(sys.stdout), first=4)
    return [*lines, json.dumps({"tasks": tasks})] if as_json else lines


def task_to_show(name: str, *, data_dir: str, source: str) -> TaskConfig:
    """Finds the task to show.

    Args:
      name: A task's name, a TOML file, a data file, the task's folder, or a source such as ``builtin:entail``.
      data_dir: The folder with the tasks' folders; may be empty.
      source: The task's own source; may be empty.

    Raises:
      UserError: Both ``data_dir`` and ``source`` were given, a task's name was given without either, or the task cannot
        be found or loaded.
    """
    if source and data_dir:
        raise UserError(f"Both --data_dir={data_dir} and --source={source} were given; pass only one of them.")
    if not (source or data_dir):
        if name.endswith(ENDINGS):
            return TaskConfig(name=file_stem(Path(name).name), source=name)
        if os.path.isdir(name):
            return task_to_show(os.path.basename(os.path.abspath(name)), data_dir="", source=name)
        if source_kind(name).scheme:
            # Name the task imdb for tfds:imdb_reviews, rte for hf:glue/rte, and NAME for official:NAME:FOLDER.
            benchmarks = (task for task, benchmark in OFFICIAL.items() if name == f"tfds:{benchmark.tfds}")
            return task_to_show(next(benchmarks, Path(name.split(":")[1]).name), data_dir="", source=name)
    if not source:
        if not (data_dir or name.endswith(".toml")):
            raise UserError(
                f"Neither --data_dir nor --source was given for the task {name}; pass --data_dir (the folder that "
                f"contains the tasks' folders), or --source (the task's own folder or file, {NAMED_SOURCES})."
            )
        return find_task(name, data_dir)
    if name.endswith(".toml"):
        return dataclasses.replace(read_task(name), source=source, train="", dev="", test="")
    return task_from_source(name, source)


def show_lines(
    task: TaskConfig, trunk: Trunk, *, max_length: int, batch_size: int, split: str, platform: str, as_json: bool
) -> list[str]:
    """Describes a task: its settings, statistics of its splits, and three examples.

    Padded lengths are computed for ``platform``. With ``as_json``, the last line is a JSON object with the same
    content.

    Raises:
      UserError: The split (or every split) is missing, a split cannot be loaded, the batch size is not positive, or the
        trunk does not support the length.
    """
    check_length(max_length, trunk)
    check_value(PositiveInt, batch_size, "batch_size")
    config = TrainConfig(max_length=max_length, batch_size=batch_size)
    rows = load_splits(task, split)
    print_notices(data_notices(task, {str(name): split_rows for name, split_rows in rows.items()}))
    tokenizer = trunk.tokenizer()
    cost = program_tokens(trunk.config, platform)
    summaries = {}
    for name, split_rows in rows.items():
        if len(split_rows) > MANY_ROWS:
            print_line(f"Tokenizing {len(split_rows):,} rows of {name} ...")
        summaries[name] = summarize(split_rows, tokenizer, task, config, cost, training=name == "train")
    first = next(iter(rows))
    examples = first_examples(rows[first], NUM_EXAMPLES, tokenizer, task, config)
    splits = {
        name: {"files": split_files(task, name), **_plain_summary(summary)} for name, summary in summaries.items()
    }
    facts = {
        "task": {
            "name": task.name,
            "kind": task.kind,
            "about": _official_description(task),
            "head": _head(task, rows[first].label_names),
            "metric": task.main_metric,
            "labels": list(rows[first].label_names),
            "source": task.source,
        },
        "trunk": trunk.name,
        "max_length": max_length,
        "batch_size": batch_size,
        "splits": splits,
        "examples": {"split": first, "rows": [dataclasses.asdict(example) for example in examples]},
    }
    lines = _task_lines(facts)
    if not split and "dev" not in rows:
        lines += ["", 'dev: none; training needs one, and the task\'s "dev" setting can name it']
    for name, summary in summaries.items():
        lines += ["", *_split_lines(name, splits[name]["files"], summary, max_length)]
    lines += ["", f"the first rows of {first}"]
    for number, example in enumerate(examples, 1):
        lines += _example_lines(number, example, rows[first].label_names, TASK_KINDS[task.kind].text.label)
    return [*lines, json.dumps(facts)] if as_json else lines


def load_splits(task: TaskConfig, only: str) -> dict[Split, AnyRows]:
    """Loads all existing splits, or only the split ``only``. Rows may be unlabeled.

    Raises:
      UserError: The split is missing, the task has no splits, or a split cannot be loaded.
    """
    existing: list[Split] = [split for split in SPLITS if has_split(task, split)]
    chosen = [split for split in existing if only in ("", split)]
    if not chosen:
        raise UserError(
            f"The task {task.name} has no {only or 'train, dev or test'} split in {task.source or 'its source'}"
            f"{', but ' + ', '.join(existing) if existing else ''}; choose another --split, or add its file."
        )
    names: tuple[str, ...] = ()
    rows: dict[Split, AnyRows] = {}
    for split in chosen:
        if _is_large(split_files(task, split)):
            print_line(f"Reading {split} ...")
        train_has_names = "train" in existing and ("train" not in rows or rows["train"].labels is not None)
        if TASK_KINDS[task.kind].named_outputs and not names and not train_has_names:
            names = _label_names(task, split)
        if task.label and split != "test":
            _check_label_column(task, split)
        rows[split] = load_split(task, split, label_names=names, labeled=None)
        names = names or rows[split].label_names
    return rows


def _check_label_column(task: TaskConfig, split: Split) -> None:
    """Raises UserError if a split lacks the label column that the task names."""
    source = open_source(task, split)
    place, row, _ = first_row(source.name, source.rows)
    if task.label not in row:
        raise missing_column(place, task.label, row, "label")


def _label_names(task: TaskConfig, split: Split) -> tuple[str, ...]:
    """Collects the label names that occur in a split.

    The result is empty if the task or its source already names the labels, or if the split is unlabeled.
    """
    source = open_source(task, split)
    if task.labels or source.label_names:
        return ()
    return read_source(task, source, LabelReading(required=None)).label_names


def _is_large(files: Sequence[str]) -> bool:
    paths = [Path(name) for name in files]
    return any(path.is_dir() or (path.is_file() and path.stat().st_size > LARGE_FILE) for path in paths)


def _official_description(task: TaskConfig) -> str:
    """Returns the description of an official task; empty for other tasks."""
    if source_kind(task.source) is official.KIND:
        return OFFICIAL[official.split_official(task.source)[0]].about
    tfds = (entry.about for entry in OFFICIAL.values() if entry.tfds and task.source == f"tfds:{entry.tfds}")
    return next(tfds, "")


def _head(task: TaskConfig, labels: Sequence[str]) -> str:
    kind = TASK_KINDS[task.kind]
    outputs = kind.num_outputs(labels)
    reads = {"pooled": "one vector per row", "tokens": "every token"}[kind.reads]
    return f"{counted(outputs, 'output')}{kind.text.per_output}, from {reads}"


def _plain_summary(summary: SplitSummary) -> dict[str, Any]:
    """Converts a summary to a JSON object, with ``lengths`` by percentile."""
    plain = dataclasses.asdict(summary)
    plain["values"] = summary.values and dict(zip(("min", "mean", "max"), summary.values, strict=True))
    plain["lengths"] = {str(percent): length for percent, length in zip(PERCENTILES, summary.lengths, strict=True)}
    plain["windows"] = summary.windows and dict(zip(("mean", "max"), summary.windows, strict=True))
    return plain


def _task_lines(facts: Mapping[str, Any]) -> list[str]:
    entries = dict(facts["task"])
    title = printable(entries.pop("name"))
    entries["labels"] = first_of([printable(name) for name in entries["labels"]], LABELS)
    batches = f"{counted(facts['batch_size'], 'row')} of at most {facts['max_length']} tokens of {facts['trunk']}"
    entries["batches"] = batches
    return [title, *(line for name, text in entries.items() if text for line in _entry(name, text))]


def _split_lines(name: str, files: Sequence[str], summary: SplitSummary, max_length: int) -> list[str]:
    lengths = ", ".join(f"{percent}% {length}" for percent, length in zip(PERCENTILES, summary.lengths, strict=True))
    entries = {"files": ", ".join(files)}
    if summary.labels:
        labels = [_count(printable(label), count) for label, count in summary.labels.items()]
        entries["labels"] = first_of(labels, LABELS)
    if summary.values is not None:
        low, mean, high = summary.values
        entries["labels"] = f"from {low:g} to {high:g}, mean {mean:.4g}"
    if summary.choices:
        entries["choices"] = ", ".join(_count(f"{number} in", count) for number, count in summary.choices.items())
    if summary.answers:
        no_answer = summary.answers.get(0, Count(0, 0.0))
        counts = ", ".join(_count(f"{number} in", count) for number, count in summary.answers.items())
        unplaced = f"; {counted(summary.unplaced, 'row')} without the answer's position" if summary.unplaced else ""
        entries["answers"] = f"{counts}; {no_answer.share:.1%} without an answer{unplaced}"
    entries["tokens"] = lengths
    if summary.windows is None:
        entries["cut"] = f"{summary.truncated:.2%} are longer than {max_length} tokens"
    else:
        mean, largest = summary.windows
        entries["windows"] = f"{mean:.2f} per row, at most {largest}; {summary.truncated:.1%} of rows have several"
    entries["padding"] = f"{summary.padding:.1%} of the tokens, in rows of {alternatives(summary.padded)} tokens"
    unlabeled = "not labeled" if name == "test" else "not labeled (name the column of labels with --label)"
    title = f"{name}: {counted(summary.rows, 'row')}, {'labeled' if summary.labeled else unlabeled}"
    return [title, *(line for entry, text in entries.items() for line in _entry(entry, text))]


def _count(text: str, count: Count) -> str:
    return f"{text} {count.rows:,} ({count.share:.1%})"


def _example_lines(number: int, example: Example, labels: Sequence[str], label_title: str) -> list[str]:
    lines = []
    for name, text in example.fields.items():
        if isinstance(text, str):
            lines += _entry(name, f'"{printable(text)}"')
        else:
            for index, choice in enumerate(text):
                choice_name = printable(labels[index], 3) if index < len(labels) else str(index)
                lines += _entry(f"choice {choice_name}", f'"{printable(choice)}"')
    label = example.label
    if isinstance(label, list):
        quoted = [f'"{printable(text)}"' for text in dict.fromkeys(label)]
        lines += _entry(label_title, ", ".join(quoted) or "none")
    elif label is not None:
        lines += _entry(label_title, printable(label) if isinstance(label, str) else f"{label:g}")
    lines += _entry("tokens", printable(" ".join(example.tokens), TOKENS))
    return [f"{number}{lines[0][len(str(number)) :]}", *lines[1:]]


def _entry(name: str, text: str) -> list[str]:
    """Formats a name and its text, wrapped to the page width."""
    return wrapped(f"  {name:11}{text}", page_width(), " " * 13)


def printable(text: str, most: int = TEXT) -> str:
    """Truncates a text to ``most`` characters and makes it printable on one line.

    Unprintable characters and backslashes are escaped as in Python.
    """
    truncated = text if len(text) <= most else text[: most - 3] + "..."
    return "".join(sign if sign.isprintable() and sign != "\\" else repr(sign)[1:-1] for sign in truncated)
