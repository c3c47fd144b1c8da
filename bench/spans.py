"""What one program over masks saves when the adapters of every span of layers are removed (``afjax plot spans``).

    python bench/spans.py
    python bench/spans.py --trunk=FOLDER --rows=400

Scores the dev rows of a built-in task without each span, twice: as ``afjax plot spans`` does, and as a loop of runs,
each with a model that does not have those adapters and is compiled. Compilation counts in both, and no compiled program
is kept from one to the other; reading the trunk and starting Python, which a loop of commands would do each time, do
not. The scores must be equal. Adapters and head are random, which costs the same as trained ones.
"""

import argparse
import dataclasses
import time

import jax
import numpy as np

import afjax
from afjax.analysis.spans import score_spans
from afjax.architecture import AdapterConfig, HeadConfig
from afjax.model.adapters import init_adapter
from afjax.model.heads import init_head
from afjax.model.model import Model
from afjax.task_model import TaskModel


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trunk", default="minilm")
    parser.add_argument("--rows", type=int, default=64, help="dev rows (64)")
    parser.add_argument("--batch_size", type=int, default=32)
    arguments = parser.parse_args()
    task = afjax.TaskConfig(name="entail", source="builtin:entail")
    rows = afjax.load_task(task)["dev"].every(arguments.rows)
    task_model = random_model(afjax.load_trunk(arguments.trunk), task, rows.label_names)

    task_model.evaluate(rows.every(1))  # libraries and the tokenizer are loaded before either is timed

    begin = time.perf_counter()
    found = score_spans(task_model, rows, batch_size=arguments.batch_size)
    together = time.perf_counter() - begin
    print(f"one program: {len(found.without)} spans in {together:.1f} s", flush=True)

    begin = time.perf_counter()
    for first, last in found.without:
        scores = without_span(task_model, first, last).evaluate(rows, batch_size=arguments.batch_size)
        # Sums are in another order: a row whose logits are all but equal may change sides.
        assert abs(scores["accuracy"] - found.without[first, last]["accuracy"]) < 1.5 / len(rows)
    alone = time.perf_counter() - begin
    print(f"a loop of runs: {alone:.1f} s; one program is {alone / together:.1f} times as fast")


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
