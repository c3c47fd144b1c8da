"""AdapterFusion, appendix A.2: where to place an adapter, LayerNorms and the residual in a layer; one task, BERT-base.

afjax train --config=configs/pfeiffer_search.py:task=sst2,data=DATA --workdir=runs/search-one
afjax sweep --config=configs/pfeiffer_search.py:task=sst2,data=DATA --workdir=runs/search

DATA is the folder of the tasks: the benchmarks' downloads, or one folder per task, each with train and dev. The full
grid has 1152 runs per seed. The paper's figures 7 to 9 (SST-2, Argument and CSQA) show it in three steps, each with the
best setting of the previous step: (a) positions, (b) the pretrained LayerNorm, (c) new LayerNorms. Step (a) with the
final values of all other settings has 3 runs:

afjax sweep --config=configs/pfeiffer_search.py:task=sst2,data=DATA --workdir=runs/search-a \\
    --grid.adapter.pretrained_layer_norm=both --grid.adapter.new_layer_norm=none \\
    --grid.adapter.residual_from=sublayer --grid.adapter.reduction_factor=16 --grid.adapter.activation=relu

The same setting was best on all three tasks. It is afjax's default: one adapter after the feed-forward layer, the
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
    """Returns the paper's grid: positions, LayerNorms, residuals, reduction factors and activations.

    residual_from="sum" is left out, because it needs the pretrained LayerNorm before the adapter, and every
    combination in a sweep's grid must be a valid adapter. Add it with
    --grid.adapter.residual_from=sublayer,input,sum and --grid.adapter.pretrained_layer_norm=before,both.
    """
    return {
        "adapter.position": ["ffn", "attention", "both"],
        "adapter.pretrained_layer_norm": ["both", "before", "after", "none"],
        "adapter.new_layer_norm": ["none", "before", "after", "both"],
        "adapter.residual_from": ["sublayer", "input"],
        "adapter.reduction_factor": [2.0, 8.0, 16.0, 64.0],
        "adapter.activation": ["relu", "leaky_relu", "swish"],
    }
