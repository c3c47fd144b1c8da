"""AdapterFusion's table 1 on minilm, scaled down for two CPU cores.

afjax train --config=configs/minilm_table.py:method=adapter,task=rte,data=DATA,seed=0 \\
    --workdir=runs/0/rte-adapter --store=runs/0/store
afjax train --config=configs/minilm_table.py:method=fusion,task=rte,data=DATA,seed=0 \\
    --workdir=runs/0/rte-fusion --store=runs/0/store
afjax train --config=configs/minilm_table.py:method=mt,data=DATA,seed=0 --workdir=runs/0/mt --store=runs/0/mt/store
afjax train --config=configs/minilm_table.py:method=fusion_mt,task=rte,data=DATA,seed=0,trunk=runs/0/mt/trunk \\
    --workdir=runs/0/rte-fusion-mt --store=runs/0/mt/store

The config covers all methods on eight tasks, with at most 2,500 train rows per task, except for mnli. A fusion combines
the adapters of all eight tasks, including the target's. Adapters missing from the store are trained first. For the
results, see docs/findings.md.
"""

import ml_collections

TASKS = ("mnli", "qqp", "sst2", "sick", "scitail", "mrpc", "rte", "cb")
# Maximum number of train rows, sampled at even intervals. mnli keeps all its rows, because they help the other tasks.
ROWS = 2500
# Epochs on the train split. cb gets more, because it has only a tenth of the rows.
EPOCHS = {"head": 2.0, "adapter": 3.0, "houlsby": 3.0, "layernorm": 3.0, "top_k": 3.0, "full": 3.0}
EPOCHS |= {"mt": 2.0, "fusion": 2.0, "fusion_mt": 2.0}
EPOCHS_OF_CB = {"head": 8.0, "adapter": 10.0, "houlsby": 10.0, "layernorm": 10.0, "top_k": 8.0, "full": 8.0}
EPOCHS_OF_CB |= {"fusion": 6.0, "fusion_mt": 6.0}
# Learning rates of the methods that train the trunk. The other methods use 1e-3.
TRUNK_LEARNING_RATES = {"full": 1e-4, "top_k": 1e-4, "mt": 1e-4}
# The number of steps for one epoch over the rows of all tasks, including mnli's 8,468 rows.
MULTI_TASK_STEPS = 728


def get_config(
    method: str = "adapter",
    task: str = "rte",
    data: str = "data",
    trunk: str = "minilm",
    size: int = 64,
    top_k: int = 0,
    seed: int = 0,
) -> ml_collections.ConfigDict:
    """Builds the config for a method on a task.

    size only affects houlsby. top_k is the number of top layers to train. fusion_mt needs the trunk saved by mt.
    """
    if method not in EPOCHS:
        raise ValueError(f"method is {method}, not one of {', '.join(EPOCHS)}")

    def task_config(name: str) -> dict:
        return {"name": name, "data_dir": data, "train_rows": 0 if name == "mnli" else ROWS}

    def train_config(method: str, task: str) -> dict:
        return {
            "learning_rate": TRUNK_LEARNING_RATES.get(method, 1e-3),
            "epochs": (EPOCHS_OF_CB if task == "cb" and method != "mt" else EPOCHS)[method],
            "batch_size": 32,
            "max_length": 128,
            "warmup": 0.1,
            # Disable early stopping. Dev is evaluated after each epoch, and the best epoch is kept.
            "patience": 0,
        }

    config = ml_collections.ConfigDict()
    config.trunk = trunk
    config.seed = seed
    config.adapter = {"preset": "houlsby", "size": size} if method == "houlsby" else {"reduction_factor": 16.0}
    config.head = {"pooling": "first"}
    config.train = train_config(method, task)
    if method == "mt":
        config.recipe = "multitask"
        config.partition = "adapter+trunk"
        config.tasks = {name: task_config(name) for name in TASKS}
        config.sampling = {"sampler": "annealed", "steps_per_epoch": MULTI_TASK_STEPS}
        return config
    config.name = task if method == "adapter" else f"{task}-{method}"
    config.task = task_config(task)
    if method.startswith("fusion"):
        config.recipe = "fusion"
        config.sources = {name: {"task": task_config(name), "train": train_config("adapter", name)} for name in TASKS}
    else:
        config.recipe = "single"
        config.partition = "adapter" if method == "houlsby" else method
        config.top_k = top_k
    return config
