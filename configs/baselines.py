"""The papers' baselines on one task. The method is head, full, layernorm, top_k, houlsby or pfeiffer.

afjax train --config=configs/baselines.py:method=full,task=rte,data=DATA/rte --workdir=runs/rte-full
afjax train --config=configs/baselines.py:method=top_k,top_k=3,task=rte,data=DATA/rte --workdir=runs/rte-top
afjax train --config=configs/baselines.py:method=houlsby,size=64,task=rte,data=DATA/rte --workdir=runs/rte-houlsby
afjax train --config=configs/baselines.py:method=pfeiffer,factor=16,task=rte,data=DATA/rte --workdir=runs/rte-pfeiffer

The sweeps of Houlsby 2019, section 3.4 and figure 4, train adapters of all sizes, only the top layers, and only the
LayerNorms. The paper uses MNLI and CoLA (metric=matthews) with BERT-base, and the learning rates of section 3.2. Its
dev accuracies on MNLI are 83.7 with size 64 (about 2 M trained parameters), 77.8 with the top layer (about 9 M) and
84.4 with all layers.

afjax sweep --config=configs/baselines.py:method=houlsby,task=mnli,data=DATA/mnli --workdir=runs/mnli-sizes \\
    --grid.adapter.size=1,2,4,8,16,32,64,128,256,512 --seeds=0,1,2
afjax sweep --config=configs/baselines.py:method=top_k,task=mnli,data=DATA/mnli --workdir=runs/mnli-top \\
    --grid.top_k=1,2,3,4,5,6,7,8,9,10,11,12 --seeds=0,1,2
afjax sweep --config=configs/baselines.py:method=layernorm,task=mnli,data=DATA/mnli --workdir=runs/mnli-norms

AdapterFusion's table 1, dev accuracy with BERT-base; for pfeiffer see configs/adapter.py:

            MNLI    QQP    SST   IMDB  SciTail  Argument  BoolQ   MRPC   SICK    RTE     CB
head       54.59  76.79  85.17  85.05    85.30     70.61  63.07  71.91  76.30  61.37  68.93
full       84.10  90.87  92.39  94.05    94.32     76.87  74.84  85.14  87.30  65.41  82.49
houlsby    84.13  90.63  92.75  93.96    94.07     77.44  76.02  86.66  86.12  69.67  87.50
"""

import ml_collections

# Partition, adapter preset, learning rate and epochs of each method. Houlsby's and Pfeiffer's learning rates are from
# their papers' code and text. The others are starting points for BERT-base; sweep them.
METHODS = {
    "head": ("head", "pfeiffer", 1e-3, 20.0),
    "full": ("full", "pfeiffer", 3e-5, 3.0),
    "layernorm": ("layernorm", "pfeiffer", 3e-4, 20.0),
    "top_k": ("top_k", "pfeiffer", 3e-5, 3.0),
    "houlsby": ("adapter", "houlsby", 3e-4, 20.0),
    "pfeiffer": ("adapter", "pfeiffer", 1e-4, 30.0),
}


def get_config(
    method: str = "full",
    task: str = "rte",
    data: str = "data/rte",
    data_dir: str = "",
    kind: str = "classification",
    metric: str = "",
    trunk: str = "bert-base-uncased",
    factor: float = 16.0,
    size: int = 64,
    top_k: int = 12,
    learning_rate: float = 0.0,
    epochs: float = 0.0,
    max_length: int = 128,
    seed: int = 0,
) -> ml_collections.ConfigDict:
    """Returns the config of a method.

    factor (2, 8, 16 or 64) is used by pfeiffer, size (2 to 256) by houlsby, and top_k by top_k. A learning rate or
    number of epochs of 0 selects the method's default.
    """
    if method not in METHODS:
        raise ValueError(f"method is {method}, not one of {', '.join(METHODS)}")
    partition, preset, own_rate, own_epochs = METHODS[method]
    config = ml_collections.ConfigDict()
    config.recipe = "single"
    config.trunk = trunk
    config.seed = seed
    config.name = f"{task}-{method}"
    # With data_dir, the task is a benchmark's, found by its name. Its kind and metric are known.
    own = {"source": data, "kind": kind, "metric": metric}
    config.task = {"name": task, **({"data_dir": data_dir} if data_dir else own)}
    config.partition = partition
    config.top_k = top_k if method == "top_k" else 0
    config.adapter = {"preset": preset, **({"size": size} if preset == "houlsby" else {"reduction_factor": factor})}
    # For houlsby and layernorm, the trunk's pooler is used and stays frozen. Otherwise the head trains its own pooler.
    # For a trunk without a pooler: --config.head.pooler=head.
    config.head = {"pooling": "first", "pooler": "trunk" if method in ("houlsby", "layernorm") else "head"}
    config.train = {
        "learning_rate": learning_rate or own_rate,
        "epochs": epochs or own_epochs,
        "batch_size": 32,
        "max_length": max_length,
        "warmup": 0.1,
        # The run stops after three evaluations without an improvement. The best evaluation is kept.
        "patience": 3,
    }
    return config


def get_sweep() -> dict:
    """Returns Houlsby's learning rates, for all methods. Add sizes, factors or layers on the command line."""
    return {"train.learning_rate": [3e-5, 3e-4, 3e-3]}
