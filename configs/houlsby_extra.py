"""Houlsby 2019, section 3.3: BERT-base on more classification tasks.

afjax train --config=configs/houlsby_extra.py:task=spam,data=DATA/spam,text=message,label=kind --workdir=runs/spam
afjax train --config=configs/houlsby_extra.py:task=spam,data=DATA/spam,method=top_k,top_k=3 --workdir=runs/spam-top
afjax train --config=configs/houlsby_extra.py:task=sms_spam,data_dir=DATA --workdir=runs/sms-spam

The methods are adapter, full and top_k. DATA/spam contains train and dev as .csv, .tsv or .jsonl. If the columns are
not named text and label, set text=... and label=... With data_dir, the task must be one of the paper's 17 tasks, in the
data files published by its authors (afjax data list lists the tasks). A hash of the text then assigns 80% of the rows
to train, 10% to dev and 10% to test.

The paper uses the same grid of learning rates and epochs for all methods:

afjax sweep --config=configs/houlsby_extra.py:task=spam,data=DATA/spam --workdir=runs/spam-sweep --seeds=0,1,2
afjax sweep --config=configs/houlsby_extra.py:task=spam,data=DATA/spam,method=top_k --workdir=runs/spam-top-sweep \\
    --grid.adapter.size=64 --grid.top_k=1,2,3,5,7,9,11,12

The first grid has 72 runs per seed, and the second has 96. top_k and full ignore the adapter size, so the second grid
has only one size. Instead of searching over epochs, the paper chose them by hand for each task, from learning curves
(its table 4).

Mean test accuracy over the 17 tasks, from the paper's table 2: 73.3 with adapters, 73.7 with full fine-tuning and 74.0
with the top layers. On SMS spam: 95.1, 99.3 and 99.3.
"""

import ml_collections

METHODS = ("adapter", "full", "top_k")


def get_config(
    task: str = "spam",
    data: str = "",
    text: str = "",
    label: str = "",
    data_dir: str = "",
    method: str = "adapter",
    size: int = 64,
    top_k: int = 12,
    trunk: str = "bert-base-uncased",
    learning_rate: float = 1e-4,
    epochs: float = 20.0,
    max_length: int = 128,
    seed: int = 0,
) -> ml_collections.ConfigDict:
    if method not in METHODS:
        raise ValueError(f"method is {method}, not one of {', '.join(METHODS)}")
    config = ml_collections.ConfigDict()
    config.recipe = "single"
    config.trunk = trunk
    config.seed = seed
    config.name = f"{task}-{method}"
    if data_dir and (data or text or label):
        raise ValueError(f"data_dir={data_dir} looks up a benchmark task by name; leave out data, text and label")
    custom = {"source": data or "data/spam", "text_a": text, "label": label}
    config.task = {"name": task, **({"data_dir": data_dir} if data_dir else custom)}
    config.partition = method
    config.top_k = top_k if method == "top_k" else 0
    config.adapter = {"preset": "houlsby", "size": size}
    # The trunk's pooler is frozen with adapters, and trained with the other methods. If the trunk has no pooler, set
    # --config.head.pooler=head.
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
    """Returns the paper's grid for adapters."""
    return {
        "train.learning_rate": [1e-5, 3e-5, 1e-4, 3e-3],
        "train.epochs": [20.0, 50.0, 100.0],
        "adapter.size": [2, 4, 8, 16, 32, 64],
    }
