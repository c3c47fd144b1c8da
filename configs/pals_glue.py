"""BERT and PALs (Stickland & Murray 2019): one trunk trained jointly on GLUE.

afjax train --config=configs/pals_glue.py:method=pals,data=DATA --workdir=runs/pals --store=runs/store
afjax train --config=configs/pals_glue.py:method=shared,tasks=rte+mrpc,data=DATA --workdir=runs/shared

All tasks share the trunk, and each task has its own module. DATA contains the benchmark downloads, or one folder per
task. The settings are the paper's for BERT-base: 25 epochs of 2,400 steps of 32 rows, 60,000 steps in total. For other
trunks and shorter runs, tune the learning rate. The authors' code clips each tensor's gradient separately; to do the
same, set --config.train.clip_by=tensor.

The paper's mean GLUE test scores with BERT-base are 79.6 with one model per task, 79.9 with shared, 79.6 with
top_attention and 80.4 with pals. On dev, pals with annealed sampling reaches 81.7.
"""

import ml_collections

# STS-B labels range from 0 to 5, and are divided by 5 for training.
TASKS = {
    "cola": {"metric": "matthews"},
    "sst2": {},
    "mrpc": {"metric": "f1"},
    "stsb": {"kind": "regression", "scale": 5.0},
    "qqp": {"metric": "f1"},
    "mnli": {},
    "qnli": {},
    "rte": {},
}

# The paper's modules, with its sizes for BERT-base. To change a size, use --config.adapter.size=... for example.
METHODS = ("shared", "pals", "pals_unshared", "low_rank", "projected_ffn", "lhuc", "top_attention", "top_ffn")
METHODS += ("top_ffn_2", "top_layer", "pfeiffer")


def get_config(
    method: str = "pals",
    tasks: str = "+".join(TASKS),
    data: str = "data",
    trunk: str = "bert-base-uncased",
    sampler: str = "annealed",
    epochs: float = 25.0,
    steps_per_epoch: int = 2400,
    learning_rate: float = 2e-5,
    max_length: int = 128,
    seed: int = 0,
) -> ml_collections.ConfigDict:
    if method not in METHODS:
        raise ValueError(f"method is {method}, not one of {', '.join(METHODS)}")
    config = ml_collections.ConfigDict()
    config.recipe = "multitask"
    config.trunk = trunk
    config.seed = seed
    config.name = method
    # data contains the benchmark downloads, or one folder per task with train, dev and optionally labels.json. Tasks
    # outside the benchmarks are treated as classification, scored by accuracy. Task names can contain dots.
    given = {task: {"data_dir": data, **TASKS.get(task, {})} for task in tasks.split("+")}
    config.tasks = ml_collections.ConfigDict(given, allow_dotted_keys=True)
    # With "shared", only the output layers are task-specific. All methods use the trunk's pooler.
    config.partition = "full" if method == "shared" else "adapter+trunk"
    config.adapter = {"preset": "pals" if method == "shared" else method}
    config.head = {"pooling": "first", "pooler": "trunk", "dropout": 0.1}
    config.sampling = {"sampler": sampler, "steps_per_epoch": steps_per_epoch}
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
