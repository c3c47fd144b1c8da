"""AdapterFusion of eight tasks' adapters for one of them; adapters the store lacks are trained first.

afjax train --config=configs/fusion.py:target=rte,data=DATA --workdir=runs/fusion-rte --store=runs/store
"""

import ml_collections

# Passes over each source's train split; the pass with the best dev score is kept.
SOURCE_EPOCHS = {
    "cb": 15.0,
    "rte": 6.0,
    "mrpc": 6.0,
    "sick": 6.0,
    "scitail": 6.0,
    "mnli": 4.0,
    "boolq": 3.0,
    "qqp": 2.0,
}


def get_config(target: str = "rte", data: str = "data", seed: int = 0) -> ml_collections.ConfigDict:
    config = ml_collections.ConfigDict()
    config.recipe = "fusion"
    config.trunk = "minilm"
    config.seed = seed
    # data is a folder of folders, one a task, each with train, dev and labels.json.
    config.task = {"name": target, "source": f"{data}/{target}"}
    config.adapter = {"reduction_factor": 16.0}
    shared = {"batch_size": 32, "max_length": 128, "buckets": (32, 48, 64, 96, 128), "warmup": 0.1}
    config.sources = {
        task: {"task": {"source": f"{data}/{task}"}, "train": {**shared, "learning_rate": 1e-3, "epochs": epochs}}
        for task, epochs in SOURCE_EPOCHS.items()
    }
    config.train = {**shared, "learning_rate": 1e-4, "epochs": 6.0, "patience": 3}
    return config
