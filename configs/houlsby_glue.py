"""Houlsby 2019, section 3.2: bottleneck adapters and LayerNorms on a frozen BERT-large, one GLUE task at a time.

afjax train --config=configs/houlsby_glue.py:task=mrpc,data=DATA --workdir=runs/houlsby-mrpc --store=runs/store
afjax sweep --config=configs/houlsby_glue.py:task=mrpc,data=DATA --workdir=runs/houlsby-sweep --seeds=0,1,2,3,4

DATA is the folder of the tasks: the benchmarks' downloads, or one folder per task, each with train and dev. The sweep
is the paper's: 18 settings with 5 seeds, so 90 runs per task. The run with the best dev score counts. (Each of the
paper's runs used four Cloud TPUs.)

The paper's table 1, scores on GLUE's test sets from its server. With each task's best size: CoLA 59.5, SST 94.0, MRPC
89.5, STS-B 86.9, QQP 71.8, MNLI 84.9 and 85.1 (mismatched), QNLI 90.7, RTE 71.5; mean 80.0. With size 64 for all tasks
the mean is 79.6, and with full fine-tuning 80.4. For BERT-base, the authors' code states a dev accuracy of 85.78 (plus
or minus 2) on MRPC, with a learning rate of 3e-4, 5 epochs and size 64.
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
    # A task that is not in GLUE is a classification task, scored by accuracy.
    config.task = {"name": task, "data_dir": data, **TASKS.get(task, {})}
    config.partition = "adapter"
    config.adapter = {"preset": "houlsby", "size": size}
    # The trunk's pooler is used and stays frozen. For a trunk without a pooler: --config.head.pooler=head.
    config.head = {"pooling": "first", "pooler": "trunk"}
    config.train = {
        "learning_rate": learning_rate,
        "epochs": epochs,
        "batch_size": 32,
        "max_length": max_length,
        "warmup": 0.1,
        "weight_decay": 0.01,
        # The authors' code: everything except biases and LayerNorms decays.
        "weight_decay_on": "weights",
        "adam_epsilon": 1e-6,
    }
    return config


def get_sweep() -> dict:
    """Returns the paper's grid."""
    return {
        "train.learning_rate": [3e-5, 3e-4, 3e-3],
        "train.epochs": [3.0, 20.0],
        "adapter.size": [8, 64, 256],
    }
