"""AdapterFusion, stage 1 (ST-A, section 4.1): a Pfeiffer adapter for one task.

afjax train --config=configs/adapter.py:task=rte,data=DATA --workdir=runs/st-rte --store=runs/store
afjax sweep --config=configs/adapter.py:task=rte,data=DATA --workdir=runs/st-rte-sweep --seeds=0,1,2

DATA contains the benchmark downloads, or one folder per task with train and dev files. The trunk is a frozen BERT-base.
The adapter is stored under its task's name, where configs/fusion.py looks for it. Train one adapter per task, and then
fuse them with configs/fusion.py:trunk=bert-base-uncased. The sweep covers the paper's reduction factors. A run trains
for at most 30 epochs.

Dev accuracy with reduction factors 2, 16 and 64, from the paper's table 3 (16 is also column ST-A of table 1):

      MNLI    QQP    SST   IMDB  SciTail  Argument  BoolQ   MRPC   SICK    RTE     CB
 2   84.60  90.57  92.66  94.20    94.44     76.83  77.14  86.13  87.50  70.68  87.85
16   84.32  90.59  91.85  93.85    93.90     77.65  75.66  85.16  86.20  71.04  86.07
64   84.08  89.73  92.01  93.90    93.82     77.64  76.07  85.58  85.70  69.16  84.28
"""

import ml_collections


def get_config(
    task: str = "rte",
    data: str = "data",
    trunk: str = "bert-base-uncased",
    factor: float = 16.0,
    learning_rate: float = 1e-4,
    epochs: float = 30.0,
    max_length: int = 128,
    seed: int = 0,
) -> ml_collections.ConfigDict:
    config = ml_collections.ConfigDict()
    config.recipe = "single"
    config.trunk = trunk
    config.seed = seed
    # The paper scores all tasks by accuracy.
    config.task = {"name": task, "data_dir": data}
    config.partition = "adapter"
    config.adapter = {"preset": "pfeiffer", "reduction_factor": factor}
    config.head = {"pooling": "first"}
    config.train = {
        "learning_rate": learning_rate,
        "epochs": epochs,
        # The paper does not report the settings below.
        "warmup": 0.0,
        "batch_size": 32,
        "max_length": max_length,
        "patience": 3,
    }
    return config


def get_sweep() -> dict:
    """Returns the paper's reduction factors."""
    return {"adapter.reduction_factor": [2.0, 16.0, 64.0]}
