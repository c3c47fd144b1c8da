"""``afjax tpu``: estimates the cost of a run on a TPU slice, without a TPU."""

import argparse
import dataclasses
import json
from typing import Any

from afjax.cli.parsers import add_command
from afjax.display.terminal import print_line
from afjax.errors import UserError

EXAMPLE = """\
examples:
  afjax tpu --topology=v5e:2x4 --trunk=bert-base --method=fusion --num_adapters=16 --batch_size=256 --max_length=128
  afjax tpu --topology=v5e:1x1 --method=adapter --batch_size=8 --max_length=64 --slots=8
  afjax tpu --topology=v5p:2x2x1 --config=adapter --config.trunk=bert-large --config.scan_layers=True

Nothing is run: the TPU compiler (pip install 'afjax[tpu]') compiles the real steps for that slice. The layers are
compiled as one loop, which takes less than half as long, unless --unrolled is given. With --config, the
config's setting scan_layers decides this instead. The batch size is the total over all chips."""


def add(commands: Any) -> None:
    """Adds the command to the parser's commands."""
    parser = add_command(
        commands, "tpu", "estimate a run's cost on a TPU slice, without a TPU", EXAMPLE, run=_run, dotted=("--config.",)
    )
    parser.add_argument("--topology", required=True, metavar="NAME", help="a slice, as in v5e:2x4 or v5p:2x2x1")
    parser.add_argument("--config", metavar="NAME[:key=value,...]", help="an experiment, instead of --method")
    parser.add_argument(
        "--config.SETTING=VALUE", dest="_", action="store_true", help="override one setting of the experiment"
    )
    # The flags from --trunk to --unrolled belong to --method. They have no defaults here, so that the command can tell
    # whether a flag was given; plan.MethodCase has the defaults.
    parser.add_argument("--trunk", help="a named size, or a folder with a config.json (bert-base)")
    methods = ("adapter", "fusion", "full", "head", "houlsby", "ia3", "lora", "pals", "pfeiffer")
    parser.add_argument("--method", choices=methods, help="the method; adapter is a Pfeiffer adapter")
    parser.add_argument("--num_adapters", type=int, help="number of fused adapters, for --method=fusion (16)")
    parser.add_argument("--num_tasks", type=int, help="number of tasks, for --method=pals (8)")
    parser.add_argument("--batch_size", type=int, help="rows per step over all chips (256)")
    parser.add_argument("--max_length", type=int, help="tokens per row (128)")
    parser.add_argument("--trunk_dtype", choices=("float32", "bfloat16"), help="dtype of the frozen trunk (bfloat16)")
    parser.add_argument("--remat", choices=("none", "matmuls", "layers"), help="activations to rematerialize (none)")
    parser.add_argument("--fsdp", type=int, help="number of devices to shard the parameters over; -1 for all (1)")
    parser.add_argument("--tensor", type=int, help="number of devices to shard each layer's units over; -1 for all (1)")
    parser.add_argument(
        "--unrolled", action="store_true", default=None, help="compile the layers as straight-line code"
    )
    parser.add_argument(
        "--slots", type=int, default=1, metavar="N", help="compile the steps of N runs as one, as in afjax sweep (1)"
    )
    parser.add_argument(
        "--no_fit",
        action="store_true",
        help="skip the search for the largest batch, or number of slots, that fits (faster)",
    )
    parser.add_argument("--json", action="store_true", help="print JSON on the last line")


def _run(arguments: argparse.Namespace) -> None:
    from afjax.cli.experiments import check_used, load_experiment, unused_adapter_lines
    from afjax.tpu import chips, plan, report

    topology = chips.parse_topology(arguments.topology)
    if bool(arguments.config) == bool(arguments.method):
        raise UserError("Pass either --config with an experiment, or --method with its flags.")
    if arguments.overrides and not arguments.config:
        raise UserError(f"--config.{arguments.overrides[0]} overrides a config; also pass --config.")
    flags = [field.name for field in dataclasses.fields(plan.MethodCase) if field.name != "method"]
    given = {name: value for name in flags if (value := getattr(arguments, name)) is not None}
    if arguments.config:
        if given:
            raise UserError(
                f"{', '.join(f'--{name}' for name in given)} can only be given with --method. To change a config's "
                "settings, override them, as in --config.trunk=bert-large or --config.train.batch_size=64."
            )
        experiment = load_experiment(arguments.config, arguments.overrides, reads_rows=False)
        check_used([experiment], arguments.overrides)
        for line in unused_adapter_lines(experiment, arguments.overrides):
            print_line(line)
        planned = plan.plan_experiment(experiment)
    else:
        for name, method in (("num_adapters", "fusion"), ("num_tasks", "pals")):
            if name in given and arguments.method != method:
                raise UserError(
                    f"--{name} only applies to --method={method}, not to --method={arguments.method}; leave it out."
                )
        planned = plan.plan_method(plan.MethodCase(method=arguments.method, **given))
    result = report.report(planned.with_slots(arguments.slots), topology, fit=not arguments.no_fit)
    print("\n".join(report.to_lines(result)))
    if arguments.json:
        print(json.dumps(report.to_json(result)))
