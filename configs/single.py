"""Trains an adapter, or other parameters, for one task.

afjax train --config=configs/single.py:task=rte,data=DATA/rte --workdir=runs/rte --store=runs/store
afjax train --config=configs/single.py:task=rte,data=DATA/rte,adapter=lora --workdir=runs/rte-lora
afjax train --config=configs/single.py:task=csqa,data_dir=DATA,partition=head --workdir=runs/csqa-head
afjax train --config=configs/single.py:task=squad,data_dir=DATA,max_length=384,train_rows=10000 --workdir=runs/squad

afjax train --config=configs/single.py:task=mine.toml --workdir=runs/mine
afjax train --config=configs/single.py:task=topics,data=topics.csv,kind=multi_label --workdir=runs/topics

partition selects the trained parameters: adapter (the default), head, layernorm, top_k or full. data is the task's data
source: a file, or a folder with train and dev files. data_dir is the folder of benchmark downloads, where the task is
looked up by name. Without data and data_dir, the task must be a built-in one (entail, paraphrase or target). To
describe your own task, use a TOML file. Set kind unless it is classification, or known because the task is a benchmark
task from data_dir, TFDS or the Hugging Face hub. adapter is a preset, such as pfeiffer, houlsby, lora or ia3.
"""

import pathlib

import ml_collections


def get_config(
    task: str = "entail",
    data: str = "",
    data_dir: str = "",
    kind: str = "",
    partition: str = "adapter",
    adapter: str = "pfeiffer",
    top_k: int = 0,
    train_rows: int = 0,
    epochs: float = 10.0,
    max_length: int = 128,
    seed: int = 0,
) -> ml_collections.ConfigDict:
    config = ml_collections.ConfigDict()
    config.recipe = "single"
    config.trunk = "minilm"
    config.seed = seed
    name = pathlib.Path(task).stem if task.endswith(".toml") else task
    config.name = name if partition == "adapter" else f"{name}-{partition}"
    # The source is a file, a folder with train, dev and labels.json, or another source (docs/how_to/data.md).
    if data_dir and (data or task.endswith(".toml")):
        raise ValueError(f"data_dir={data_dir} looks up a task by name; leave out data, and do not use a TOML file")
    if task.endswith(".toml"):
        config.task = {"preset": task, **({"source": data} if data else {})}
    elif data_dir:
        config.task = {"name": name, "data_dir": data_dir}
    elif data.startswith(("tfds:", "hf:", "official:")) and not kind:
        # A published dataset. If the task is a benchmark task, the preset sets its kind, metric and labels.
        config.task = {"preset": name, "source": data}
    else:
        config.task = {"name": name, "source": data or f"builtin:{name}"}
    if kind:
        config.task.kind = kind
    if train_rows:
        config.task.train_rows = train_rows
    config.partition = partition
    config.top_k = top_k
    config.adapter = {"preset": adapter}
    # All other settings keep their defaults. The default learning rate depends on the partition (docs/defaults.md).
    config.train = {"epochs": epochs, "max_length": max_length}
    return config
