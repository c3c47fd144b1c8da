"""The papers' baselines on one task.

afjax train --config=configs/baselines.py:method=full,task=rte,data=DATA/rte --workdir=runs/rte-full
afjax train --config=configs/baselines.py:method=top_k,top_k=3,task=rte,data=DATA/rte --workdir=runs/rte-top
afjax train --config=configs/baselines.py:method=houlsby,size=64,task=rte,data=DATA/rte --workdir=runs/rte-houlsby
afjax train --config=configs/baselines.py:method=pfeiffer,factor=16,task=rte,data=DATA/rte --workdir=runs/rte-pfeiffer

The methods are head, full, layernorm, top_k, houlsby and pfeiffer. The sweeps below are from Houlsby 2019, section 3.4
and figure 4: adapters of all sizes, the top layers only, and the LayerNorms only. The paper uses BERT-base on MNLI and
CoLA (metric=matthews), and the learning rates of section 3.2. The dev accuracies on MNLI are 83.7 with size 64 (about 2
million trained parameters), 77.8 with the top layer (about 9 million) and 84.4 with all layers.

afjax sweep --config=configs/baselines.py:method=houlsby,task=mnli,data=DATA/mnli --workdir=runs/mnli-sizes \\
    --grid.adapter.size=1,2,4,8,16,32,64,128,256,512 --seeds=0,1,2
afjax sweep --config=configs/baselines.py:method=top_k,task=mnli,data=DATA/mnli --workdir=runs/mnli-top \\
    --grid.top_k=1,2,3,4,5,6,7,8,9,10,11,12 --seeds=0,1,2
afjax sweep --config=configs/baselines.py:method=layernorm,task=mnli,data=DATA/mnli --workdir=runs/mnli-norms

Dev accuracy with BERT-base, from AdapterFusion's table 1 (for pfeiffer, see configs/adapter.py):

            MNLI    QQP    SST   IMDB  SciTail  Argument  BoolQ   MRPC   SICK    RTE     CB
head       54.59  76.79  85.17  85.05    85.30     70.61  63.07  71.91  76.30  61.37  68.93
full       84.10  90.87  92.39  94.05    94.32     76.87  74.84  85.14  87.30  65.41  82.49
houlsby    84.13  90.63  92.75  93.96    94.07     77.44  76.02  86.66  86.12  69.67  87.50
"""

import ml_collections

# Partition, adapter preset, learning rate and epochs of each method. The learning rates for houlsby and pfeiffer come
# from the papers and their code. The others are only starting points for a sweep with BERT-base.
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
    data: str = "",
    data_dir: str = "",
    kind: str = "",
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
    """Builds the config for a method.

    factor (2, 8, 16 or 64) only affects pfeiffer, size (2 to 256) only affects houlsby, and top_k only affects the
    method top_k. Set learning_rate or epochs to 0 for the method's default.
    """
    if method not in METHODS:
        raise ValueError(f"method is {method}, not one of {', '.join(METHODS)}")
    partition, preset, default_rate, default_epochs = METHODS[method]
    config = ml_collections.ConfigDict()
    config.recipe = "single"
    config.trunk = trunk
    config.seed = seed
    config.name = f"{task}-{method}"
    # With data_dir, the task is a benchmark task with a known kind and metric.
    if data_dir and (data or kind or metric):
        raise ValueError(f"data_dir={data_dir} looks up a benchmark task by name; leave out data, kind and metric")
    custom = {"source": data or "data/rte", "kind": kind or "classification", "metric": metric}
    config.task = {"name": task, **({"data_dir": data_dir} if data_dir else custom)}
    config.partition = partition
    config.top_k = top_k if method == "top_k" else 0
    config.adapter = {"preset": preset, **({"size": size} if preset == "houlsby" else {"reduction_factor": factor})}
    # houlsby and layernorm use the trunk's frozen pooler. With the other methods, the head trains a new pooler. If the
    # trunk has no pooler, set --config.head.pooler=head.
    config.head = {"pooling": "first", "pooler": "trunk" if method in ("houlsby", "layernorm") else "head"}
    config.train = {
        "learning_rate": learning_rate or default_rate,
        "epochs": epochs or default_epochs,
        "batch_size": 32,
        "max_length": max_length,
        "warmup": 0.1,
        # Stop after three evaluations without improvement, and keep the best checkpoint.
        "patience": 3,
    }
    return config


def get_sweep() -> dict:
    """Returns Houlsby's learning rates.

    Add sizes, factors or layers to the grid on the command line.
    """
    return {"train.learning_rate": [3e-5, 3e-4, 3e-3]}
