"""Houlsby 2019, section 3.5: adapters or full fine-tuning on SQuAD v1.1.

afjax train --config=configs/houlsby_squad.py:data=DATA --workdir=runs/squad --store=runs/store
afjax train --config=configs/houlsby_squad.py:data=DATA,method=full --workdir=runs/squad-full
afjax train --config=configs/houlsby_squad.py:data=DATA,task=squad_v2 --workdir=runs/squad-v2
afjax sweep --config=configs/houlsby_squad.py:data=DATA --workdir=runs/squad-sizes --grid.adapter.size=2,8,64,256

The task is extractive question answering, and the trunk is BERT-large. DATA contains the folder squad with
train-v1.1.json and dev-v1.1.json (for squad_v2: train-v2.0.json and dev-v2.0.json). As in BERT, windows have 384 tokens
with a stride of 128, questions have at most 64 tokens, and answers have at most 30. An epoch has about 2,800 steps of
32 windows.

Dev F1 from the paper's figure 5: 90.4 with adapters of size 64, 89.9 with size 2, and 90.7 with full fine-tuning. The
learning rates and epochs of these runs are unknown to us, so this config uses BERT's for full fine-tuning, and those in
configs/houlsby_glue.py for adapters.
"""

import ml_collections

# Learning rate and epochs of each method.
METHODS = {"adapter": (3e-4, 20.0), "full": (3e-5, 3.0)}


def get_config(
    task: str = "squad",
    data: str = "data",
    method: str = "adapter",
    size: int = 64,
    trunk: str = "bert-large-uncased",
    learning_rate: float = 0.0,
    epochs: float = 0.0,
    max_length: int = 384,
    train_rows: int = 0,
    seed: int = 0,
) -> ml_collections.ConfigDict:
    """Builds the config for a method.

    Set learning_rate or epochs to 0 for the method's default.
    """
    if method not in METHODS:
        raise ValueError(f"method is {method}, not one of {', '.join(METHODS)}")
    default_rate, default_epochs = METHODS[method]
    config = ml_collections.ConfigDict()
    config.recipe = "single"
    config.trunk = trunk
    config.seed = seed
    config.name = f"{task}-{method}"
    config.task = {"name": task, "data_dir": data, "train_rows": train_rows, "span": {"doc_stride": 128}}
    config.partition = method
    config.adapter = {"preset": "houlsby", "size": size}
    config.head = {"pooling": "first"}
    config.train = {
        "learning_rate": learning_rate or default_rate,
        "epochs": epochs or default_epochs,
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
    """Returns the sizes from the paper's figure 5, with a range of learning rates."""
    return {"train.learning_rate": [1e-4, 3e-4, 1e-3], "adapter.size": [2, 8, 64, 256]}
