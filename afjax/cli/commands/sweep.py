"""``afjax sweep``: trains a config over settings and seeds."""

import argparse
from typing import Any

from afjax.cli.parsers import add_command, file_name, flags
from afjax.config.from_dict import check_value
from afjax.config.ranges import PositiveInt
from afjax.errors import UserError
from afjax.storage.paths import local_path

EXAMPLE = """\
examples:
  afjax sweep --config=single:task=rte,data=DATA/rte --workdir=runs/sweep-rte --seeds=0,1,2 \\
      --grid.train.learning_rate=1e-4,3e-4,1e-3 --grid.adapter.reduction_factor=16.0,64.0
  afjax sweep --config=single:task=rte,data=DATA/rte --workdir=runs/rte-seeds --seeds=0,1,2,3,4
  afjax sweep --config=experiment.py --workdir=runs/sweep --config.train.epochs=3

Without --grid, the config file can define the grid in get_sweep() -> {"train.learning_rate": [1e-4, 3e-4]}. Without
either, the experiment is run once per seed.
All runs train in one process, which loads the trunk once and compiles identical programs once. Each run has its own
workdir, with its output in log.txt. --processes=N trains in N processes, each on its own TPU chip, or on its part of
the GPUs and CPU cores. --hosts=N --host=I trains part I of N of the runs: start the command on each of N machines, with
I from 0 to N - 1. --isolate starts a process per run, so that a crash ends only one run.
To resume a stopped sweep, run the same command again; failed runs are retried. Values and seeds may be added, and
those whose runs have not begun may be removed.
The exit code is 1 if a run failed."""


def add(commands: Any) -> None:
    """Adds the command to the parser's commands."""
    parser = add_command(
        commands,
        "sweep",
        "train a config over settings and seeds, and compare dev scores",
        EXAMPLE,
        run=_run,
        dotted=("--config.", "--grid."),
    )
    parser.add_argument(
        "--config", required=True, metavar="NAME[:key=value,...]", help="the experiment: a built-in config or FILE.py"
    )
    parser.add_argument("--workdir", required=True, help="the sweep's own folder, which will contain its runs")
    parser.add_argument("--seeds", default="0", metavar="SEED,...", help="random seeds to train each setting with (0)")
    parser.add_argument(
        "--grid.SETTING=VALUE,...",
        dest="_",
        action="store_true",
        help="values of one setting, as in --grid.train.epochs=3,10",
    )
    parser.add_argument(
        "--slots", type=int, default=1, metavar="N", help="train N runs at a time, in shared steps if possible (1)"
    )
    parser.add_argument(
        "--processes", type=int, default=1, metavar="N", help="train in N processes, each on a part of the machine (1)"
    )
    parser.add_argument("--hosts", type=int, metavar="N", help="divide the runs between N hosts (1)")
    parser.add_argument("--host", type=int, metavar="I", help="this host's number, from 0 to N - 1")
    parser.add_argument("--isolate", action="store_true", help="train each run in its own process")
    parser.add_argument(
        "--adapters", type=file_name, default="", metavar="STORE", help="a store of adapters to copy to every run"
    )
    parser.add_argument(
        "--config.SETTING=VALUE", dest="_", action="store_true", help="override one setting of every run"
    )


def _run(arguments: argparse.Namespace) -> int:
    from afjax.cli import sweep_runs
    from afjax.cli.sweep_plan import plan
    from afjax.cli.sweep_results import report_lines
    from afjax.distributed.parts import check_processes, find_devices

    check_value(PositiveInt, arguments.slots, "--slots")
    check_value(PositiveInt, arguments.processes, "--processes")
    for flag, value in (("--slots", arguments.slots), ("--processes", arguments.processes)):
        if arguments.isolate and value > 1:
            raise UserError(f"--isolate trains one run at a time; leave out --isolate or {flag}={value}.")
    if arguments.hosts is None and arguments.host is not None:
        raise UserError(
            f"--host={arguments.host} is given without --hosts; add the number of hosts, as in --hosts=4 --host=0."
        )
    arguments.hosts = check_value(PositiveInt, 1 if arguments.hosts is None else arguments.hosts, "--hosts")
    if (arguments.hosts > 1 and arguments.host is None) or not 0 <= (arguments.host or 0) < arguments.hosts:
        given = "is missing" if arguments.host is None else f"is {arguments.host}"
        raise UserError(
            f"--hosts is {arguments.hosts}, and --host {given}; pass the number of hosts N and this host's number from "
            "0 to N - 1, as in --hosts=4 --host=0."
        )
    devices = find_devices()
    if arguments.isolate and arguments.hosts > 1 and devices.tpu_chips:
        raise UserError("With --isolate, a process claims the TPU chips of all hosts; leave out --isolate or --hosts.")
    if arguments.processes > 1:
        check_processes(arguments.processes, devices)
    workdir = local_path(arguments.workdir, "A sweep's --workdir")
    if arguments.hosts > 1:
        # Hosts that share a disk must not write the same files.
        workdir /= f"host-{arguments.host}-of-{arguments.hosts}"
    options = flags(arguments, "overrides", "grid", "seeds", "adapters")
    planned = plan(arguments.config, workdir=workdir, **options)
    options = flags(arguments, "slots", "processes", "isolate")
    outcomes = sweep_runs.run_sweep(planned, workdir, host=arguments.host or 0, num_hosts=arguments.hosts, **options)
    print("\n".join(["", *report_lines(planned, outcomes, workdir)]))
    return 0 if all(outcome.score is not None for outcome in outcomes.values()) else 1
