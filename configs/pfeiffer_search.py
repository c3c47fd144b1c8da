"""AdapterFusion, appendix A.2: where in a layer an adapter, LayerNorms and residual belong; one task, BERT-base.

afjax train --config=configs/pfeiffer_search.py:task=sst2,data=DATA --workdir=runs/search-one
afjax sweep --config=configs/pfeiffer_search.py:task=sst2,data=DATA --workdir=runs/search

DATA holds the tasks: the benchmarks' downloads, or one folder a task, each with train and dev. The whole grid is 1152
runs a seed. The paper's figures 7 to 9 (SST-2, Argument and CSQA) show it in three steps, each with the best of the one
before: (a) positions, (b) the pretrained LayerNorm, (c) new LayerNorms. Step (a), all else as it ended, is 3 runs:

afjax sweep --config=configs/pfeiffer_search.py:task=sst2,data=DATA --workdir=runs/search-a \\
    --grid.adapter.pretrained_layer_norm=both --grid.adapter.new_layer_norm=none \\
    --grid.adapter.residual_from=sublayer --grid.adapter.reduction_factor=16 --grid.adapter.activation=relu

On all three tasks one setting was the best, which is the default here: one adapter behind the feed-forward layer, the
pretrained LayerNorm before and after it, and no new one.
"""

import ml_collections


def get_config(
    task: str = "sst2",
    data: str = "data",
    trunk: str = "bert-base-uncased",
    learning_rate: float = 1e-4,
    epochs: float = 30.0,
    max_length: int = 128,
    seed: int = 0,
) -> ml_collections.ConfigDict:
    config = ml_collections.ConfigDict()
    config.recipe = "single"
    config.trunk = trunk
    config.seed = seed
    config.name = f"{task}-search"
    config.task = {"name": task, "data_dir": data}
    config.partition = "adapter"
    config.adapter = {"preset": "pfeiffer"}
    config.train = {
        "learning_rate": learning_rate,
        "epochs": epochs,
        "warmup": 0.0,
        "batch_size": 32,
        "max_length": max_length,
        "patience": 3,
    }
    return config


def get_sweep() -> dict:
    """The paper's components, factors and activations.

    residual_from="sum" is left out: it needs the pretrained LayerNorm in front of the adapter, and a sweep takes only
    grids of which every combination is an adapter. Add it with --grid.adapter.residual_from=sublayer,input,sum where
    --grid.adapter.pretrained_layer_norm=before,both.
    """
    return {
        "adapter.position": ["ffn", "attention", "both"],
        "adapter.pretrained_layer_norm": ["both", "before", "after", "none"],
        "adapter.new_layer_norm": ["none", "before", "after", "both"],
        "adapter.residual_from": ["sublayer", "input"],
        "adapter.reduction_factor": [2.0, 8.0, 16.0, 64.0],
        "adapter.activation": ["relu", "leaky_relu", "swish"],
    }
