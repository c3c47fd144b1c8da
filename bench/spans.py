"""What one program over masks saves when the adapters of every span of layers are removed (``afjax plot spans``).

    python bench/spans.py
    python bench/spans.py --trunk=FOLDER --rows=200
    python bench/spans.py --commands

Scores the dev rows of a built-in task without each span, in two ways: like ``afjax plot spans``, and in a loop that
compiles and runs a model without those adapters for each span. Both times include compilation, and compiled programs
are not kept in between. The scores must be equal. The adapters and the head are random, which costs the same as trained
ones.

With ``--commands``, both sides are the commands that a user would type: ``afjax plot spans``, and ``afjax eval`` for
every span. All 400 dev rows are scored, the times include starting Python and reading the trunk, and compiled programs
are kept on disk from one command to the next, as usual.
"""

import argparse
import dataclasses
import subprocess
import sys
import tempfile
import time

import jax
import numpy as np

import afjax
from afjax.adapters.kinds import init_adapter
from afjax.analysis.spans import layer_spans, score_spans
from afjax.config.adapters import AdapterConfig
from afjax.config.heads import HeadConfig
from afjax.model.heads import init_head
from afjax.model.model import Model
from afjax.model.task_model import TaskModel


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trunk", default="minilm")
    parser.add_argument("--rows", type=int, default=64, help="dev rows (64)")
    parser.add_argument("--batch_size", type=int, default=32)
    parser.add_argument("--commands", action="store_true", help="time commands, each a process of its own")
    arguments = parser.parse_args()
    if arguments.commands:
        time_commands(arguments.trunk)
        return
    task = afjax.TaskConfig(name="entail", source="builtin:entail")
    rows = afjax.load_task(task)["dev"].every(arguments.rows)
    task_model = random_model(afjax.load_trunk(arguments.trunk), task, rows.label_names)

    task_model.evaluate(rows.every(1))  # libraries and the tokenizer are loaded before either way is timed

    begin = time.perf_counter()
    found = score_spans(task_model, rows, batch_size=arguments.batch_size)
    together = time.perf_counter() - begin
    print(f"one program: {len(found.without)} spans in {together:.1f} s", flush=True)

    begin = time.perf_counter()
    for first, last in found.without:
        scores = without_span(task_model, first, last).evaluate(rows, batch_size=arguments.batch_size)
        # Sums have another order, so the prediction may change for a row whose logits are nearly equal.
        assert abs(scores["accuracy"] - found.without[first, last]["accuracy"]) < 1.5 / len(rows)
    alone = time.perf_counter() - begin
    print(f"a loop of runs: {alone:.1f} s; one program is {alone / together:.1f} times as fast")


def time_commands(trunk: str) -> None:
    layers = range(afjax.load_trunk(trunk).config.num_layers)
    with tempfile.TemporaryDirectory() as folder:
        train = ["--config=configs/single.py:task=entail", "--config.train.max_steps=1", f"--config.trunk={trunk}"]
        run("train", *train, f"--workdir={folder}/run", f"--store={folder}/store")
        model = (f"--store={folder}/store", f"--trunk={trunk}", "--head=entail", "--source=builtin:entail")

        begin = time.perf_counter()
        run("plot", "spans", *model, "--adapter=entail", f"--output={folder}/spans")
        together = time.perf_counter() - begin
        print(f"afjax plot spans: {together:.1f} s", flush=True)

        begin = time.perf_counter()
        for first, last in layer_spans(layers):
            dropped = ",".join(map(str, range(first, last + 1)))
            everywhere = last - first + 1 == len(layers)
            run("eval", *model, *([] if everywhere else ["--adapter=entail", f"--drop_layers={dropped}"]))
        alone = time.perf_counter() - begin
        print(f"afjax eval for every span: {alone:.1f} s; the one command is {alone / together:.1f} times as fast")


def run(*words: str) -> None:
    subprocess.run([sys.executable, "-m", "afjax", *words], check=True, capture_output=True)


def random_model(trunk: afjax.Trunk, task: afjax.TaskConfig, labels: tuple[str, ...]) -> TaskModel:
    """A Pfeiffer adapter far enough from doing nothing that removing it is seen in the scores."""
    config = AdapterConfig(init_scale=0.1)
    head = init_head(jax.random.key(1), HeadConfig(), len(labels), trunk=trunk.params)
    adapter = init_adapter(jax.random.key(0), config, trunk.config)
    return TaskModel(
        trunk=trunk,
        model=Model(trunk=trunk.config, head_name="head", adapters=(("adapter", config),)),
        params=jax.tree.map(np.asarray, {"adapters": {"adapter": adapter}, "fusion": {}, "heads": {"head": head}}),
        task=task,
        labels=labels,
        metrics={},
        seed=0,
        max_length=32,
    )


def without_span(task_model: TaskModel, first: int, last: int) -> TaskModel:
    if last - first + 1 < task_model.trunk.config.num_layers:
        return task_model.without_layers(range(first, last + 1))
    return dataclasses.replace(task_model, model=dataclasses.replace(task_model.model, adapters=()))


if __name__ == "__main__":
    main()
