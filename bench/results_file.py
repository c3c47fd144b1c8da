"""Results files of studies: one JSON line per finished run.

A study can be interrupted at any time and resumed with the same command: runs with a line in the file are skipped. A
line can record the data and settings of its run (``inputs``), so that results from different studies are never mixed.
"""

import argparse
import csv
import dataclasses
import functools
import json
import multiprocessing
import statistics
import tempfile
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import jax

import afjax
from afjax.errors import UserError

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Run = TypeVar("Run", bound="DataclassInstance")
Inputs = Mapping[str, Any]
INPUTS = "inputs"
# The inputs of the lines that were written before run_parts recorded inputs. Their encoder is minilm.
FORMER_INPUTS = {"trunk": "31164eee1ef2"}


def read_results(
    path: Path,
    run_type: type[Run],
    inputs_of: Callable[[Run], Inputs] | None = None,
    runs: Collection[Run] | None = None,
) -> dict[Run, dict[str, Any]]:
    """Reads and checks a results file.

    Args:
      path: The file. If it does not exist, the result is empty.
      run_type: A frozen dataclass whose fields identify a run. Each line must contain all of them.
      inputs_of: Computes a run's expected inputs, which are compared with the recorded ones. None skips the check.
      runs: The runs of the study. None accepts any run.

    Returns:
      ``{run: line}``, in the file's order.

    Raises:
      UserError: A line is damaged, is a duplicate, belongs to a different study or records different inputs. The
        message has the line number, and the name and both values of the first input that differs.
    """
    results: dict[Run, dict[str, Any]] = {}
    for number, text in enumerate(path.read_text(encoding="utf-8").splitlines() if path.exists() else [], start=1):
        location = f"{path}, line {number}"
        try:
            line = json.loads(text)
            run = run_type(**{field.name: line[field.name] for field in dataclasses.fields(run_type)})
        except (ValueError, KeyError, TypeError) as error:
            raise UserError(f"{location} is not a result of this study ({error!r}); remove it.") from error
        if runs is not None and run not in runs:
            raise UserError(
                f"{location} is for {run}, which is not a run of this study; choose a different results file."
            )
        if run in results:
            raise UserError(f"{location} is a second result for {run}; remove one of them.")
        if inputs_of is not None:
            _check_inputs(location, line.get(INPUTS, {}), inputs_of(run))
        results[run] = line
    return results


def _check_inputs(location: str, recorded: Inputs, expected: Inputs) -> None:
    # The recorded inputs were read from JSON, which turns tuples into lists.
    expected = json.loads(json.dumps(expected))
    for name in {**expected, **recorded}:
        if recorded.get(name) != expected.get(name):
            raise UserError(
                f"{location}: {name} is {recorded.get(name)!r}, but {expected.get(name)!r} in this study; choose a "
                "different results file, or remove the line."
            )


def read_csv(path: Path, columns: Sequence[str]) -> list[dict[str, str]]:
    """Reads the lines of a CSV file; none if it does not exist.

    Raises:
      UserError: The file has other columns, so lines with these columns cannot be appended.
    """
    if not path.exists():
        return []
    with path.open(newline="") as file:
        reader = csv.DictReader(file)
        if (header := reader.fieldnames) is not None and tuple(header) != tuple(columns):
            raise UserError(
                f"{path} has the columns {', '.join(header)}, not {', '.join(columns)}; choose a different output file."
            )
        return list(reader)


def add_to_csv(path: Path, columns: Sequence[str], line: Mapping[str, Any]) -> None:
    """Appends a line to a CSV file. A new file starts with the columns."""
    with path.open("a", newline="") as file:
        writer = csv.DictWriter(file, columns)
        if not file.tell():
            writer.writeheader()
        writer.writerow(line)


def spread(scores: Sequence[float], *, percent: bool = True) -> str:
    """Formats scores as their mean and standard deviation, with one digit in percent, or else three digits."""
    scale, digits = (100, 1) if percent else (1, 3)
    deviation = f" ± {scale * statistics.stdev(scores):.{digits}f}" if len(scores) > 1 else ""
    return f"{scale * statistics.mean(scores):.{digits}f}{deviation}" if scores else ""


def run_parts(
    description: str | None,
    run_type: type[Run],
    tables: Callable[[dict[Run, dict[str, Any]]], Iterable[str]],
    parts: Sequence[Callable[[dict[Run, dict[str, Any]]], Iterable[Run]]],
    measure: Callable[[Run, afjax.Trunk, str], dict[str, Any]],
    task_of: Callable[[Run, str], afjax.TaskConfig],
    *,
    data: tuple[str, str] = ("--data", "folder with one folder per task"),
) -> None:
    """Runs the command line of a study, part by part.

    Args:
      description: The script's docstring.
      run_type: As in :func:`read_results`.
      tables: Formats the results, for ``--table``.
      parts: Functions that list the runs of each part, given the results of the earlier parts.
      measure: Trains a run on a trunk, with the data in a folder, and returns its results for :func:`add_missing`.
      task_of: Returns the task of a run, with the data in a folder. Its rows and the trunk are recorded as inputs.
      data: The flag for the folder, and its help.

    Raises:
      UserError: A line is from a different trunk or different rows.
    """
    flag, data_help = data
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(flag, dest="data", default="", help=data_help)
    parser.add_argument("--results", required=True, type=Path, help="output file with one line per run")
    parser.add_argument("--trunk", default="minilm")
    parser.add_argument("--table", action="store_true", help="print tables of the recorded runs, without training")
    arguments = parser.parse_args()
    results = read_results(arguments.results, run_type)
    if arguments.table:
        print("\n".join(tables(results)))
        return
    jax.config.update("jax_compilation_cache_dir", str(Path(tempfile.gettempdir()) / "afjax-studies-compiled"))
    trunk = afjax.load_trunk(arguments.trunk)
    trunk_input = {"trunk": trunk.sha256[:12]}

    @functools.cache
    def rows(task: afjax.TaskConfig) -> str:
        return " ".join(split.digest()[:12] for split in afjax.load_task(task).values())

    def inputs(run: Run) -> Inputs:
        return {**trunk_input, "rows": rows(task_of(run, arguments.data))}

    for run, line in results.items():
        expected = inputs(run) if INPUTS in line else trunk_input
        _check_inputs(f"{arguments.results}, {run}", line.get(INPUTS, FORMER_INPUTS), expected)

    def measure_with_inputs(run: Run) -> dict[str, Any]:
        return {**measure(run, trunk, arguments.data), INPUTS: inputs(run)}

    for part in parts:
        add_missing(arguments.results, part(results), results, measure_with_inputs)


def study_parser(description: str | None, results: Path) -> argparse.ArgumentParser:
    """Makes a parser with the flags of a study.

    Args:
      description: The script's docstring.
      results: The default results file.
    """
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="folder with one folder per task")
    parser.add_argument("--trunk", type=Path, help="folder that contains the encoder")
    parser.add_argument("--folder", type=Path, help="folder for stored adapters and unfinished runs")
    parser.add_argument("--results", type=Path, default=results, help=f"results file (bench/results/{results.name})")
    parser.add_argument("--table", action="store_true", help="print tables of the recorded runs, without training")
    return parser


def parse_study(parser: argparse.ArgumentParser) -> argparse.Namespace:
    """Parses the flags of :func:`study_parser`, and exits with a message if one is missing."""
    arguments = parser.parse_args()
    if not (arguments.table or (arguments.data and arguments.trunk and arguments.folder)):
        parser.error("--data, --trunk and --folder are required, unless --table is set")
    return arguments


def add_selection(parser: argparse.ArgumentParser, **allowed: Iterable[Any]) -> None:
    """Adds a flag for each field of a run, for :func:`selected_runs`.

    Args:
      parser: The parser.
      **allowed: ``{field: values}``. The field ``seed`` has the flag ``--seeds``, for example ``--seeds=0,1``.
    """
    for field, values in allowed.items():
        by_name = {str(value): value for value in values}

        def read(text: str, by_name: dict[str, Any] = by_name) -> tuple[Any, ...]:
            if unknown := [name for name in text.split(",") if name not in by_name]:
                raise argparse.ArgumentTypeError(f"{', '.join(unknown)}: choose from {', '.join(by_name)}")
            return tuple(by_name[name] for name in text.split(","))

        help_text = f"run only these {field}s, separated by commas (all)"
        parser.add_argument(f"--{field}s", type=read, default=(), help=help_text)


def selected_runs(parser: argparse.ArgumentParser, runs: Sequence[Run], arguments: argparse.Namespace) -> list[Run]:
    """Lists the runs that the flags of :func:`add_selection` select, with a flag for each field.

    Exits with a message if there is no such run.
    """
    chosen = {field.name: getattr(arguments, f"{field.name}s") for field in dataclasses.fields(runs[0])}
    selected = [
        run for run in runs if all(not values or getattr(run, field) in values for field, values in chosen.items())
    ]
    if not selected:
        given = " ".join(f"--{field}s={','.join(map(str, values))}" for field, values in chosen.items() if values)
        parser.error(f"no run of the study has {given}")
    return selected


def sources_to_repeat(
    runs: Sequence[Run],
    results: Collection[Run],
    sources: Callable[[Run], Iterable[Run]],
    is_stored: Callable[[Run], bool],
) -> set[Run]:
    """Finds the finished runs whose files are lost but still needed by other runs.

    Args:
      runs: The runs, in order. Sources come before the runs that read them.
      results: The runs that have a result.
      sources: Maps a run to the runs whose stored files it reads.
      is_stored: Whether a run's files exist. They can be missing, for example on a different machine.
    """
    repeated: set[Run] = set()
    for run in reversed(runs):
        if run not in results or run in repeated:
            repeated |= {source for source in sources(run) if source in results and not is_stored(source)}
    return repeated


def add_missing(
    path: Path,
    runs: Iterable[Run],
    results: dict[Run, dict[str, Any]],
    measure: Callable[[Run], dict[str, Any]],
    *,
    repeated: Collection[Run] = (),
) -> None:
    """Measures the runs that have no result yet.

    Writes and prints each result as soon as its run finishes.

    Args:
      path: The results file.
      runs: The runs, in order. Sources come before the runs that read them.
      results: The results so far. New ones are added.
      measure: Trains a run and returns its results, without the fields that identify the run.
      repeated: Finished runs to measure again. Their lines do not change.
    """
    add_missing_in_groups(
        path, ([run] for run in runs), results, lambda group: [measure(run) for run in group], repeated=repeated
    )


def add_missing_in_groups(
    path: Path,
    groups: Iterable[Sequence[Run]],
    results: dict[Run, dict[str, Any]],
    measure: Callable[[Sequence[Run]], Sequence[dict[str, Any]]],
    *,
    repeated: Collection[Run] = (),
) -> None:
    """Measures the runs that have no result yet, group by group.

    Writes and prints a group's results when all its runs have finished.

    Args:
      path, results, repeated: As in :func:`add_missing`.
      groups: The runs, in order. Sources come in an earlier group than the runs that read them.
      measure: Trains some runs of a group, and returns the results of each.
    """
    for group in groups:
        if missing := [run for run in group if run not in results or run in repeated]:
            for run, values in zip(missing, measure(missing), strict=True):
                _add(path, run, values, results)


def add_missing_in_processes(
    path: Path,
    runs: Sequence[Run],
    results: dict[Run, dict[str, Any]],
    make_measure: Callable[[], Callable[[Run], dict[str, Any]]],
    *,
    sources: Callable[[Run], Iterable[Run]],
    num_processes: int,
    repeated: Collection[Run] = (),
) -> None:
    """Measures the runs that have no result yet, several at a time.

    A run starts when its sources have finished. If a run fails, the runs that need its files are not started, and all
    other runs continue.

    Args:
      path, runs, results, repeated: As in :func:`add_missing`.
      make_measure: Opens the study in a new process, and returns ``measure`` as for :func:`add_missing`. Must be
        picklable.
      sources: Maps a run to the runs whose stored files it reads.
      num_processes: The number of processes.

    Raises:
      ExceptionGroup: Runs failed. The group contains their errors, each with a note that names the run.
    """
    waiting = [run for run in runs if run not in results or run in repeated]
    unfinished, running, failures = set(waiting), dict[Future[dict[str, Any]], Run](), list[Exception]()
    # JAX does not work in forked processes.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(num_processes, context, initializer=_open_study, initargs=(make_measure,)) as pool:
        while True:
            ready = [run for run in waiting if unfinished.isdisjoint(sources(run))]
            for run in ready[: num_processes - len(running)]:
                waiting.remove(run)
                running[pool.submit(_measure_in_process, run)] = run
            if not running:
                break
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                run = running.pop(future)
                try:
                    values = future.result()
                except Exception as error:
                    error.add_note(f"This error occurred in {run}.")
                    failures.append(error)
                    print(f"{run} failed: {error!r}", flush=True)
                else:
                    unfinished.remove(run)
                    _add(path, run, values, results)
    if failures:
        raise ExceptionGroup(f"{len(failures)} runs failed, and {len(waiting)} runs were not started", failures)


# Open the study once per worker process, because loading the trunk and the rows takes seconds.
_process_measure: Callable[[Any], dict[str, Any]] | None = None


def _open_study(make_measure: Callable[[], Callable[[Any], dict[str, Any]]]) -> None:
    global _process_measure
    _process_measure = make_measure()


def _measure_in_process(run: Any) -> dict[str, Any]:
    assert _process_measure is not None
    return _process_measure(run)


def _add(path: Path, run: Run, values: Mapping[str, Any], results: dict[Run, dict[str, Any]]) -> None:
    if run in results:
        return
    line = json.dumps({**dataclasses.asdict(run), **values})
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        file.write(f"{line}\n")
    results[run] = json.loads(line)
    print(line, flush=True)
