"""One partition on one task: an adapter (default), the head alone, full fine-tuning, LayerNorms, upper layers.

afjax train --config=configs/single.py:task=rte,data=DATA/rte --workdir=runs/rte --store=runs/store
afjax train --config=configs/single.py:task=rte,data=DATA/rte,partition=full --workdir=runs/rte-full
"""

import ml_collections

# Peak learning rates; those of the adapters are for trunks of minilm's size.
LEARNING_RATES = {"adapter": 1e-3, "head": 1e-3, "full": 5e-5, "layernorm": 1e-3, "top_k": 5e-5}


def get_config(
    task: str = "entail", data: str = "builtin:entail", partition: str = "adapter", top_k: int = 0, seed: int = 0
) -> ml_collections.ConfigDict:
    config = ml_collections.ConfigDict()
    config.recipe = "single"
    config.trunk = "minilm"
    config.seed = seed
    config.name = task if partition == "adapter" else f"{task}-{partition}"
    # A folder with train, dev and labels.json; builtin:NAME; or tfds:NAME.
    config.task = {"name": task, "source": data}
    config.partition = partition
    config.top_k = top_k
    config.adapter = {"reduction_factor": 16.0}
    config.train = {
        "learning_rate": LEARNING_RATES[partition],
        "epochs": 6.0,
        "batch_size": 32,
        "max_length": 128,
        "buckets": (32, 48, 64, 96, 128),
        "warmup": 0.1,
        "patience": 3,
    }
    return config
