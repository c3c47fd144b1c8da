"""AdapterFusion for one task, over the adapters of eight tasks.

afjax train --config=configs/fusion.py:target=rte,data=DATA --workdir=runs/fusion-rte --store=runs/store
afjax train --config=configs/fusion.py:target=mine,source=mine.csv,sources=rte+cb --workdir=runs/mine --store=runs/store

Adapters missing from the store are trained first. The second command fuses adapters that are in the store, so it only
needs the target's data. Set trunk to the trunk that the stored adapters were trained on (trunk=bert-base-uncased for
the adapters of configs/adapter.py).

Dev accuracy with BERT-base when fusing the adapters of 16 tasks, from the paper's table 1, column "F. w/ ST-A". The
five multiple-choice tasks are not shown. For single adapters, see configs/adapter.py.

 MNLI    QQP    SST   IMDB  SciTail  Argument  BoolQ   MRPC   SICK    RTE     CB
84.28  90.71  92.20  93.82    94.04     77.65  76.25  90.29  87.28  76.82  92.14
"""

import ml_collections

# Epochs for each source. The checkpoint of the epoch with the best dev score is kept. Learning rates were tuned on dev
# with minilm, and the numbers of epochs were limited by training time on two CPU cores (docs/results.md).
SOURCE_EPOCHS = {
    "cb": 15.0,
    "rte": 5.0,
    "mrpc": 3.0,
    "sick": 3.0,
    "scitail": 4.0,
    "mnli": 2.0,
    "boolq": 2.0,
    "qqp": 1.0,
}
# Epochs for the target. All other targets train for three.
TARGET_EPOCHS = {"cb": 6.0, "rte": 2.0}


def get_config(
    target: str = "rte",
    data: str = "data",
    source: str = "",
    trunk: str = "minilm",
    sources: str = "+".join(SOURCE_EPOCHS),
    seed: int = 0,
) -> ml_collections.ConfigDict:
    """Builds the config for a fusion.

    Set source to the target's data file or folder if the target is not in data. sources are the adapters to fuse.
    """
    config = ml_collections.ConfigDict()
    config.recipe = "fusion"
    config.trunk = trunk
    config.seed = seed
    # data contains the benchmark downloads, or one folder per task with train, dev and labels.json.
    config.task = {"name": target, **({"source": source} if source else {"data_dir": data})}
    config.adapter = {"reduction_factor": 16.0}
    shared = {"batch_size": 32, "max_length": 128, "warmup": 0.1}
    # Task names can contain dots.
    config.sources = ml_collections.ConfigDict(
        {
            task: {
                "task": {"data_dir": data},
                "train": {**shared, "learning_rate": 1e-3, "epochs": SOURCE_EPOCHS.get(task, 3.0)},
            }
            for task in sources.split("+")
        },
        allow_dotted_keys=True,
    )
    epochs = TARGET_EPOCHS.get(target, 3.0)
    # The paper's heads use the first token. For a custom task, the pooling defaults to the trunk's.
    if not source:
        config.head = {"pooling": "first"}
    config.train = {**shared, "learning_rate": 1e-3, "epochs": epochs}
    return config
