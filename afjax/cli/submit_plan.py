"""Plans ``afjax submit``: the files to write, their rows, and the heads to use."""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from afjax import store
from afjax.config.flags import split_names
from afjax.config.from_dict import from_dict
from afjax.config.tasks import TaskConfig
from afjax.data.sources.kinds import has_split
from afjax.data.sources.official import OFFICIAL, find_official
from afjax.data.splits import AnyRows
from afjax.display.terminal import print_line
from afjax.errors import UserError, did_you_mean
from afjax.store.artifacts import check_is_store
from afjax.tasks.by_name import find_task
from afjax.tasks.load import load_split
from afjax.tasks.submissions import GLUE, SQUAD, SUPER_GLUE, SUPER_GLUE_OTHERS, Entry, first_label, row_numbers

ENTRIES = {"glue": GLUE, "superglue": SUPER_GLUE, "squad": SQUAD}
TITLES = {"glue": "GLUE", "superglue": "SuperGLUE", "squad": "SQuAD"}


@dataclasses.dataclass(frozen=True)
class Job:
    """One file of a submission: its rows and the head that predicts them.

    Attributes:
      entry: The file's name, and the tasks of its rows and its head.
      rows: The rows to predict.
      ids: The identifier of each row on the server.
      head: The head's name in the store. If it is empty, every row gets the first label.
    """

    entry: Entry
    rows: AnyRows
    ids: Sequence[Any]
    head: str


def plan(
    benchmark: str, *, store_folder: str, data_dir: Path, names: str, tasks: str, split: str | None, partial: bool
) -> list[Job]:
    """Plans the files of a submission.

    All rows are loaded, and warnings about missing files are printed to stderr.

    Args:
      benchmark: ``glue``, ``superglue`` or ``squad``.
      store_folder: The store.
      data_dir: The folder with the tasks' folders.
      names: Pattern for the heads' names, with ``{task}`` for the task's name.
      tasks: The tasks to predict, separated by commas; empty for all tasks of the benchmark.
      split: The split of SQuAD; None for dev. The other benchmarks only have test.
      partial: Whether heads and test splits may be missing.

    Returns:
      One job per file.

    Raises:
      UserError: The store or ``data_dir`` does not exist, ``split`` or ``names`` does not fit the benchmark, a task is
        unknown, a head or split is missing, a head's kind or labels do not match its task, or rows cannot be read.
    """
    check_is_store(store_folder)
    if not data_dir.is_dir():
        raise UserError(
            f"There is no folder {data_dir}; set --data_dir to the folder that contains the tasks' folders, as in the "
            "benchmark's download."
        )
    chosen = _chosen(ENTRIES[benchmark], tasks)
    if benchmark == "squad":
        return [_squad_job(chosen, store_folder, data_dir, names, split or "dev")]
    if split == "dev":
        raise UserError(f"--split=dev was given, but {TITLES[benchmark]}'s server only takes test; leave out --split.")
    if "{task}" not in names and len({entry.head for entry in chosen}) > 1:
        raise UserError(
            f'--names is {names}, the same head for several tasks; use "{{task}}" for the task in the name.'
        )
    return _test_jobs(benchmark, chosen, store_folder, data_dir, names, partial=partial)


def _chosen(entries: Sequence[Entry], tasks: str) -> list[Entry]:
    """Selects the entries of the named tasks.

    If a task's head predicts several files, as for ``mnli``, all of them are selected.
    """
    known_names = list(dict.fromkeys(name for entry in entries for name in (entry.head, entry.task)))
    chosen_names = split_names(tasks) or known_names
    for name in chosen_names:
        if name not in known_names:
            raise UserError(
                f'--tasks names "{name}", which is not among {", ".join(known_names)}; leave it out.'
                f"{did_you_mean(name, known_names)}"
            )
    return [entry for entry in entries if entry.head in chosen_names or entry.task in chosen_names]


def _test_jobs(
    benchmark: str, chosen: Sequence[Entry], store_folder: str, data_dir: Path, names: str, *, partial: bool
) -> list[Job]:
    heads = store.names(store_folder, "heads")
    name_of = {entry.head: names.replace("{task}", entry.head) for entry in chosen}
    headless = [task for task, name in name_of.items() if name not in heads]
    sources = [(entry, _test_task(entry, data_dir)) for entry in chosen]
    absent = [entry for entry, task in sources if task is None]
    problems = []
    if headless:
        missing = _alternatives(name_of[task] for task in headless)
        problems.append(f"the store {store_folder} has no head {missing} ({_heads_note(heads)})")
    if absent:
        problems.append(f"{data_dir} has no {', '.join(entry.rows_file for entry in absent)}")
    if problems and not (partial and any(task and entry.head not in headless for entry, task in sources)):
        raise UserError(
            f"The submission to {TITLES[benchmark]} is incomplete: {', and '.join(problems)}. Add the missing parts, "
            "select other heads with --names or fewer tasks with --tasks, or use --partial to continue without them."
        )
    for task, name in name_of.items():
        if task not in headless:
            _check_head(store_folder, name, task)
    jobs = []
    for entry, source in sources:
        if source is not None:
            rows = load_split(source, "test", labeled=False)
            ids = row_numbers(rows, f"The test split of {entry.task} in {data_dir}")
            jobs.append(Job(entry, rows, ids, "" if entry.head in headless else name_of[entry.head]))
    _warn(benchmark, jobs, absent, name_of, data_dir)
    return jobs


def _warn(
    benchmark: str, jobs: Sequence[Job], absent: Sequence[Entry], name_of: Mapping[str, str], data_dir: Path
) -> None:
    """Warns on stderr about files without rows or a head, and files that are missing."""
    lines = [f"{entry.file} is left out: {data_dir} has no {entry.rows_file}." for entry in absent]
    lines += [
        f'{job.entry.file} has the label {first_label(job.entry.head)} for every row, because there is no head "'
        f"{name_of[job.entry.head]}\". This task's score will be meaningless."
        for job in jobs
        if not job.head
    ]
    other_files = SUPER_GLUE_OTHERS if benchmark == "superglue" else ()
    num_expected = len(ENTRIES[benchmark]) + len(other_files)
    if len(jobs) < num_expected:
        unknown = f"; afjax does not support {', '.join(other_files)}" if other_files else ""
        lines.append(
            f"{TITLES[benchmark]}'s server expects {num_expected} files; this submission will have {len(jobs)} of "
            f"them{unknown}."
        )
    for line in lines:
        print_line(line)


def _test_task(entry: Entry, data_dir: Path) -> TaskConfig | None:
    """Finds the task with an entry's test rows, or returns None if there are none."""
    # RTE is in both benchmarks with different files, so use the files of the requested benchmark.
    lines = entry in SUPER_GLUE
    folders = [data_dir / name for name in ("super_glue", "superglue", "SuperGLUE")] if lines else []
    for folder in [*(folder for folder in folders if folder.is_dir()), data_dir]:
        files = find_official(entry.task, folder)
        try:
            task = find_task(entry.task, folder)
        except UserError:
            if files:  # The official files exist, but a folder in afjax's format with the same name is invalid.
                raise
            continue
        other_format = [path for path in files.get("test", ()) if (".jsonl" in path.suffixes) != lines]
        if has_split(task, "test") and not other_format:
            return task
    return None


def _squad_job(chosen: Sequence[Entry], store_folder: str, data_dir: Path, names: str, split: str) -> Job:
    heads = store.names(store_folder, "heads")
    allowed = list(dict.fromkeys(names.replace("{task}", entry.head) for entry in chosen))
    stored = [name for name in allowed if name in heads]
    if not stored:
        raise UserError(
            f"The store {store_folder} has no head {_alternatives(allowed)} ({_heads_note(heads)}); train it, or "
            "select another with --names."
        )
    if len(stored) > 1:
        raise UserError(
            f"The store {store_folder} has both heads, {' and '.join(stored)}; use --tasks=squad or --tasks=squad_v2."
        )
    (name,) = stored
    trained = _check_head(store_folder, name, chosen[0].head)
    task = "squad_v2" if trained.span.no_answer else "squad"
    entry = next((entry for entry in chosen if entry.task == task), None)
    if entry is None:
        raise UserError(
            f'The head "{name}" was trained with span.no_answer={trained.span.no_answer}, so it predicts {task}, not '
            f"{chosen[0].task}; select another with --names, or use --tasks={task}."
        )
    source = find_task(task, data_dir)
    rows = load_split(source, "test" if split == "test" else "dev", labeled=False)
    assert rows.ids is not None, "rows of span tasks have ids"
    return Job(entry, rows, rows.ids, name)


def _check_head(store_folder: str, name: str, task: str) -> TaskConfig:
    """Checks that a head can predict a task, and returns the head's training task.

    Raises:
      UserError: The two tasks differ in kind or labels, or the head's manifest is damaged.
    """
    manifest = store.read_manifest(store_folder, "heads", name)
    trained: TaskConfig = from_dict(TaskConfig, manifest.task, f'the task of head "{name}"')
    official = OFFICIAL[task]
    if trained.kind != official.kind:
        raise UserError(
            f'The head "{name}" was trained on {trained.name}, a {trained.kind} task, but {task} is a {official.kind} '
            "task; select another with --names."
        )
    if set(manifest.labels) != set(official.labels):
        raise UserError(
            f'The head "{name}" has the labels {", ".join(manifest.labels)}, but {task} has '
            f"{', '.join(official.labels)}; train a head with these, or select another with --names."
        )
    return trained


def _alternatives(names: Iterable[str]) -> str:
    return " or ".join(f'"{name}"' for name in names)


def _heads_note(heads: Sequence[str]) -> str:
    return f"it has {', '.join(heads) or 'none'}"
