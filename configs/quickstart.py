"""Both stages on built-in tasks: adapters for two source tasks, and their fusion for a target task with 200 rows.

afjax train --config=configs/quickstart.py --workdir=runs/quickstart

The target's own adapter is trained for comparison only. If it were fused too, the fusion would attend only to it,
because it has memorized the 200 rows.
"""

import ml_collections


def get_config(seed: int = 0) -> ml_collections.ConfigDict:
    config = ml_collections.ConfigDict()
    config.recipe = "fusion"
    config.trunk = "minilm"
    config.seed = seed
    config.task = {"name": "target", "source": "builtin:target"}
    config.adapter = {"reduction_factor": 16.0}
    # Rows of these tasks have at most 32 tokens.
    shared = {"max_length": 32, "buckets": (32,), "learning_rate": 2e-3, "warmup": 0.0}
    of_target = {**shared, "batch_size": 16, "eval_every": 39}
    config.sources = {
        "entail": {"task": {"source": "builtin:entail"}, "train": {**shared, "epochs": 2.0}},
        "paraphrase": {"task": {"source": "builtin:paraphrase"}, "train": {**shared, "epochs": 4.0}},
        "target": {"task": {"source": "builtin:target"}, "train": {**of_target, "epochs": 12.0}},
    }
    config.fused = ("entail", "paraphrase")
    config.head = {"pooling": "first"}
    config.train = {**of_target, "learning_rate": 1e-3, "epochs": 6.0}
    return config
