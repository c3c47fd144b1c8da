"""AdapterFusion, appendix A.2: a search for the best adapter architecture.

afjax train --config=configs/pfeiffer_search.py:task=sst2,data=DATA --workdir=runs/search-one
afjax sweep --config=configs/pfeiffer_search.py:task=sst2,data=DATA --workdir=runs/search

DATA contains the benchmark downloads, or one folder per task with train and dev files. The search runs on one task with
BERT-base. It covers the positions of the adapter, the LayerNorms, the residual connection, the reduction factor and the
activation. The full grid has 1,152 runs per seed. The paper's figures 7 to 9 (SST-2, Argument and CSQA) search in three
steps, and each step keeps the best setting of the previous one: (a) positions, (b) the pretrained LayerNorm, (c) new
LayerNorms. Step (a) has 3 runs, with all other settings at their final values:

afjax sweep --config=configs/pfeiffer_search.py:task=sst2,data=DATA --workdir=runs/search-a \\
    --grid.adapter.pretrained_layer_norm=both --grid.adapter.new_layer_norm=none \\
    --grid.adapter.residual_from=sublayer --grid.adapter.reduction_factor=16 --grid.adapter.activation=relu

The same architecture was best on all three tasks and is afjax's default: one adapter after the feed-forward layer, the
pretrained LayerNorm before and after the adapter, and no new LayerNorm.
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
    config.head = {"pooling": "first"}
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
    """Returns the paper's grid.

    Every combination in a grid must be valid, so the grid omits residual_from="sum", which requires the pretrained
    LayerNorm before the adapter. To include it, use --grid.adapter.residual_from=sublayer,input,sum and
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
