"""Hostile outputs, workdirs and flags for all commands, hostile Python calls, and good inputs of every kind."""

import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from hostile_base import jsonl, pair_rows, single_rows
from hostile_case import (
    DIGITS,
    EVAL,
    LONG,
    PREDICT,
    REPEAT,
    RESUME,
    TRAIN,
    Case,
    Damage,
    changed,
    full_device,
    link,
    link_loop,
    make_folder,
    write,
)
from hostile_stores import FUSED

MODEL = PREDICT[1:5]
WRITERS = {
    "predict": PREDICT,
    "adapterdrop": ("adapterdrop", *MODEL, "--source=data", "--output=out.csv"),
    "prune": (
        "prune",
        *FUSED[1:3],
        "--fusion=target-fusion",
        "--head=target-fusion",
        "--source=data",
        "--output=o.csv",
    ),
    "pack": ("store", "pack", "first", "--store=store", "--output=new.tar"),
    "stablehlo": ("export", "stablehlo", *MODEL, "--output=new.hlo", "--platforms=cpu", "--max_length=16"),
    "adapterhub": ("export", "adapterhub", "first", "--store=store", "--output=new"),
    "report": ("report", "--workdir=run", "--store=store", "--output=report.html"),
    "table": ("table", "adapterfusion", "--runs=run", "--output=table.txt"),
    "plot": ("plot", "tradeoff", "--runs=run", "--output=figure"),
}
# This command creates a folder, so an existing folder is not an error.
MAKES_A_FOLDER = ("adapterhub",)
ENDINGS = {"pack": ".tar", "report": ".html"}


def outputs() -> Iterator[Case]:
    for command, argv in WRITERS.items():
        ending = ENDINGS.get(command, "")
        kinds: dict[str, tuple[str, Damage | None]] = {
            "folder": (f"folder{ending}", make_folder(f"folder{ending}")),
            "below-a-file": (f"rows.jsonl/out{ending}", None),
            "link-to-itself": (f"loop{ending}", link_loop(f"loop{ending}")),
            "below-a-link-to-itself": (f"loop/out{ending}", link_loop("loop")),
            "300-characters": (LONG + ending, None),
            "half-a-surrogate": (f"\udcff{ending}", None),
            "empty": ("", None),
            "full-device": (f"full{ending}", full_device(f"full{ending}")),
            "url": (f"http://x/y{ending}", None),
        }
        for name, (output, damage) in kinds.items():
            # A figure is written to three files, each with a suffix added to the given name, so an entry with the bare
            # name is not in the way.
            if (command == "plot" and name in ("folder", "link-to-itself", "full-device")) or (
                command in MAKES_A_FOLDER and name == "folder"
            ):
                continue
            # Some file systems accept any bytes in names. A URL is also a valid path whose folders can be created.
            wanted = "clean" if name in ("half-a-surrogate", "url") else "refused"
            flag = f"--output={output}"
            slow = command not in ("pack", "adapterhub", "table")
            yield Case(
                f"output/{command}-{name}", changed(argv, flag), (damage,) if damage else (), None, wanted, slow=slow
            )
        if command != "plot":
            for size in (0, 100):
                yield Case(f"output/{command}-full-disk-{size}", argv, slow=True, max_file_bytes=size)


FOLDERS: Mapping[str, str] = {
    "empty": "",
    "blank": " ",
    "file": "rows.jsonl",
    "below-a-file": "rows.jsonl/new",
    "link-to-itself": "loop",
    "below-a-link-to-itself": "loop/new",
    "link-to-nothing-below-a-file": "hanging",
    "device": "/dev/null",
    "300-characters": LONG,
    "5000-characters": "a" * 5000,
    "half-a-surrogate": "\udcff",
    "http": "http://x/y",
    "proc": "/proc/nowhere",
    "folder-with-other-files": "data",
}
SWEEP = ("sweep", "--config=tiny.py:recipe=single,task=new", "--workdir=new", "--grid.train.learning_rate=1e-3,1e-4")


def folders() -> Iterator[Case]:
    damage = (link_loop("loop"), link("hanging", "rows.jsonl/nowhere"))
    for name, folder in FOLDERS.items():
        wanted = "clean" if name in ("blank", "half-a-surrogate", "http", "folder-with-other-files") else "refused"
        slow = wanted == "clean"
        yield Case(f"workdirs/train-{name}", changed(TRAIN, f"--workdir={folder}"), damage, None, wanted, slow=slow)
        if name != "folder-with-other-files":
            yield Case(f"workdirs/store-{name}", (*TRAIN, f"--store={folder}"), damage, None, wanted, slow=slow)
        if wanted == "refused":
            yield Case(f"workdirs/sweep-{name}", changed(SWEEP, f"--workdir={folder}"), damage)
            yield Case(f"workdirs/report-{name}", ("report", f"--workdir={folder}", "--output=report.html"), damage)
            yield Case(f"workdirs/table-{name}", ("table", "adapterfusion", f"--runs={folder}"), damage)


# ``{name: (command, {flag: invalid values})}``.
NUMBERS = ("0", "-1", "x", "1.5", "", "nan", DIGITS)
FLAGS: Mapping[str, tuple[tuple[str, ...], Mapping[str, tuple[str, ...]]]] = {
    "predict": (PREDICT, {"--batch_size": NUMBERS, "--max_length": ("0", "3", "129", "-1", "x", DIGITS)}),
    "eval": (EVAL, {"--batch_size": NUMBERS, "--max_length": ("0", "129", "x"), "--split": ("", "validation")}),
    "adapterdrop": (WRITERS["adapterdrop"], {"--batch_size": ("0", "-1", DIGITS), "--split": ("x",)}),
    "prune": (
        WRITERS["prune"],
        {"--rank_rows": ("0", "-1", "x"), "--keep": ("0", "1", "9", "x"), "--batch_size": ("0",), "--name": ("x",)},
    ),
    "stablehlo": (WRITERS["stablehlo"], {"--max_length": ("0", "-1", "999", DIGITS), "--platforms": ("", "gpux", ",")}),
    "table": (
        WRITERS["table"],
        {"--format": ("", "pdf"), "--seeds": ("x", "-"), "--tasks": ("nowhere",), "--metric": ("no_such",)},
    ),
    "report": (WRITERS["report"], {"--mistakes": ("-1", "x"), "--batch_size": ("0", "x")}),
    "sweep": (
        SWEEP,
        {
            "--seeds": ("", "x", "1,1", "-1", "0,,1", "1.5", DIGITS),
            "--grid.train.learning_rate": ("", ",", "x", "1e-3,1e-3", "[1e-3"),
            "--grid.foo": ("1",),
            "--grid.seed": ("1",),
            "--adapters": ("nowhere", "rows.jsonl"),
        },
    ),
    "compare": (
        ("compare", "adapter:first", "fusion:target-fusion", "--store=store", "--trunk=trunk", "--source=data"),
        {
            "--resamples": ("0", "-1", "x"),
            "--seed": ("-1", "x", DIGITS),
            "--batch_size": ("0",),
            "--max_length": ("0", "999"),
            "--metric": ("no_such",),
            "--store": ("nowhere", ""),
            "--trunk": ("./nowhere",),
        },
    ),
    "data": (
        ("data", "show", "target", "--source=data", "--trunk=trunk"),
        {"--batch_size": ("0", "-1", "x"), "--max_length": ("0", "-1", "x", "999"), "--split": ("x",)},
    ),
    "train": (TRAIN, {"--num_processes": ("x", "0", "-1"), "--process_id": ("x",)}),
    "bench": (
        ("bench", "--trunk=trunk", "--method=full", "--mode=eval", "--max_length=16"),
        {"--num_steps": ("0", "-1"), "--batch_size": ("0", "-1"), "--max_length": ("0", "999"), "--mode": ("x",)},
    ),
}
LINES: Mapping[str, tuple[str, ...]] = {
    "nothing": (),
    "unknown-command": ("trian",),
    "unknown-layout": ("table", "no_such", "--runs=run"),
    "unknown-kind": ("store", "pack", "first", "--store=store", "--output=a.tar", "--kind=models"),
    "wrong-kind": ("store", "pack", "first", "--store=store", "--output=a.tar", "--kind=fusion"),
    "not-a-tar": ("store", "pack", "first", "--store=store", "--output=a.zip"),
    "show-nothing": ("store", "show", "--store=store"),
    "list-a-name": ("store", "ls", "first", "--store=store"),
    "runs-without-results": ("table", "adapterfusion", "--runs=data"),
    "runs-with-an-empty-name": ("table", "adapterfusion", "--runs=run,"),
    "compare-unknown-kind": ("compare", "model:first", "adapter:second", "--store=store", "--trunk=trunk"),
    "compare-unknown-name": ("compare", "adapter:frist", "adapter:second", "--store=store", "--trunk=trunk"),
    "compare-unfinished": ("compare", "half", "solo", "--trunk=trunk"),
    "compare-empty": ("compare", "", "solo", "--trunk=trunk"),
    "report-unfinished": ("report", "--workdir=half", "--output=report.html"),
    "import-a-file": ("import", "adapterhub", "rows.jsonl", "--store=store", "--trunk=trunk"),
    "import-a-store": ("import", "adapterhub", "store/adapters/first", "--store=store", "--trunk=trunk"),
    "import-missing": ("import", "adapterhub", "./nowhere", "--store=store", "--trunk=trunk"),
    "import-peft-a-file": ("import", "peft", "rows.jsonl", "--store=store", "--trunk=trunk"),
    "import-peft-a-store": ("import", "peft", "store/adapters/first", "--store=store", "--trunk=trunk"),
    "import-peft-missing": ("import", "peft", "./nowhere", "--store=store", "--trunk=trunk"),
    "export-peft-a-bottleneck": ("export", "peft", "first", "--store=store", "--output=new"),
    "import-bert-missing": ("import", "bert", "nowhere", "--output=new"),
    "import-bert-n-pals-missing": (
        *("import", "bert-n-pals", "nowhere.pth", "--config=nowhere.json"),
        *("--tasks=rte", "--output=new", "--store=store"),
    ),
    "submit-missing-data": ("submit", "glue", "--store=store", "--trunk=trunk", "--data_dir=nowhere", "--output=new"),
    "submit-missing-heads": ("submit", "glue", "--store=store", "--trunk=trunk", "--data_dir=data", "--output=new"),
    "submit-onto-a-file": (
        *("submit", "glue", "--store=store", "--trunk=trunk", "--data_dir=data"),
        "--output=rows.jsonl",
    ),
    "submit-unknown-task": (
        *("submit", "glue", "--store=store", "--trunk=trunk", "--data_dir=data"),
        *("--output=new", "--tasks=ret"),
    ),
    "predict-onto-its-input": changed(PREDICT, "--output=rows.jsonl"),
    "tpu-unknown-topology": ("tpu", "--topology=v9e:1x1", "--method=full"),
    "tpu-nothing-to-plan": ("tpu", "--topology=v5e:2x4"),
}


def flags() -> Iterator[Case]:
    for command, (argv, wrong) in FLAGS.items():
        for flag, given in wrong.items():
            for value in given:
                shown = "5000-digits" if value == DIGITS else value or "empty"
                yield Case(f"flags/{command}{flag}={shown}", changed(argv, f"{flag}={value}"))
    for name, argv in LINES.items():
        yield Case(f"commands/{name}", argv)


# Hostile Python calls.


def _function(module: str, name: str, *arguments: Any, **settings: Any) -> Callable[[], object]:
    def call() -> object:
        import importlib

        return getattr(importlib.import_module(module), name)(*arguments, **settings)

    return call


LISTS: Mapping[str, tuple[tuple[Any, ...], dict[str, Any]]] = {
    "one-text": (("a text",), {}),
    "nothing": (([],), {}),
    "none": ((None,), {}),
    "number": ((3,), {}),
    "bytes": (([b"a"],), {}),
    "set": (({"a", "b"},), {}),
    "columns": (({"text": ["a"], "label": ["x"]},), {}),
    "numbers": (([1, 2],), {}),
    "nothing-in-a-list": (([None],), {}),
    "triples": (([("a", "b", "c")],), {}),
    "mixed": ((["a", ("a", "b")],), {}),
    "mixed-pairs-first": (([("a", "b"), "a"],), {}),
    "half-a-surrogate": ((["\ud800"],), {}),
    "labels-too-few": ((["a", "b"], ["x"]), {}),
    "labels-one-text": ((["a", "b"], "xy"), {}),
    "labels-number": ((["a"], 3), {}),
    "label-none": ((["a", "b"], ["x", None]), {}),
    "label-empty": ((["a", "b"], ["x", ""]), {}),
    "label-nan": ((["a", "b"], [float("nan"), "x"]), {}),
    "label-list": ((["a", "b"], [["x"], ["y"]]), {}),
    "label-object": ((["a", "b"], [{}, {}]), {}),
    "label-bool-and-text": ((["a", "b"], [True, "True"]), {}),
    "label-number-and-text": ((["a", "b"], [1, "1"]), {}),
    "label-fraction": ((["a", "b"], [0.5, 1.5]), {}),
    "label-unknown": ((["a", "b"], ["x", "z"]), {"label_names": ("x", "y")}),
    "label-out-of-range": ((["a", "b"], [0, 2]), {"label_names": ("x", "y")}),
    "label-negative": ((["a", "b"], [0, -1]), {"label_names": ("x", "y")}),
    "label-huge": ((["a", "b"], [0, 10**30]), {"label_names": ("x", "y")}),
    "names-one-text": ((["a", "b"], ["x", "y"]), {"label_names": "xy"}),
    "names-twice": ((["a", "b"], ["x", "x"]), {"label_names": ("x", "x")}),
    "names-numbers": ((["a", "b"], [0, 1]), {"label_names": (1, 2)}),
    "names-empty-text": ((["a", "b"], [0, 1]), {"label_names": ("x", "")}),
    "kind-misspelled": ((["a"], ["x"]), {"kind": "clasification"}),
    "kind-none": ((["a"], ["x"]), {"kind": None}),
    "kind-list": ((["a"], ["x"]), {"kind": []}),
    "regression-text": ((["a"], ["x"]), {"kind": "regression"}),
    "regression-nan": ((["a"], [float("nan")]), {"kind": "regression"}),
    "regression-infinity": ((["a"], [float("inf")]), {"kind": "regression"}),
    "regression-bool": ((["a"], [True]), {"kind": "regression"}),
    "regression-huge": ((["a"], [10**400]), {"kind": "regression"}),
    "choices-texts": ((["a"], [0]), {"kind": "multiple_choice"}),
    "choices-none": (([("a", [])], [0]), {"kind": "multiple_choice"}),
    "choices-numbers": (([("a", [1, 2])], [0]), {"kind": "multiple_choice"}),
    "choices-label-beyond": (([("a", ["b", "c"])], [2]), {"kind": "multiple_choice"}),
    "span-texts": ((["a"],), {"kind": "span"}),
    "span-label-text": (([("a", "b")], ["b"]), {"kind": "span"}),
    "span-answer-elsewhere": (([("a", "b")], [{"text": ["c"], "answer_start": [0]}]), {"kind": "span"}),
    "span-start-negative": (([("a", "b")], [{"text": ["b"], "answer_start": [-2]}]), {"kind": "span"}),
    "span-start-text": (([("a", "b")], [{"text": ["b"], "answer_start": ["0"]}]), {"kind": "span"}),
}


def python_calls() -> Iterator[Case]:
    for name, (arguments, settings) in LISTS.items():
        call = _function("afjax.tasks.load", "rows_from_lists", *arguments, **settings)
        wanted = "warned" if name.endswith("-and-text") else "refused"
        yield Case(f"python-rows/{name}", call=call, wanted=wanted)
    for name, change in {
        "task-is-a-name": {"task": "rte"},
        "data-is-a-list": {"data": []},
        "data-with-unknown-split": {"data": "unknown split"},
        "data-with-validation": {"data": "validation"},
        "data-of-lists": {"data": {"train": ["a"], "dev": ["a"]}},
        "dev-of-other-labels": {"data": "other labels"},
        "dev-of-single-texts": {"data": "single dev"},
        "partition-misspelled": {"partition": "adaptor"},
        "partition-none": {"partition": None},
        "top_k-negative": {"partition": "top_k", "top_k": -1},
        "top_k-beyond": {"partition": "top_k", "top_k": 99},
        "adapter-is-a-name": {"adapter": "pfeiffer"},
        "head-is-a-name": {"head": "head"},
        "config-is-a-mapping": {"config": {"learning_rate": 1e-3}},
        "seed-negative": {"seed": -1},
        "seed-text": {"seed": "0"},
        "seed-huge": {"seed": 10**30},
        "seed-fraction": {"seed": 0.5},
        "remat-misspelled": {"remat": "layer"},
        "name-with-a-slash": {"name": "a/b"},
        "name-number": {"name": 3},
        "workdir-empty": {"workdir": ""},
        "workdir-number": {"workdir": 3},
        "workdir-file": {"workdir": "rows.jsonl"},
        "trunk-is-a-name": {"trunk": "trunk"},
    }.items():
        wanted = "accepted" if name == "data-with-validation" else "refused"
        yield Case(f"python-train/{name}", call=functools.partial(_train_single, change), wanted=wanted)


def _train_single(change: Mapping[str, Any]) -> object:
    from afjax.config.methods import Method
    from afjax.config.tasks import TaskConfig
    from afjax.config.training import TrainConfig
    from afjax.tasks.load import rows_from_lists
    from afjax.train.options import RunOptions
    from afjax.train.single import train_single
    from afjax.trunk.pretrained import load_trunk

    def split(rows: list[dict], names: tuple[str, ...] = ("few", "many")) -> object:
        texts = [row["text"] if "text" in row else (row["text_a"], row["text_b"]) for row in rows]
        return rows_from_lists(texts, [row["label"] for row in rows], label_names=names)

    def other_data(name: str) -> dict[str, object]:
        if name in ("validation", "unknown split"):
            other = "validation" if name == "validation" else "dve"
            return {"train": split(pair_rows()), other: split(pair_rows())}
        if name == "single dev":
            return {"train": split(pair_rows()), "dev": split(single_rows())}
        dev = [{**row, "label": "none" if row["label"] == "many" else "few"} for row in pair_rows()]
        return {"train": split(pair_rows()), "dev": split(dev, ("few", "none", "some"))}

    arguments: dict[str, Any] = {
        "trunk": load_trunk("trunk"),
        "task": TaskConfig(name="new"),
        "data": {"train": split(pair_rows()), "dev": split(pair_rows())},
        "workdir": "new",
        "config": TrainConfig(max_steps=1, batch_size=4, max_length=16, buckets=(16,)),
    } | dict(change)
    if isinstance(arguments["data"], str):
        arguments["data"] = other_data(arguments["data"])
    options = {name: arguments.pop(name) for name in ("seed", "remat", "name") if name in arguments}
    method = {name: arguments.pop(name) for name in ("partition", "top_k", "adapter", "head") if name in arguments}
    return train_single(**arguments, method=Method(**method), options=RunOptions(**options))


# Good inputs, which must be accepted.


def good_inputs() -> Iterator[Case]:
    csv = b'text_a,text_b,label\nall of the two,some,many\n"a, b",some,few\n'
    commands: dict[str, tuple[tuple[str, ...], tuple[Damage, ...]]] = {
        "predict": (PREDICT, ()),
        "predict-fusion": (FUSED, ()),
        "predict-single-texts": (
            changed(PREDICT, "--adapter=solo", "--head=solo"),
            (write("rows.jsonl", jsonl(single_rows())),),
        ),
        "predict-onto-a-file": (PREDICT, (write("out.jsonl", b"old\n"),)),
        "predict-into-a-device": (changed(PREDICT, "--output=/dev/null"), ()),
        "predict-with-a-byte-order-mark": (PREDICT, (write("rows.jsonl", b"\xef\xbb\xbf" + jsonl(pair_rows())),)),
        "predict-windows-line-ends": (PREDICT, (write("rows.jsonl", jsonl(pair_rows()).replace(b"\n", b"\r\n")),)),
        "predict-blank-lines": (PREDICT, (write("rows.jsonl", b"\n" + jsonl(pair_rows()) + b"\n\n"),)),
        "predict-other-columns": (
            PREDICT,
            (write("rows.jsonl", jsonl([{**row, "note": [1, {"a": None}]} for row in pair_rows()])),),
        ),
        "predict-no-last-line-end": (PREDICT, (write("rows.jsonl", jsonl(pair_rows()).rstrip(b"\n")),)),
        "predict-emoji": (PREDICT, (write("rows.jsonl", jsonl([{"text_a": "🙂 caf\u00e9", "text_b": "\u4e2d"}])),)),
        "predict-long-text": (PREDICT, (write("rows.jsonl", jsonl([{"text_a": "all " * 9999, "text_b": "a"}])),)),
        "predict-linked-store": (changed(PREDICT, "--store=linked"), (link("linked", "store"),)),
        "predict-linked-trunk": (changed(PREDICT, "--trunk=linked"), (link("linked", "trunk"),)),
        "predict-without-a-layer": (changed(PREDICT, "--drop_layers=0"), ()),
        "eval": (EVAL, ()),
        "eval-csv": (changed(EVAL, "--source=test.csv"), (write("test.csv", csv),)),
        "eval-csv-with-a-byte-order-mark": (
            changed(EVAL, "--source=test.csv"),
            (write("test.csv", b"\xef\xbb\xbf" + csv),),
        ),
        "eval-tsv": (
            changed(EVAL, "--source=test.tsv"),
            (write("test.tsv", b'text_a\ttext_b\tlabel\nall "of\tthe\tfew\nsome\tall\tmany\n'),),
        ),
        "train": (TRAIN, ()),
        "train-labels-file": (TRAIN, (write("data/labels.json", b'["few", "many"]'),)),
        "train-labels-of-words": (
            TRAIN,
            tuple(
                write(
                    f"data/{split}.jsonl",
                    jsonl(
                        [
                            {**row, "label": {"few": "New York", "many": "S\u00e3o Paulo"}[row["label"]]}
                            for row in pair_rows()
                        ]
                    ),
                )
                for split in ("train", "dev", "test")
            ),
        ),
        "train-labels-of-integers": (
            TRAIN,
            tuple(
                write(
                    f"data/{split}.jsonl", jsonl([{**row, "label": index % 2} for index, row in enumerate(pair_rows())])
                )
                for split in ("train", "dev", "test")
            ),
        ),
        "train-name-of-a-task": ((*TRAIN, "--config.name=my.task_1-x"), ()),
        "train-float-as-an-integer": ((*TRAIN, "--config.train.weight_decay=0"), ()),
        "train-resume": (RESUME, ()),
        "train-repeat": (REPEAT, ()),
        "store-verify": (("store", "verify", "--store=store"), ()),
        "store-list": (("store", "ls", "--store=store"), ()),
        "store-show": (("store", "show", "first", "--store=store"), ()),
        "store-pack": (("store", "pack", "target-fusion", "--store=store", "--output=new.tar"), ()),
        "store-unpack": (("store", "unpack", "packed.tar", "--store=new", "--name=other"), ()),
        "table": (WRITERS["table"], ()),
        "report": (WRITERS["report"], ()),
        "adapterdrop": (WRITERS["adapterdrop"], ()),
        "data-show": (("data", "show", "target", "--source=data", "--trunk=trunk", "--max_length=16"), ()),
    }
    for name, (argv, damage) in commands.items():
        yield Case(f"good/{name}", argv, damage, wanted="accepted")
    calls: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {
        "lists": ((["a", "b"], ["x", "y"]), {}),
        "lists-of-pairs": (([("a", "b"), ("c", "d")], [0, 1]), {"label_names": ("x", "y")}),
        "lists-of-numbers": ((["a", "b"], [0.5, 2]), {"kind": "regression"}),
        "lists-of-choices": (([("a", ["b", "c"])], [1]), {"kind": "multiple_choice"}),
    }
    for name, (arguments, settings) in calls.items():
        call = _function("afjax.tasks.load", "rows_from_lists", *arguments, **settings)
        yield Case(f"good/{name}", call=call, wanted="accepted")


def cases() -> Iterator[Case]:
    for family in (outputs, folders, flags, python_calls, good_inputs):
        yield from family()
