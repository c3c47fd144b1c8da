"""Sequential fine-tuning: trains the trunk on one task after another.

afjax train --config=configs/sequential.py:tasks=mnli+mrpc+rte,data=DATA --workdir=runs/sequential --store=runs/store

After each task, the scores on all tasks so far are printed and written to runs/sequential/forgetting.csv. They show how
much the model forgets.
"""

import ml_collections

REGRESSIONS = {name: {"kind": "regression", "scale": 5.0} for name in ("stsb", "sick_r")}


def get_config(
    tasks: str = "mnli+mrpc+rte",
    data: str = "data",
    trunk: str = "bert-base-uncased",
    partition: str = "full",
    epochs: float = 3.0,
    learning_rate: float = 2e-5,
    max_length: int = 128,
    seed: int = 0,
) -> ml_collections.ConfigDict:
    config = ml_collections.ConfigDict()
    config.recipe = "sequential"
    config.trunk = trunk
    config.seed = seed
    config.name = "sequential"
    config.partition = partition
    # A list, because a ConfigDict sorts a dict's keys.
    config.tasks = [{"name": task, "data_dir": data, **REGRESSIONS.get(task, {})} for task in tasks.split("+")]
    config.head = {"pooling": "first"}
    config.train = {
        "learning_rate": learning_rate,
        "epochs": epochs,
        "batch_size": 32,
        "max_length": max_length,
        "warmup": 0.1,
    }
    return config
