"""Hostile config files, ``--config.SETTING=`` values, and settings passed from Python."""

import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from hostile_case import (
    DEEP,
    DIGITS,
    NESTED,
    NOT_AN_OBJECT,
    TRAIN,
    Case,
    Drop,
    Wanted,
    edit_json,
    link_loop,
    make_folder,
    plain,
    write,
)

HUGE = "9" * 30

# Setting names by type, and invalid command-line values for each type.
WRONG_INTEGERS = ("word", "1.5", "'3'", "None", "[]", "True", "-5", HUGE)
INTEGERS = (
    "seed",
    "top_k",
    "train.max_steps",
    "train.batch_size",
    "train.max_length",
    "train.eval_every",
    "train.patience",
    "train.checkpoint_every",
    "adapter.size",
    "head.hidden_layers",
    "task.train_rows",
    "fusion.subset",
    "sampling.steps_per_epoch",
    "mesh.data",
    "mesh.fsdp",
    "mesh.tensor",
)
MAY_BE_NONE = (
    "adapter.size",
    "adapter.layers",
    "fusion.subset",
    "fusion.dropout",
    "head.dropout",
    "fusion.kept",
    "train.learning_rate",
)
# For these settings, a huge number means "never" or "all".
MAY_BE_HUGE = (
    "train.eval_every",
    "train.patience",
    "train.checkpoint_every",
    "task.train_rows",
    "fusion.subset",
    "sampling.steps_per_epoch",
)
WRONG_FLOATS = ("word", "None", "[]", "True", "1e400", "-1", "1" + "0" * 400)
FLOATS = (
    "train.learning_rate",
    "train.epochs",
    "train.weight_decay",
    "train.clip_norm",
    "train.warmup",
    "train.adam_b1",
    "train.adam_b2",
    "train.adam_epsilon",
    "adapter.reduction_factor",
    "adapter.init_scale",
    "adapter.scaling",
    "fusion.temperature",
    "fusion.dropout",
    "fusion.regularization",
    "head.dropout",
    "task.scale",
)
WRONG_CHOICES = ("clasification", "None", "{}")
CHOICES = (
    "recipe",
    "trunk_dtype",
    "partition",
    "remat",
    "adapter.kind",
    "adapter.position",
    "adapter.activation",
    "adapter.init",
    "adapter.residual_from",
    "train.prng",
    "train.clip_by",
    "sampling.sampler",
    "task.kind",
    "task.metric",
    "head.pooler",
)
WRONG_BOOLS = ("yes", "1", "None")
BOOLS = ("scan_layers", "train.dropout", "train.adam_bias_correction", "adapter.layer_norms", "fusion.value")
WRONG_TEXTS = ("None", "[]", "{}")
TEXTS = ("trunk", "name", "task.name", "task.source", "task.text_a", "task.label", "task.dev")
WRONG_GROUPS = ("3", "word", "[]", "None")
GROUPS = ("train", "adapter", "head", "fusion", "task", "mesh", "sampling")
LISTS: Mapping[str, tuple[str, ...]] = {
    "train.buckets": ("3", "word", "None", "{}", "[0]", "[-1]", "[1.5]", "['a']", "[99999]", "[True]"),
    "adapter.layers": ("3", "word", "{}", "[9]", "[-1]", "[0,0]", "[]", "[1.5]"),
    "task.labels": ("word", "3", "[1]", "[None]", "['few','few']", "['']", "['few','other']"),
    "fused": ("3", "word", "[3]", "['first']"),
    "sources": ("3", "word", "[3]", "[None]", "{'a': 3}", "{'first': {}}"),
    "tasks": ("3", "word", "[3]", "[None]", "{'a': {}}"),
    "fusion.kept": ("3", "[3]", "[[3]]", "[[[0],[0,1]]]", "[[[-1]]]"),
}
OVERRIDES = {
    "unknown-setting": "--config.foo=3",
    "misspelled-setting": "--config.train.epoch=3",
    "setting-of-another-kind": "--config.adapter.num_heads=3",
    "no-value": "--config.train.epochs",
    "no-name": "--config.=3",
    "two-dots": "--config.train..epochs=3",
    "dot-at-the-end": "--config.train.=3",
    "below-a-number": "--config.train.epochs.x=3",
    "below-a-text": "--config.recipe.x=3",
    "python-attribute": "--config.__class__=3",
    "half-a-surrogate": "--config.\udcff=3",
    "preset-unknown": "--config.adapter.preset=huolsby",
    "preset-is-a-list": "--config.adapter.preset=[]",
    "data_dir-missing": "--config.task.data_dir=nowhere",
    "data_dir-is-a-number": "--config.task.data_dir=3",
    "task-preset-is-a-number": "--config.task.preset=3",
    "unknown-flag": "--confg.seed=3",
    "nan": "--config.train.learning_rate=nan",
    "python-expression": "--config.train.learning_rate=float('nan')",
    "many-digits": f"--config.seed={DIGITS}",
    "hexadecimal": f"--config.seed=0x{'f' * 5000}",
    "many-brackets": f"--config.seed={'[' * 5000}{']' * 5000}",
    "some-brackets": f"--config.train.buckets={NESTED}",
    "huge-adapter": "--config.adapter.size=100000000000",
    "huge-batch": "--config.train.batch_size=100000000000",
    "more-steps-than-a-counter-holds": "--config.train.max_steps=9223372036854775808",
    "bytes": "--config.name=b'a'",
    "complex": "--config.train.learning_rate=1j",
    "set": "--config.task.labels={1,2}",
}


def values() -> Iterator[Case]:
    tables: tuple[tuple[tuple[str, ...], tuple[str, ...]], ...] = (
        (INTEGERS, WRONG_INTEGERS),
        (FLOATS, WRONG_FLOATS),
        (CHOICES, WRONG_CHOICES),
        (BOOLS, WRONG_BOOLS),
        (TEXTS, WRONG_TEXTS),
        (GROUPS, WRONG_GROUPS),
    )
    for names, wrong in tables:
        for name in names:
            for value in wrong:
                if (value == "None" and name in MAY_BE_NONE) or (name, value) in (
                    ("adapter.scaling", "-1"),
                    ("task.metric", "None"),
                ):
                    continue
                yield _setting(name, value)
    for name, wrong in LISTS.items():
        for value in wrong:
            yield _setting(name, value)
    for name, flag in OVERRIDES.items():
        separate = name in ("huge-adapter", "huge-batch", "many-brackets", "more-steps-than-a-counter-holds")
        yield Case(f"config-flag/{name}", (*TRAIN, flag), separate=separate)


def _setting(name: str, value: str) -> Case:
    wanted: Wanted = "clean" if value == HUGE and name in MAY_BE_HUGE else "refused"
    separate = value == HUGE and name in ("head.hidden_layers", "adapter.size", "train.max_steps", "train.batch_size")
    shown = {HUGE: "30-digits", "1" + "0" * 400: "400-digits"}.get(value, value or "empty")
    return Case(
        f"config-value/{name}-{shown}",
        (*TRAIN, f"--config.{name}={value}"),
        wanted=wanted,
        separate=separate,
        slow=wanted == "clean",
    )


FILES = {
    "empty": b"",
    "syntax-error": b"def get_config(:\n",
    "not-utf-8": b"# caf\xe9\n",
    "nul": b"x = 1\0\n",
    "raises": b"raise ValueError('no')\n",
    "exits": b"import sys\nsys.exit(0)\n",
    "recursion": b"def get_config():\n    return get_config()\n",
    "no-get_config": b"config = {}\n",
    "get_config-is-not-a-function": b"get_config = 3\n",
    "get_config-raises": b"def get_config():\n    raise KeyError('a')\n",
    "returns-nothing": b"def get_config():\n    pass\n",
    "returns-a-list": b"def get_config():\n    return [1]\n",
    "returns-no-settings": b"def get_config():\n    return {}\n",
    "number-as-a-key": b"def get_config():\n    return {3: 4, 'task': {'name': 'a', 'source': 'data'}}\n",
    "function-as-a-value": b"def get_config():\n    return {'trunk': print, 'task': {'name': 'a', 'source': 'data'}}\n",
    "imports-a-missing-module": b"import no_such_module\n",
    "needs-an-argument": b"def get_config(task):\n    return {}\n",
    "deep": b"x = " + DEEP[:5000].encode() + DEEP[-5000:].encode() + b"\n",
}


def files() -> Iterator[Case]:
    config = ("train", "--config=config.py", "--workdir=new")
    for name, contents in FILES.items():
        yield Case(f"config-file/python-{name}", config, (write("config.py", contents),), separate=name == "deep")
    for name, damage in (("folder", make_folder), ("link-to-itself", link_loop)):
        yield Case(f"config-file/python-{name}", config, (damage("config.py"),))
    for name, given in {
        "missing": "nowhere.py",
        "empty-name": "",
        "only-a-colon": ":",
        "300-characters": "a" * 300 + ".py",
        "half-a-surrogate": "\udcff.py",
        "unknown-argument": "tiny.py:foo=3",
        "argument-without-a-value": "tiny.py:task",
        "argument-without-a-name": "tiny.py:=3",
        "argument-is-not-a-name": "tiny.py:a.b=3",
        "argument-of-another-type": "tiny.py:task=3",
        "http": "http://x/y.py",
        "device": "/dev/null",
    }.items():
        yield Case(f"config-file/name-{name}", ("train", f"--config={given}", "--workdir=new"))
    json_config = ("train", "--config=config.json", "--workdir=new")
    for name, contents in NOT_AN_OBJECT.items():
        yield Case(f"config-file/json-{name}", json_config, (write("config.json", contents),))
    for name, damage in (("folder", make_folder), ("link-to-itself", link_loop)):
        yield Case(f"config-file/json-{name}", json_config, (damage("config.json"),))
    for path, value in (
        ("task", None),
        ("task", []),
        ("task.name", 3),
        ("task.name", Drop),
        ("sources", 3),
        ("sources", [None]),
        ("sources", [{}]),
        ("sources", [{"task": []}]),
        ("tasks", 3),
        ("tasks", [3]),
        ("train", None),
        ("train.learning_rate", "fast"),
        ("adapter.kind", "bottelneck"),
        ("adapter.kind", []),
        ("seed", 0.5),
        ("unknown", 1),
    ):
        damage = edit_json("solo/config.json", {path: value})
        argv = ("train", "--config=solo/config.json", "--workdir=new")
        yield Case(f"config-file/json-{path}-{plain(value)}", argv, (damage,))


# Settings passed from Python: ``{class: (module, required settings, {field: invalid values})}``.
CLASSES: Mapping[str, tuple[str, dict[str, Any], dict[str, tuple[Any, ...]]]] = {
    "TaskConfig": (
        "afjax.config.tasks",
        {"name": "rte"},
        {
            "name": (3, None, "", ".", "a/b", "a\nb", "a,b", "a" * 300, "\ud800", b"rte"),
            "kind": ("clasification", "", None, 3, []),
            "metric": ("acuracy", 3, []),
            "labels": ("few", ("a", "a"), (1, 2), 3, ("",)),
            "source": (3, None),
            "train_rows": (-1, 1.5, "3", True),
            "scale": (float("nan"), 0, -1.0, "5", 2.0),
            "choices": ("a", 3, (1,)),
            "span": (None, 3),
        },
    ),
    "TrainConfig": (
        "afjax.config.training",
        {},
        {
            "learning_rate": (float("nan"), float("inf"), -1.0, "fast"),
            "epochs": (float("inf"), -1, "3", None),
            "max_steps": (1e23, 1.5, -1, "3", None, True),
            "batch_size": (0, -1, 1.5, 2.0, "8", None, True),
            "max_length": (0, 3, 16.0, "16", None),
            "buckets": (3, (0,), (99999,), (1.5,), "16", None),
            "warmup": (1.0, -0.1, float("nan"), "0.1", None),
            "decay_from": ("end", None, 3),
            "weight_decay": (float("nan"), -1, "0"),
            "clip_by": ("none", None),
            "adam_b1": (1.0, float("nan"), "0.9"),
            "adam_epsilon": (0.0, float("nan")),
            "dropout": ("yes", 0.1, None),
            "patience": (-1, 1.5, None),
            "eval_every": (-1, 0.5, None),
            "prng": ("mt19937", None),
        },
    ),
    "AdapterConfig": (
        "afjax.config.adapters",
        {},
        {
            "kind": ("pal", "bottelneck", None),
            "position": ("middle", None, []),
            "reduction_factor": (0, -1.0, float("nan"), "16"),
            "size": (0, -1, 1.5, "64"),
            "activation": ("rleu", None, 3),
            "init": ("uniform", None),
            "init_scale": (-1.0, float("nan"), "0.02"),
            "scaling": (float("inf"), "1", None),
            "layers": ((), (-1,), (0, 0), 3, (0.5,), "0"),
            "layer_norms": (1, "yes"),
        },
    ),
    "FusionConfig": (
        "afjax.config.fusion",
        {},
        {
            "temperature": (0, -1.0, float("nan"), "1"),
            "dropout": (1.0, -0.1, float("nan"), "0.1"),
            "subset": (0, -1, 1.5),
            "regularization": (-1, float("nan")),
            "kept": (3, ((3,),), (((0,), (0, 1)),)),
            "value": ("dynamic", 3),
        },
    ),
    "HeadConfig": (
        "afjax.config.heads",
        {},
        {
            "pooling": ("max", 3),
            "pooler": ("mean", None),
            "hidden_layers": (-1, 0.5, "1"),
            "activation": ("rleu",),
            "dropout": (1.0, "0.1"),
        },
    ),
    "PalConfig": ("afjax.config.adapters", {}, {"size": (0, 205, 1.5), "num_heads": (0, 7, "12"), "placement": ("x",)}),
    "SamplingConfig": (
        "afjax.config.training",
        {},
        {"sampler": ("anealed", None), "steps_per_epoch": (0, -1, 1.5, None)},
    ),
    "MeshConfig": ("afjax.config.training", {}, {"data": (0, -2, 1.5, None), "fsdp": (0, "2"), "tensor": (0, None)}),
    "SpanConfig": ("afjax.config.tasks", {}, {"doc_stride": (0, 1.5), "no_answer": ("no",), "num_best": (0,)}),
}


def python_settings() -> Iterator[Case]:
    for name, (module, complete, fields) in CLASSES.items():
        for field, wrong in fields.items():
            for value in wrong:
                call = functools.partial(_make, module, name, {**complete, field: value})
                yield Case(f"python-settings/{name}.{field}-{type(value).__name__}-{plain(value)}", call=call)


def _make(module: str, name: str, settings: dict[str, Any]) -> object:
    import importlib

    return getattr(importlib.import_module(module), name)(**settings)


def cases() -> Iterator[Case]:
    families: tuple[Callable[[], Iterator[Case]], ...] = (values, files, python_settings)
    for family in families:
        yield from family()
