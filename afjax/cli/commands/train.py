"""``afjax train``: runs an experiment's config, or resumes its run."""

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from afjax.cli.explain import explain
from afjax.cli.parsers import add_command
from afjax.cli.settings_help import settings_text
from afjax.cli.stored_model import set_up_libraries
from afjax.display.tables import table_lines
from afjax.errors import UserError
from afjax.storage.paths import cache_folder, open_path

if TYPE_CHECKING:
    from etils import epath

    from afjax.config.experiment import ExperimentConfig
    from afjax.train.experiment import Result

EXAMPLE = """\
examples:
  afjax train --config=quickstart --workdir=runs/quickstart
  afjax train --config=single:task=rte,data=DATA/rte --workdir=runs/rte --store=store \\
      --config.train.learning_rate=3e-4 --config.seed=1

NAME is a built-in config (afjax configs lists them), FILE.py is your own.
To resume a stopped run, run the same command again.

All devices are used, as set by --config.mesh.data, --config.mesh.fsdp and --config.mesh.tensor. The hosts of a Cloud
TPU slice are discovered automatically. Elsewhere, start the same command on each host, with its own --process_id:
  afjax train ... --workdir=gs://BUCKET/run --coordinator_address=HOST0:8476 --num_processes=2 --process_id=0

Exit codes: 0 done; 1 Cloud Storage failed for a while; 2 an error to fix; 75 stopped by SIGTERM, all steps saved;
76 another host was lost."""


def add(commands: Any) -> None:
    """Adds the command to the parser's commands."""
    example = f"{EXAMPLE}\n\n{settings_text()}"
    parser = add_command(
        commands, "train", "run an experiment's config, or resume its run", example, run=_run, dotted=("--config.",)
    )
    parser.add_argument(
        "--config",
        required=True,
        metavar="NAME[:key=value,...]",
        help="the experiment: a built-in config, FILE.py, or WORKDIR/config.json",
    )
    parser.add_argument("--workdir", required=True, help="the run's own folder, or gs://...")
    parser.add_argument(
        "--store", help="the store for trained models, or gs://... (as when the run began; WORKDIR/store)"
    )
    parser.add_argument(
        "--coordinator_address", default="", metavar="HOST:PORT", help="address of the first host, if there are several"
    )
    parser.add_argument("--num_processes", type=int, help="how many hosts there are")
    parser.add_argument("--process_id", type=int, help="this host's number, from 0")
    parser.add_argument(
        "--config.SETTING",
        dest="_",
        metavar="VALUE",
        help="overrides one setting, as in --config.train.epochs=3 (see the list below)",
    )


def _run(arguments: argparse.Namespace) -> int:
    import jax

    from afjax.cli.configs import load_experiment
    from afjax.distributed import hosts
    from afjax.distributed.preemption import stopping_between_runs
    from afjax.train.experiment import run_experiment
    from afjax.train.workdir import find_store

    several = (arguments.coordinator_address, arguments.num_processes, arguments.process_id)
    # Handle SIGTERM after joining the job, because joining installs JAX's own handler.
    with hosts.Job(*several, explain=explain) as job, stopping_between_runs(job.leave):
        with hosts.all_hosts_or_raise():
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
                f"The run does not fit the devices' memory ({reason}); use fewer rows (train.batch_size), "
                "remat=layers, trunk_dtype=bfloat16, or mesh.fsdp."
            ) from error
        if hosts.is_first_host():
            _print_results(config, results, find_store(open_path(arguments.workdir)))
    return 0


def _print_results(config: "ExperimentConfig", results: "Sequence[Result]", store_folder: "epath.Path") -> None:
    """Prints the table of an experiment's dev metrics, and the store of its artefacts."""
    rows = [("trained", "on", "dev metric")]
    for result in results:
        value = result.metrics.get(result.main_metric)
        score = f"{result.main_metric} {'-' if value is None else f'{value:.4f}'}"
        rows.append((f"{result.name} ({result.kind})", result.task, score))
    if config.recipe == "multitask":
        mean = sum(result.metrics[result.main_metric] for result in results) / len(results)
        rows.append(("mean over the tasks", "", f"{mean:.4f}"))
    print("\n".join(["", *table_lines(rows, num_texts=2), "", f"Store: {store_folder}"]))
