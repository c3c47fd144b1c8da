"""Times ``afjax plot spans`` against one evaluation per span of layers.

    python bench/spans.py
    python bench/spans.py --trunk=FOLDER --rows=200
    python bench/spans.py --commands

Evaluates dev rows of the built-in task "entail" after removing the adapters from each span of layers, with two methods:
one program with a mask per span, as in ``afjax plot spans``, and a loop that compiles and evaluates a smaller model per
span. Both times include compilation, without a persistent cache. Because of rounding, the accuracies may differ by at
most one row. The adapter and the head are random, because training does not change the cost.

``--commands`` compares the command lines instead: one ``afjax plot spans`` against one ``afjax eval`` per span, on all
400 dev rows. The times include starting Python and loading the trunk, and the commands use the persistent compilation
cache as usual.
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
    parser.add_argument("--commands", action="store_true", help="time the commands, each in a new process")
    arguments = parser.parse_args()
    if arguments.commands:
        time_commands(arguments.trunk)
        return
    task = afjax.TaskConfig(name="entail", source="builtin:entail")
    rows = afjax.load_task(task)["dev"].every(arguments.rows)
    task_model = random_model(afjax.load_trunk(arguments.trunk), task, rows.label_names)

    # Load the libraries and the tokenizer before the first measurement.
    task_model.evaluate(rows.every(1))

    begin = time.perf_counter()
    spans = score_spans(task_model, rows, batch_size=arguments.batch_size)
    program_s = time.perf_counter() - begin
    print(f"one program: {len(spans.without)} spans in {program_s:.1f} s", flush=True)

    begin = time.perf_counter()
    for first, last in spans.without:
        scores = without_span(task_model, first, last).evaluate(rows, batch_size=arguments.batch_size)
        # The two methods sum in a different order, so a row whose logits are nearly equal may change its prediction.
        assert abs(scores["accuracy"] - spans.without[first, last]["accuracy"]) < 1.5 / len(rows)
    loop_s = time.perf_counter() - begin
    print(f"one evaluation per span: {loop_s:.1f} s; one program is {loop_s / program_s:.1f} times as fast")


def time_commands(trunk: str) -> None:
    layers = range(afjax.load_trunk(trunk).config.num_layers)
    with tempfile.TemporaryDirectory() as folder:
        train = ["--config=configs/single.py:task=entail", "--config.train.max_steps=1", f"--config.trunk={trunk}"]
        run("train", *train, f"--workdir={folder}/run", f"--store={folder}/store")
        model = (f"--store={folder}/store", f"--trunk={trunk}", "--head=entail", "--source=builtin:entail")

        begin = time.perf_counter()
        run("plot", "spans", *model, "--adapter=entail", f"--output={folder}/spans")
        plot_s = time.perf_counter() - begin
        print(f"afjax plot spans: {plot_s:.1f} s", flush=True)

        begin = time.perf_counter()
        for first, last in layer_spans(layers):
            dropped = ",".join(map(str, range(first, last + 1)))
            everywhere = last - first + 1 == len(layers)
            run("eval", *model, *([] if everywhere else ["--adapter=entail", f"--drop_layers={dropped}"]))
        eval_s = time.perf_counter() - begin
        print(f"afjax eval for every span: {eval_s:.1f} s; afjax plot spans is {eval_s / plot_s:.1f} times as fast")


def run(*arguments: str) -> None:
    subprocess.run([sys.executable, "-m", "afjax", *arguments], check=True, capture_output=True)


def random_model(trunk: afjax.Trunk, task: afjax.TaskConfig, labels: tuple[str, ...]) -> TaskModel:
    """Creates a model with a random Pfeiffer adapter.

    The adapter's weights are large, so that removing it changes the scores.
    """
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
