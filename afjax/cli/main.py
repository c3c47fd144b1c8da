"""The ``afjax`` command."""

import argparse
import contextlib
import dataclasses
import json
import os
import re
import signal
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from afjax.cli import exchange
from afjax.cli.flags import TPU_DEFAULTS, make_parser
from afjax.cli.stored_model import load_recorded_trunk, load_stored_model, rows_of, set_up_libraries
from afjax.errors import PREEMPTED, PreemptionError, UserError, did_you_mean
from afjax.storage.paths import cache_folder, client_errors, local_path, open_path

if TYPE_CHECKING:
    from etils import epath

    from afjax.config.experiment import ExperimentConfig
    from afjax.train.experiment import Result


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command; returns its exit code: 0, or 2 with one sentence for a mistake the user can put right.

    A sweep some of whose runs failed, and that told about them, gives 1, as does Cloud Storage that fails for a while;
    training that SIGTERM has stopped, and that has saved all it needs to go on, ``PREEMPTED``; training one of whose
    hosts was lost, ``HOST_LOST``.
    """
    # With TensorFlow installed epath would take that for gs://, which has errors of its own.
    os.environ.setdefault("EPATH_USE_TF", "false")
    parser = make_parser()
    argv = sys.argv[1:] if argv is None else argv
    if problem := _unknown_command(argv) or _empty_flag(argv):
        print(f"afjax: {problem}", file=sys.stderr)
        return 2
    arguments, rest = parser.parse_known_args(argv)
    # Flags with a setting's name behind the dot.
    prefixes = {"train": ("--config.",), "tpu": ("--config.",), "sweep": ("--config.", "--grid.")}.get(
        arguments.command, ()
    )
    if unknown := [word for word in rest if not word.startswith(prefixes)]:
        flag, flags = unknown[0].partition("=")[0], re.findall(r"--\w+", arguments.parser.format_help())
        near = did_you_mean(flag, flags) if flag.startswith("-") else ""
        arguments.parser.error(f"unknown arguments: {' '.join(unknown)}.{near}")
    arguments.overrides = [word.removeprefix("--config.") for word in rest if word.startswith("--config.")]
    arguments.grid = [word.removeprefix("--grid.") for word in rest if word.startswith("--grid.")]
    with _warnings_in_one_line():
        return _outcome(arguments)


def _unknown_command(argv: Sequence[str]) -> str | None:
    """The error about an unknown command or an unknown second word (``store lst``); None for a known command."""
    commands = [command.split() for command in COMMANDS]
    names = dict.fromkeys(words[0] for words in commands)
    if not argv or argv[0].startswith("-"):
        return None
    if argv[0] not in names:
        return f'"{argv[0]}" is not a command; give one of {", ".join(names)}.{did_you_mean(argv[0], names)}'
    actions = [" ".join(words) for words in commands if words[0] == argv[0] and len(words) == 2]
    given = " ".join(argv[:2])
    if not actions or len(argv) == 1 or argv[1].startswith("-") or given in actions:
        return None
    return f'"{given}" is not a command; give one of {", ".join(actions)}.{did_you_mean(given, actions)}'


def _empty_flag(argv: Sequence[str]) -> str | None:
    """Names the first flag whose value is empty, such as ``--adapter=$NAME`` with an unset variable.

    A setting's value may be empty.
    """
    for word, following in zip(argv, [*argv, None][1:], strict=True):
        flag, equals, value = word.partition("=")
        if flag.startswith("--") and "." not in flag and (not value if equals else following == ""):
            return f"{flag} is empty; give it a value, or leave it out."
    return None


@contextlib.contextmanager
def _warnings_in_one_line() -> Iterator[None]:
    """Prints afjax's own warnings as errors are printed, each once; other warnings keep Python's format."""
    printed: set[str] = set()
    original = warnings.formatwarning

    def one_line(
        message: Warning | str, category: type[Warning], filename: str, lineno: int, line: str | None = None
    ) -> str:
        if category is not UserWarning or not Path(filename).is_relative_to(Path(__file__).parents[1]):
            return original(message, category, filename, lineno, line)
        text = f"afjax: {' '.join(str(message).split())}\n"
        if text in printed:
            return ""
        printed.add(text)
        return text

    warnings.formatwarning = one_line
    try:
        yield
    finally:
        warnings.formatwarning = original


def _outcome(arguments: argparse.Namespace) -> int:
    """Runs the command, and says in a sentence what the user can put right."""
    try:
        code = COMMANDS[arguments.command](arguments)
        sys.stdout.flush()
        return code
    except BaseException as error:
        explained = explain(error)
        if explained is None:
            raise
        if isinstance(error, BrokenPipeError):
            # Who read what was printed (head, less) has seen enough; Python would say so again as it closes stdout.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        else:
            print(f"afjax: {explained[1]}", file=sys.stderr)
        return explained[0]


def explain(error: BaseException) -> tuple[int, str] | None:
    """Exit code and sentence of what the user can put right, or did; None for any other exception."""
    if isinstance(error, PreemptionError):
        return PREEMPTED, str(error)
    if isinstance(error, UserError):
        # One line, whatever a library's message inside looks like.
        return 2, " ".join(str(error).split())
    if isinstance(error, BrokenPipeError):
        return 128 + signal.SIGPIPE, "The reader of what this command prints has ended."
    if isinstance(error, OSError):
        return 2, f"{error.filename or 'A file'} cannot be used ({error.strerror or error})."
    if isinstance(error, KeyboardInterrupt):
        return 130, "interrupted; the same command goes on from the last checkpoint."
    if isinstance(error, client_errors()):
        told = " ".join(str(error).split()) or type(error).__name__
        # Credentials, permissions and names are the user's to put right; the rest may pass.
        code = 2 if getattr(error, "code", None) in (401, 403, 404) else 1
        return code, f"Google Cloud Storage does not answer as it should ({told}); try again."
    return None


def _train(arguments: argparse.Namespace) -> int:
    import jax

    from afjax.cli.configs import load_experiment
    from afjax.distributed import hosts
    from afjax.distributed.preemption import stopping_between_runs
    from afjax.train.experiment import run_experiment
    from afjax.train.workdir import find_store

    several = (arguments.coordinator_address, arguments.num_processes, arguments.process_id)
    # SIGTERM after joining, which brings a handler of JAX's own.
    with hosts.Job(*several, explain=explain) as job, stopping_between_runs(job.leave):
        with hosts.together():
            config = load_experiment(
                arguments.config,
                arguments.overrides,
                find_store=lambda: find_store(open_path(arguments.workdir), arguments.store),
            )
        set_up_libraries()
        try:
            results = run_experiment(
                config,
                workdir=open_path(arguments.workdir),
                store_folder=arguments.store,
                cache_dir=cache_folder() / "tokenised",
            )
        except jax.errors.JaxRuntimeError as error:
            reason = str(error).partition("\n")[0]
            if not reason.startswith("RESOURCE_EXHAUSTED"):
                raise
            raise UserError(
                f"The run does not fit the devices' memory ({reason}); take fewer rows (train.batch_size), "
                "remat=layers, trunk_dtype=bfloat16, or mesh.fsdp."
            ) from error
        if hosts.is_first_host():
            _print_results(config, results, find_store(open_path(arguments.workdir)))
    return 0


def _print_results(config: "ExperimentConfig", results: "Sequence[Result]", store_folder: "epath.Path") -> None:
    """Prints the table of an experiment's dev metrics, and where its artefacts are."""
    rows = [("trained", "on", "dev metric")]
    for result in results:
        value = result.metrics.get(result.main_metric)
        score = f"{result.main_metric} {'-' if value is None else f'{value:.4f}'}"
        rows.append((f"{result.name} ({result.kind})", result.task, score))
    if config.recipe == "multitask":
        mean = sum(result.metrics[result.main_metric] for result in results) / len(results)
        rows.append(("mean over the tasks", "", f"{mean:.4f}"))
    first, second, _ = (max(map(len, column)) for column in zip(*rows, strict=True))
    print()
    for trained, task, score in rows:
        print(f"{trained:{max(first, 32)}} {task:{max(second, 20)}} {score:>24}")
    print(f"\nStore: {store_folder}")


def _sweep(arguments: argparse.Namespace) -> int:
    from afjax.cli import sweep
    from afjax.cli.sweep_plan import plan

    workdir = local_path(arguments.workdir, "A sweep's --workdir")
    planned = plan(
        arguments.config,
        overrides=arguments.overrides,
        grid=arguments.grid,
        seeds=arguments.seeds,
        workdir=workdir,
        adapters=arguments.adapters,
    )
    outcomes = sweep.run_sweep(planned, workdir)
    print("\n".join(["", *sweep.report_lines(planned, outcomes, workdir)]))
    return 0 if all(outcome.score is not None for outcome in outcomes.values()) else 1


def _configs(arguments: argparse.Namespace) -> int:
    from afjax.cli import config_list

    lines = config_list.show_lines(arguments.config) if arguments.config else config_list.list_lines()
    print("\n".join(lines))
    return 0


def _adapterdrop(arguments: argparse.Namespace) -> int:
    from afjax.cli import adapterdrop

    task_model = load_stored_model(arguments)
    rows = rows_of(task_model, arguments, arguments.split)
    adapterdrop.drop(
        task_model, rows, from_top=arguments.from_top, batch_size=arguments.batch_size, output=arguments.output
    )
    return 0


def _prune(arguments: argparse.Namespace) -> int:
    from afjax.cli import adapterdrop

    if arguments.rank_rows < 1:
        raise UserError(f"--rank_rows is {arguments.rank_rows}; it must be at least 1.")
    if arguments.name and arguments.drop_layers:
        raise UserError("--drop_layers cannot be stored with a pruned fusion; leave it out, or --keep and --name.")
    task_model = load_stored_model(arguments)
    adapterdrop.prune(
        task_model,
        rows_of(task_model, arguments, arguments.split),
        rows_of(task_model, arguments, "train").every(arguments.rank_rows),
        batch_size=arguments.batch_size,
        output=arguments.output,
        keep=arguments.keep,
        name=arguments.name,
        store=arguments.store,
    )
    return 0


def _eval(arguments: argparse.Namespace) -> int:
    from afjax.data.notices import blank_texts, no_better_than_majority

    task_model = load_stored_model(arguments)
    rows = rows_of(task_model, arguments, arguments.split)
    scores = task_model.evaluate(
        rows, batch_size=arguments.batch_size, max_length=arguments.max_length, confusion=arguments.confusion
    )
    if arguments.confusion:
        print(scores["confusion"], file=sys.stderr)
        scores["confusion"] = scores["confusion"].to_dict()
    name = task_model.model.head_name
    for notice in (blank_texts(arguments.split, rows), no_better_than_majority(name, rows, scores)):
        if notice:
            print(f"Note: {notice}", file=sys.stderr)
    print(json.dumps({"split": arguments.split, "rows": len(rows), **scores}))
    return 0


def _predict(arguments: argparse.Namespace) -> int:
    from afjax.cli.predictions import FIELDS, write_predictions
    from afjax.tasks.prediction_rows import STANDARD, parse_keep, read_prediction_rows

    files = [os.path.realpath(path) for path in (arguments.input, arguments.output) if path != STANDARD]
    if len(files) == 2 and files[0] == files[1]:
        raise UserError(f"--input and --output are both {arguments.input}; give --output another file.")
    keep = parse_keep(arguments.keep, FIELDS)
    task_model = load_stored_model(arguments)
    rows = read_prediction_rows(
        arguments.input,
        task_model.task,
        task_model.text_columns,
        keep=keep,
        file_format=arguments.input_format,
    )
    write_predictions(
        arguments.output, task_model, rows, batch_size=arguments.batch_size, max_length=arguments.max_length
    )
    return 0


def _store(arguments: argparse.Namespace) -> int:
    from afjax.cli import store

    if (arguments.action == "show") != (arguments.name is not None):
        raise UserError('Give a NAME with "store show", and none with "store ls" and "store verify".')
    if arguments.action == "verify":
        lines, well = store.verify_lines(arguments.store)
        print("\n".join(lines))
        return 0 if well else 2
    lines = (
        store.list_lines(arguments.store)
        if arguments.action == "ls"
        else store.show_lines(arguments.store, arguments.name)
    )
    print("\n".join(lines))
    return 0


def _data(arguments: argparse.Namespace) -> int:
    from afjax.cli import data

    if (arguments.action == "show") != (arguments.task is not None):
        raise UserError('Give a TASK with "data show", and none with "data list".')
    if arguments.action == "list":
        print("\n".join(data.list_lines(as_json=arguments.json)))
        return 0
    from afjax.trunk.pretrained import load_trunk

    set_up_libraries()
    task = data.task_to_show(arguments.task, data_dir=arguments.data_dir, source=arguments.source)
    columns = {name: getattr(arguments, name) for name in ("text_a", "text_b", "label") if getattr(arguments, name)}
    task = dataclasses.replace(task, **columns)
    lines = data.show_lines(
        task,
        load_trunk(arguments.trunk),
        max_length=arguments.max_length,
        batch_size=arguments.batch_size,
        split=arguments.split,
        as_json=arguments.json,
    )
    print("\n".join(lines))
    return 0


def _submit(arguments: argparse.Namespace) -> int:
    from afjax.cli import submit
    from afjax.cli.submit_plan import plan

    if arguments.output.is_file():
        raise UserError(f"{arguments.output} is a file; give --output the name of a folder.")
    set_up_libraries()
    jobs = plan(
        arguments.benchmark,
        store_folder=arguments.store,
        data_dir=arguments.data_dir,
        names=arguments.names,
        tasks=arguments.tasks,
        split=arguments.split,
        partial=arguments.partial,
    )
    # A plan has at least one head. If the heads belong to different trunks, loading the models refuses the others.
    head = next(job.head for job in jobs if job.head)
    trunk = load_recorded_trunk(arguments.trunk, arguments.store, "heads", head)
    lines = submit.write(
        arguments.benchmark,
        jobs,
        store_folder=arguments.store,
        trunk=trunk,
        output=arguments.output,
        batch_size=arguments.batch_size,
        max_length=arguments.max_length,
        allow_mismatch=arguments.allow_mismatch,
    )
    print("\n".join(lines))
    return 0


def _report(arguments: argparse.Namespace) -> int:
    from afjax.cli import analysis_report

    set_up_libraries()
    return analysis_report.report(arguments)


def _compare(arguments: argparse.Namespace) -> int:
    from afjax.cli import analysis_report

    set_up_libraries()
    return analysis_report.compare(arguments)


def _bench(arguments: argparse.Namespace) -> int:
    from afjax.bench import step_time as bench

    if arguments.num_steps < 1:
        raise UserError(f"--num_steps is {arguments.num_steps}; it must be at least 1.")
    prepared = bench.prepare(
        trunk=arguments.trunk,
        method=arguments.method,
        mode=arguments.mode,
        num_adapters=arguments.num_adapters,
        batch_size=arguments.batch_size,
        max_length=arguments.max_length,
        scan_layers=arguments.scan_layers,
        trunk_dtype=arguments.trunk_dtype,
    )
    figures = bench.measure(prepared, num_steps=arguments.num_steps, batch_size=arguments.batch_size)
    print(
        f"{arguments.trunk}, {arguments.method}, {arguments.mode}: median step {figures['median_step_s']:.3f} s, "
        f"{figures['examples_per_s']:.1f} examples/s, compiled in {figures['compile_s']:.1f} s, "
        f"peak memory {figures['peak_memory_gb']:.2f} GB"
    )
    if arguments.json:
        print(json.dumps(figures))
    return 0


def _tpu(arguments: argparse.Namespace) -> int:
    from afjax.cli.configs import load_experiment
    from afjax.config.training import MeshConfig
    from afjax.tpu import chips, plan, report

    topology = chips.parse_topology(arguments.topology)
    if bool(arguments.config) == bool(arguments.method):
        raise UserError("Give either --config, an experiment, or --method with its numbers.")
    if arguments.overrides and not arguments.config:
        raise UserError(f"--config.{arguments.overrides[0]} overrides a config; give --config as well.")
    given = {name: value for name in TPU_DEFAULTS if (value := getattr(arguments, name)) is not None}
    if arguments.config:
        if given:
            raise UserError(
                f"{', '.join(f'--{name}' for name in given)}: only for --method; with --config override the config's "
                "own settings, as in --config.trunk=bert-large or --config.train.batch_size=64."
            )
        planned = plan.of_experiment(load_experiment(arguments.config, arguments.overrides, reads_rows=False))
    else:
        numbers = {**TPU_DEFAULTS, **given}
        planned = plan.of_method(
            trunk=numbers["trunk"],
            method=arguments.method,
            num_adapters=numbers["num_adapters"],
            num_tasks=numbers["num_tasks"],
            batch_size=numbers["batch_size"],
            max_length=numbers["max_length"],
            dtype=numbers["trunk_dtype"],
            scan_layers=not numbers["unrolled"],
            remat=numbers["remat"],
            mesh=MeshConfig(fsdp=numbers["fsdp"], tensor=numbers["tensor"]),
        )
    found = report.report(planned, topology, fit=not arguments.no_fit)
    print("\n".join(report.to_lines(found)))
    if arguments.json:
        print(json.dumps(report.to_json(found)))
    return 0


def _table(arguments: argparse.Namespace) -> int:
    from afjax.cli import analysis_tables

    return analysis_tables.table(arguments)


def _plot_runs(arguments: argparse.Namespace) -> int:
    from afjax.cli import analysis_tables

    return analysis_tables.plot(arguments)


def _plot_activations(arguments: argparse.Namespace) -> int:
    from afjax.cli import analysis_plots

    set_up_libraries()
    print("\n".join(analysis_plots.activations(arguments)))
    return 0


def _plot_spans(arguments: argparse.Namespace) -> int:
    from afjax.analysis.figures import check_output
    from afjax.cli import analysis_plots

    check_output(arguments.output)
    task_model = load_stored_model(arguments)
    print("\n".join(analysis_plots.spans(arguments, task_model, rows_of(task_model, arguments, arguments.split))))
    return 0


COMMANDS: Mapping[str, Callable[[argparse.Namespace], int]] = {
    "train": _train,
    "configs": _configs,
    "sweep": _sweep,
    "eval": _eval,
    "predict": _predict,
    "adapterdrop": _adapterdrop,
    "prune": _prune,
    "import adapterhub": exchange.import_adapterhub,
    "export adapterhub": exchange.export_adapterhub,
    **{f"store {action}": _store for action in ("ls", "show", "verify")},
    "store pack": exchange.pack,
    "store unpack": exchange.unpack,
    "store push": exchange.push,
    "store pull": exchange.pull,
    "data": _data,
    "submit": _submit,
    "export stablehlo": exchange.export_stablehlo,
    "report": _report,
    "compare": _compare,
    "table": _table,
    **{f"plot {figure}": _plot_runs for figure in ("differences", "tradeoff", "robustness", "search")},
    "plot activations": _plot_activations,
    "plot spans": _plot_spans,
    "tpu": _tpu,
    "bench": _bench,
    "import adapter-bert": exchange.import_adapter_bert,
    "import bert": exchange.import_bert,
    "import bert-n-pals": exchange.import_bert_n_pals,
}


if __name__ == "__main__":
    sys.exit(main())
