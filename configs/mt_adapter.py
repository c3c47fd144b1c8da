"""MT-A (AdapterFusion, section 3.1): adapters trained jointly with the trunk.

afjax train --config=configs/mt_adapter.py:data=DATA,tasks=mnli+qqp+rte --workdir=runs/mt --store=runs/mt/store
afjax train --config=configs/fusion_mt.py:data=DATA,target=rte,tasks=mnli+qqp+rte,trunk=runs/mt/trunk \\
    --workdir=runs/fusion-mt-rte --store=runs/mt/store

Each task has its own adapter. The first command also trains the trunk, and saves it as runs/mt/trunk. The second
command fuses the adapters on that trunk. adapter=pals and adapter=low_rank select the modules from Stickland & Murray
2019, which AdapterFusion uses with their settings: 25 epochs of 2,400 steps of 32 rows, on all 16 tasks jointly. To
train with these settings, use adapter=pals,epochs=25.

Dev accuracy with BERT-base, from the paper's table 1, column MT-A. The five multiple-choice tasks are not shown.

 MNLI    QQP    SST   IMDB  SciTail  Argument  BoolQ   MRPC   SICK    RTE     CB
82.49  89.47  92.27  92.56    94.53     75.70  78.76  81.86  88.61  77.61  89.09
"""

import ml_collections

TASKS = "cb+rte+mrpc+sick+scitail+mnli+boolq+qqp"
REGRESSIONS = {"stsb": 5.0, "sick_r": 5.0}


def get_config(
    tasks: str = TASKS,
    data: str = "data",
    trunk: str = "bert-base-uncased",
    adapter: str = "pfeiffer",
    sampler: str = "annealed",
    epochs: float = 10.0,
    steps_per_epoch: int = 2400,
    learning_rate: float = 2e-5,
    max_length: int = 128,
    seed: int = 0,
) -> ml_collections.ConfigDict:
    config = ml_collections.ConfigDict()
    config.recipe = "multitask"
    config.trunk = trunk
    config.seed = seed
    config.partition = "adapter+trunk"
    config.adapter = {"preset": adapter}
    # Task names can contain dots.
    given = {task: {"data_dir": data} for task in tasks.split("+")}
    config.tasks = ml_collections.ConfigDict(given, allow_dotted_keys=True)
    for task, scale in REGRESSIONS.items():
        if task in config.tasks:
            config.tasks[task].update({"kind": "regression", "scale": scale})
    config.sampling = {"sampler": sampler, "steps_per_epoch": steps_per_epoch}
    config.head = {"pooling": "first"}
    config.train = {
        "learning_rate": learning_rate,
        "epochs": epochs,
        "batch_size": 32,
        "max_length": max_length,
        "warmup": 0.1,
    }
    return config
