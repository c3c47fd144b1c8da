"""Trains cases on a mesh of fake devices, as a single process or as one host.

Tests start this program. For each case, it writes the losses, the dev metrics, and all trained leaves by path to
``NAME.npz``.
"""

import argparse
import dataclasses
import itertools
import json
import os
import resource
import signal
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np

from afjax.cli.explain import explain
from afjax.config.adapters import ADAPTER_PRESETS, PalConfig
from afjax.config.methods import FusionMethod, Method, MultitaskMethod
from afjax.config.tasks import TaskConfig
from afjax.config.training import MeshConfig, SamplingConfig, TrainConfig
from afjax.distributed import hosts
from afjax.distributed.preemption import stopping_between_runs
from afjax.distributed.sharding import make_mesh
from afjax.errors import PREEMPTED, PreemptionError, UserError
from afjax.tasks.load import rows_from_lists
from afjax.train.fusion import train_fusion
from afjax.train.multitask import train_multitask
from afjax.train.options import RunOptions
from afjax.train.single import train_single
from afjax.train.single_run import SingleRun
from afjax.trees import flatten, tree_digest
from afjax.trunk.pretrained import Trunk, load_trunk

NUMBERS = ("two", "three", "four", "five", "six", "seven", "eight", "nine")
WORDS = ("all", "most", "some", "none")


def rows(first: int, last: int) -> Any:
    """Makes the rows ``first`` to ``last - 1`` of a classification task.

    The label says whether the first word of a sentence means many or few.
    """
    texts = [
        (f"{word} of the {number} and the {other}", word) for number in NUMBERS for other in NUMBERS for word in WORDS
    ]
    labels = ["many" if word in ("all", "most") else "few" for _, word in texts]
    return rows_from_lists([text for text, _ in texts[first:last]], labels[first:last], label_names=("few", "many"))


DATA = {"train": rows(0, 160), "dev": rows(160, 229)}


def train(case: str, trunk: Any, workdir: Path, config: TrainConfig, **shared: Any) -> dict[str, Any]:
    """Trains a case. Returns its trained leaves and its metrics by path."""
    if case in ("full", "multitask"):
        # Use class weights to test that the loss is divided by the sum of weights over the rows of all devices.
        config = dataclasses.replace(config, class_weights={"many": 3.0}, label_smoothing=0.1)
    task, given = TaskConfig(name="quantity"), {"workdir": workdir, "config": config, **shared}
    if case == "multitask":
        tasks = (task, TaskConfig(name="other"))
        data = {"quantity": DATA, "other": {"train": rows(80, 250), "dev": rows(0, 21)}}
        sampling = SamplingConfig(steps_per_epoch=10)
        adapter = PalConfig(size=8, num_heads=2)
        models = train_multitask(
            trunk, tasks, data, method=MultitaskMethod(adapter=adapter, sampling=sampling), **given
        )
    elif case == "fusion":
        store = workdir.parent / "store"
        models = {
            "fusion": train_fusion(trunk, task, DATA, FusionMethod(adapters=("first", "second"), store=store), **given)
        }
    else:
        partition = "full" if case == "full" else "adapter"
        small = {name: dataclasses.replace(ADAPTER_PRESETS[name], size=4) for name in ("pfeiffer", "houlsby")}
        adapter = {**small, "lora": ADAPTER_PRESETS["lora_all"]}.get(case, small["pfeiffer"])
        models = {case: train_single(trunk, task, DATA, method=Method(partition=partition, adapter=adapter), **given)}
    leaves: dict[str, Any] = {}
    for name, model in models.items():
        leaves |= {f"{name}/{path}": leaf for path, leaf in flatten(model.params).items()}
        if model.trunk is not trunk:
            leaves |= {f"trunk/{path}": leaf for path, leaf in flatten(model.trunk.params).items()}
        leaves |= {f"metrics/{name}/{metric}": np.float64(value) for metric, value in model.metrics.items()}
    return leaves


def deeper(trunk: Trunk) -> Trunk:
    """Returns the trunk with twice the number of layers.

    The compiled loop does not contain the last layer, so with two layers it would have only one iteration.
    """
    params = {**trunk.params, "layers": jax.tree.map(lambda leaf: np.concatenate([leaf, leaf]), trunk.params["layers"])}
    config = dataclasses.replace(trunk.config, num_layers=2 * trunk.config.num_layers)
    return dataclasses.replace(trunk, config=config, params=params, sha256=tree_digest(params))


def make_sources(trunk: Any, folder: Path) -> None:
    """Trains two adapters for the fusion case, and saves them in ``folder/store``."""
    config = TrainConfig(learning_rate=1e-2, max_steps=2, batch_size=8, max_length=12, buckets=(12,))
    for seed, name in enumerate(("first", "second")):
        adapter = dataclasses.replace(ADAPTER_PRESETS["pfeiffer"], size=4)
        model = train_single(
            trunk,
            TaskConfig(name=name),
            DATA,
            workdir=folder / name,
            config=config,
            method=Method(adapter=adapter),
            options=RunOptions(seed=seed),
        )
        model.save(folder / "store", overwrite=True)


def inject(fault: str, process_id: int | None) -> None:
    """Prepares a fault on one host.

    Args:
      fault: ``KIND:HOST:NUMBER``, or empty for no fault. After step NUMBER the host raises UserError (``refuse``) or
        RuntimeError (``crash``), or gets a signal (``interrupt``, ``term``, ``kill``). With ``full``, the host's files
        cannot have more than NUMBER bytes. With ``stop``, the host gets SIGTERM before it trains.
      process_id: The number of this host.
    """
    kind, host, number = (fault or "none:-1:0").split(":")
    if int(host) != process_id:
        return
    if kind == "full":
        resource.setrlimit(resource.RLIMIT_FSIZE, (int(number), int(number)))
    elif kind == "stop":
        os.kill(os.getpid(), signal.SIGTERM)
    signals = {"interrupt": signal.SIGINT, "term": signal.SIGTERM, "kill": signal.SIGKILL}
    original, steps = SingleRun.extra_metrics, itertools.count(1)

    def extra_metrics(self: SingleRun, batch: Any) -> dict[str, float]:
        if next(steps) == int(number):
            if kind == "refuse":
                raise UserError("This row cannot be read.")
            if kind == "crash":
                raise RuntimeError("This host is broken.")
            if kind in signals:
                os.kill(os.getpid(), signals[kind])
        return original(self, batch)

    SingleRun.extra_metrics = extra_metrics  # type: ignore[method-assign]


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--trunk", required=True)
    parser.add_argument("--folder", required=True, type=Path)
    parser.add_argument("--runs", required=True, help="CASE:DATA,FSDP,TENSOR[:scan] ...")
    parser.add_argument("--name", default="", help="name of the run, to resume the run on another mesh")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--checkpoint_every", type=int, default=0)
    parser.add_argument("--prng", default="threefry2x32")
    parser.add_argument("--coordinator_address", default="")
    parser.add_argument("--num_processes", type=int)
    parser.add_argument("--process_id", type=int)
    parser.add_argument("--learning_rate", type=float, default=1e-3)
    parser.add_argument("--fault", default="", help="KIND:HOST:NUMBER, see inject")
    arguments = parser.parse_args(argv)
    # Restore the handler of SIGINT, because a shell disables it for tests that run in the background.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    multi_host = (arguments.coordinator_address, arguments.num_processes, arguments.process_id)
    try:
        with hosts.Job(*multi_host, explain=explain) as job, stopping_between_runs(job.leave):
            train_all(arguments)
    except PreemptionError as error:
        print(f"afjax: {error}", file=sys.stderr)
        return PREEMPTED
    return 0


def train_all(arguments: argparse.Namespace) -> None:
    """Trains all cases, and writes their results."""
    trunk = load_trunk(arguments.trunk)
    if "fusion" in arguments.runs:
        make_sources(trunk, arguments.folder)
    for run in arguments.runs.split():
        case, sizes, *more = run.split(":")
        data, fsdp, tensor = map(int, sizes.split(","))
        devices = jax.devices()[: data * fsdp * tensor]
        mesh = make_mesh(MeshConfig(data=data, fsdp=fsdp, tensor=tensor), devices)
        config = TrainConfig(
            learning_rate=arguments.learning_rate,
            max_steps=arguments.steps,
            batch_size=16,
            max_length=12,
            buckets=(12,),
            eval_every=10,
            checkpoint_every=arguments.checkpoint_every,
            prng=arguments.prng,
        )
        name = arguments.name or run.replace(":", "-").replace(",", "x")
        workdir = arguments.folder / name
        scan = "scan" in more
        inject(arguments.fault, arguments.process_id)
        leaves = train(
            case, deeper(trunk) if scan else trunk, workdir, config, options=RunOptions(mesh=mesh, scan_layers=scan)
        )
        if hosts.is_first_host():
            lines = (workdir / "metrics.jsonl").read_text().splitlines()
            losses = [json.loads(line)["loss"] for line in lines if "loss" in json.loads(line)]
            np.savez(arguments.folder / f"{name}.npz", losses=np.array(losses), **leaves)
            print(f"{name} done", flush=True)
