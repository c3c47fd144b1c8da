"""AdapterFusion of MT-A: fuses adapters that were trained jointly with the trunk.

afjax train --config=configs/fusion_mt.py:data=DATA,target=rte,tasks=mnli+qqp+rte,trunk=runs/mt/trunk \\
    --workdir=runs/fusion-mt-rte --store=runs/mt/store

configs/mt_adapter.py trains the adapters and the trunk. A run trains for at most 10 epochs on the target
(AdapterFusion, section 4.1).

Dev accuracy with BERT-base when fusing the adapters of all 16 tasks, from the paper's table 1, column "F. w/ MT-A". The
five multiple-choice tasks are not shown.

 MNLI    QQP    SST   IMDB  SciTail  Argument  BoolQ   MRPC   SICK    RTE     CB
83.05  90.58  93.00  92.66    94.79     76.08  79.18  84.68  90.43  79.96  89.81
"""

import ml_collections

TASKS = "cb+rte+mrpc+sick+scitail+mnli+boolq+qqp"
REGRESSIONS = {"stsb": 5.0, "sick_r": 5.0}


def get_config(
    target: str = "rte",
    tasks: str = TASKS,
    data: str = "data",
    trunk: str = "runs/mt/trunk",
    epochs: float = 10.0,
    learning_rate: float = 5e-5,
    max_length: int = 128,
    seed: int = 0,
) -> ml_collections.ConfigDict:
    def task(name: str) -> dict:
        kind = {"kind": "regression", "scale": REGRESSIONS[name]} if name in REGRESSIONS else {}
        return {"data_dir": data, **kind}

    config = ml_collections.ConfigDict()
    config.recipe = "fusion"
    config.trunk = trunk
    config.seed = seed
    config.name = f"{target}-fusion-mt"
    config.task = {"name": target, **task(target)}
    # Task names can contain dots.
    given = {name: {"task": task(name)} for name in tasks.split("+")}
    config.sources = ml_collections.ConfigDict(given, allow_dotted_keys=True)
    config.head = {"pooling": "first"}
    config.train = {
        "learning_rate": learning_rate,
        "epochs": epochs,
        "batch_size": 32,
        "max_length": max_length,
        "warmup": 0.1,
        "patience": 3,
    }
    return config
