"""``afjax train``: runs an experiment's config, or resumes its run."""

import argparse
from typing import Any

from afjax.cli.compilation_cache import use_compilation_cache
from afjax.cli.explain import explain, explained_memory_error
from afjax.cli.parsers import add_command
from afjax.cli.settings_help import settings_text
from afjax.display.terminal import print_line
from afjax.errors import UserError
from afjax.storage.paths import cache_folder, open_path

EXAMPLE = """\
examples:
  afjax train --config=quickstart --workdir=runs/quickstart
  afjax train --config=single:task=rte,data=DATA/rte --workdir=runs/rte --store=store \\
      --config.train.learning_rate=3e-4 --config.seed=1

NAME is a built-in config (afjax configs lists them), and FILE.py is your own.
To resume a stopped run, run the same command again.

All devices are used; --config.mesh.data, --config.mesh.fsdp and --config.mesh.tensor divide them. The hosts of a Cloud
TPU slice are discovered automatically. Elsewhere, start the same command on each host with its own --process_id:
  afjax train ... --workdir=gs://BUCKET/run --coordinator_address=HOST0:8476 --num_processes=2 --process_id=0

Exit codes: 0 done; 1 temporary Cloud Storage failure; 2 error to fix; 75 stopped by SIGTERM with all steps saved;
76 lost another host."""


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
        "--store", help="the store for trained models, or gs://... (the run's earlier store, or else WORKDIR/store)"
    )
    parser.add_argument(
        "--coordinator_address", default="", metavar="HOST:PORT", help="address of the first host, if there are several"
    )
    parser.add_argument("--num_processes", type=int, help="number of hosts")
    parser.add_argument("--process_id", type=int, help="this host's number, from 0")
    parser.add_argument(
        "--config.SETTING=VALUE",
        dest="_",
        action="store_true",
        help="override one setting, as in --config.train.epochs=3 (see the list below)",
    )


def _run(arguments: argparse.Namespace) -> None:
    from afjax.cli.experiments import check_used, load_experiment, unused_adapter_lines
    from afjax.cli.result_lines import result_lines
    from afjax.distributed import hosts
    from afjax.distributed.preemption import stopping_between_runs
    from afjax.train.experiment import run_experiment
    from afjax.train.workdir import find_store, is_claimed

    several = (arguments.coordinator_address, arguments.num_processes, arguments.process_id)
    # Handle SIGTERM after joining the job, because joining installs JAX's own handler.
    with hosts.Job(*several, explain=explain) as job, stopping_between_runs(job.leave):
        with hosts.all_hosts_or_raise():
            config = load_experiment(
                arguments.config,
                arguments.overrides,
                find_store=lambda: find_store(open_path(arguments.workdir), arguments.store),
            )
            try:
                check_used([config], arguments.overrides)
            except UserError:
                # A run that an earlier version began with such an override can be resumed.
                if not is_claimed(open_path(arguments.workdir)):
                    raise
        use_compilation_cache()
        if hosts.is_first_host():
            for line in unused_adapter_lines(config, arguments.overrides):
                print_line(line)
        with explained_memory_error():
            results = run_experiment(
                config,
                workdir=open_path(arguments.workdir),
                store_folder=arguments.store,
                cache_dir=cache_folder() / "tokenized",
            )
        if hosts.is_first_host():
            print("\n".join(result_lines(config, results, find_store(open_path(arguments.workdir)))))
