"""Houlsby 2019, section 3.2: adapters on a frozen BERT-large, for one GLUE task.

afjax train --config=configs/houlsby_glue.py:task=mrpc,data=DATA --workdir=runs/houlsby-mrpc --store=runs/store
afjax sweep --config=configs/houlsby_glue.py:task=mrpc,data=DATA --workdir=runs/houlsby-sweep --seeds=0,1,2,3,4

DATA contains the benchmark downloads, or one folder per task with train and dev files. The LayerNorms are trained with
the adapters. The sweep is the paper's: 18 settings with 5 seeds each, so 90 runs per task. Select the run with the best
dev score. (The paper used four Cloud TPUs per run.)

Test scores from the GLUE server (the paper's table 1), with the best size per task: CoLA 59.5, SST 94.0, MRPC 89.5,
STS-B 86.9, QQP 71.8, MNLI 84.9 and 85.1 (mismatched), QNLI 90.7, RTE 71.5; mean 80.0. The mean is 79.6 with size 64 for
all tasks, and 80.4 with full fine-tuning. For BERT-base, the authors' repository reports a dev accuracy of 85.78 (plus
or minus 2) on MRPC, with learning rate 3e-4, 5 epochs and size 64.
"""

import ml_collections

TASKS = {
    "cola": {"metric": "matthews"},
    "sst2": {},
    "mrpc": {"metric": "f1"},
    "stsb": {"kind": "regression", "metric": "spearman"},
    "qqp": {"metric": "f1"},
    "mnli": {},
    "qnli": {},
    "rte": {},
}


def get_config(
    task: str = "mrpc",
    data: str = "data",
    trunk: str = "bert-large-uncased",
    size: int = 64,
    learning_rate: float = 3e-4,
    epochs: float = 20.0,
    max_length: int = 128,
    seed: int = 0,
) -> ml_collections.ConfigDict:
    config = ml_collections.ConfigDict()
    config.recipe = "single"
    config.trunk = trunk
    config.seed = seed
    config.name = f"{task}-houlsby"
    # Tasks outside GLUE are treated as classification, scored by accuracy.
    config.task = {"name": task, "data_dir": data, **TASKS.get(task, {})}
    config.partition = "adapter"
    config.adapter = {"preset": "houlsby", "size": size}
    # Use the trunk's frozen pooler. If the trunk has no pooler, set --config.head.pooler=head.
    config.head = {"pooling": "first", "pooler": "trunk"}
    config.train = {
        "learning_rate": learning_rate,
        "epochs": epochs,
        "batch_size": 32,
        "max_length": max_length,
        "warmup": 0.1,
        "weight_decay": 0.01,
        # As in the authors' code, everything except biases and LayerNorms decays.
        "weight_decay_on": "weights",
        "adam_epsilon": 1e-6,
    }
    return config


def get_sweep() -> dict:
    """Returns the paper's grid."""
    return {"train.learning_rate": [3e-5, 3e-4, 3e-3], "train.epochs": [3.0, 20.0], "adapter.size": [8, 64, 256]}
