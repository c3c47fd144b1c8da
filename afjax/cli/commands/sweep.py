"""``afjax sweep``: runs a config over settings and seeds."""

import argparse
from typing import Any

from afjax.cli.parsers import add_command
from afjax.storage.paths import local_path

EXAMPLE = """\
examples:
  afjax sweep --config=single:task=rte,data=DATA/rte --workdir=runs/sweep-rte --seeds=0,1,2 \\
      --grid.train.learning_rate=1e-4,3e-4,1e-3 --grid.adapter.reduction_factor=16.0,64.0
  afjax sweep --config=single:task=rte,data=DATA/rte --workdir=runs/rte-seeds --seeds=0,1,2,3,4
  afjax sweep --config=experiment.py --workdir=runs/sweep --config.train.epochs=3

Without --grid, the config file can define the grid in get_sweep() -> {"train.learning_rate": [1e-4, 3e-4]}. Without
either, the experiment is run with each of --seeds.
To resume a stopped sweep, run the same command again; values and seeds may be added, and failed runs are tried again.
The exit code is 1 if a run failed."""


def add(commands: Any) -> None:
    """Adds the command to the parser's commands."""
    parser = add_command(
        commands,
        "sweep",
        "run a config over settings and seeds, and choose on dev",
        EXAMPLE,
        run=_run,
        dotted=("--config.", "--grid."),
    )
    parser.add_argument(
        "--config", required=True, metavar="NAME[:key=value,...]", help="the experiment: a built-in config or FILE.py"
    )
    parser.add_argument("--workdir", required=True, help="the sweep's own folder; its runs are within")
    parser.add_argument(
        "--seeds", default="0", metavar="SEED,...", help="random seeds; each setting is run with each seed (0)"
    )
    parser.add_argument(
        "--grid.SETTING",
        dest="_",
        metavar="VALUE,...",
        help="the values of one setting, as in --grid.train.epochs=3,10",
    )
    parser.add_argument("--adapters", default="", metavar="STORE", help="a store whose adapters every run starts with")
    parser.add_argument("--config.SETTING", dest="_", metavar="VALUE", help="overrides one setting of every run")


def _run(arguments: argparse.Namespace) -> int:
    from afjax.cli import sweep_runs
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
    outcomes = sweep_runs.run_sweep(planned, workdir)
    print("\n".join(["", *sweep_runs.report_lines(planned, outcomes, workdir)]))
    return 0 if all(outcome.score is not None for outcome in outcomes.values()) else 1
