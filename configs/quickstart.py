"""Both stages of AdapterFusion on small built-in tasks.

afjax train --config=configs/quickstart.py --workdir=runs/quickstart

Stage 1 trains two source adapters. Stage 2 fuses them for a target with 200 train rows. The target's adapter is trained
only for comparison. If it were fused too, the fusion would attend to nothing else, because that adapter has memorized
the 200 rows.
"""

import ml_collections


def get_config(seed: int = 0) -> ml_collections.ConfigDict:
    config = ml_collections.ConfigDict()
    config.recipe = "fusion"
    config.trunk = "minilm"
    config.seed = seed
    config.task = {"name": "target", "source": "builtin:target"}
    config.adapter = {"reduction_factor": 16.0}
    # No row of these tasks is longer than 32 tokens.
    shared = {"max_length": 32, "buckets": (32,), "learning_rate": 2e-3, "warmup": 0.0}
    target = {**shared, "batch_size": 16, "eval_every": 39}
    config.sources = {
        "entail": {"task": {"source": "builtin:entail"}, "train": {**shared, "epochs": 2.0}},
        "paraphrase": {"task": {"source": "builtin:paraphrase"}, "train": {**shared, "epochs": 4.0}},
        "target": {"task": {"source": "builtin:target"}, "train": {**target, "epochs": 12.0}},
    }
    config.fused = ("entail", "paraphrase")
    config.head = {"pooling": "first"}
    config.train = {**target, "learning_rate": 1e-3, "epochs": 6.0}
    return config
