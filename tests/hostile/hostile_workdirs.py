"""Hostile workdirs: damaged records, damaged checkpoints, and runs that resume with changed inputs."""

from collections.abc import Iterator, Mapping
from typing import Any

from hostile_base import jsonl, pair_rows, single_rows
from hostile_case import (
    DEEP,
    DIGITS,
    LONG,
    NOT_AN_OBJECT,
    REPEAT,
    RESUME,
    TRAIN,
    Case,
    Damage,
    Drop,
    Raw,
    append,
    changed,
    cut,
    edit_json,
    flip,
    link_loop,
    make_folder,
    remove,
    write,
)
from hostile_stores import of_data

REPORT = ("report", "--workdir=run", "--store=store", "--output=report.html")
TABLE = ("table", "adapterfusion", "--runs=run")
COMPARE = ("compare", "solo", "solo", "--trunk=trunk", "--store=store")
READERS = {"report": REPORT, "table": TABLE}

# Records that the runs ``half`` and ``run`` need when they restart.
HALF = ("config.json", "inputs.json", "store.json")
RUN = ("config.json", "inputs.json", "store.json", "target/result.json", "sources/first/result.json")
SHORT = tuple(name for name in NOT_AN_OBJECT if name not in ("only-spaces", "true", "open-list", "single-quotes"))


def damaged_records() -> Iterator[Case]:
    for file in HALF:
        for name in SHORT:
            damage = write(f"half/{file}", NOT_AN_OBJECT[name])
            yield Case(f"workdir/half-{_shown(file)}-{name}", RESUME, (damage,))
    for file in RUN:
        for name in (
            "null",
            "number",
            "list-of-an-object",
            "open-brace",
            "deep-list",
            "utf-16",
            "many-digits",
            "empty",
        ):
            damage = write(f"run/{file}", NOT_AN_OBJECT[name])
            yield Case(f"workdir/run-{_shown(file)}-{name}", REPEAT, (damage,))
    for file in ("config.json", "target/result.json", "target/metrics.jsonl", "target/usage.json"):
        for name in ("null", "list-of-an-object", "open-brace", "deep-list", "many-digits", "latin-1"):
            for command, argv in READERS.items():
                damage = write(f"run/{file}", NOT_AN_OBJECT[name])
                # A report does not require logs and usage.
                wanted = "refused" if "config" in file or "result" in file else "clean"
                yield Case(f"workdir/{command}-{_shown(file)}-{name}", argv, (damage,), wanted=wanted)
    for file in ("config.json", "target/result.json"):
        for name in ("null", "open-brace", "deep-list"):
            damage = write(f"solo/{file}", NOT_AN_OBJECT[name])
            yield Case(f"workdir/compare-{_shown(file)}-{name}", COMPARE, (damage,))
    for file in (*HALF, "target/metrics.jsonl"):
        for name, damage in (("folder", make_folder(f"half/{file}")), ("link-to-itself", link_loop(f"half/{file}"))):
            # The log is opened only after the run has started.
            yield Case(f"workdir/half-{_shown(file)}-{name}", RESUME, (damage,), begins="metrics" in file)
    for file in HALF[:2]:
        yield Case(f"workdir/half-{_shown(file)}-cut-off", RESUME, (cut(f"half/{file}", 0.5),))
    for name in ("null", "list", "open-brace", "deep-object", "many-digits", "number"):
        contents = NOT_AN_OBJECT[name]
        damage = _of_record(write(f"run/target/{RECORD}", contents), write(f"run/target/{OLD_RECORD}", contents))
        yield Case(f"workdir/run-record-{name}", REPEAT, (damage, remove("run/target/result.json")))


# The record that a fusion run writes at its start, and the record's name in earlier versions.
RECORD, OLD_RECORD = "run.json", "fused.json"


def _of_record(damage: Damage, old: Damage) -> Damage:
    """Returns a change that damages the fusion run's record, under its current or former name."""
    return lambda sandbox: (damage if (sandbox / "run/target" / RECORD).exists() else old)(sandbox)


def _shown(file: str) -> str:
    return file.replace("/", "-").partition(".")[0]


RESULTS: Mapping[str, Mapping[str, Any]] = {
    "name-number": {"0.name": 3},
    "name-missing": {"0.name": Drop},
    "metrics-null": {"0.metrics": None},
    "metrics-list": {"0.metrics": [1]},
    "score-text": {"0.metrics.accuracy": "high"},
    "score-null": {"0.metrics.accuracy": [0.5]},
    "main-metric-other": {"0.main_metric": "no_such_metric"},
    "main-metric-number": {"0.main_metric": 3},
    "unknown-key": {"0.extra": 1},
    "deep": {"0.metrics": Raw(DEEP)},
    "many-digits": {"0.metrics.step": Raw(DIGITS)},
}
CONFIGS: Mapping[str, Mapping[str, Any]] = {
    "learning-rate": {"train.learning_rate": 1e-6},
    "learning-rate-text": {"train.learning_rate": "fast"},
    "train-null": {"train": None},
    "train-deep": {"train": Raw(DEEP)},
    "task-null": {"task": None},
    "task-list": {"task": []},
    "adapter-text": {"adapter": "pfeiffer"},
    "activation": {"adapter.activation": "tanh"},
    "unknown-key": {"extra": 1},
    "recipe-unknown": {"recipe": "dual"},
    "seed-other": {"seed": 1},
    "seed-many-digits": {"seed": Raw(DIGITS)},
}
STORES: Mapping[str, Any] = {
    "empty": "",
    "number": 3,
    "null": None,
    "list": ["store"],
    "missing": Drop,
    "victim": "../../victim",
    "victim-within": "../data",
    "workdir-itself": ".",
    "file": "../rows.jsonl",
    "nul": "a\0b",
    "300-characters": LONG,
    "half-a-surrogate": "\udcff",
    "deep": Raw(DEEP),
    "proc": "/proc/self",
}


def changed_records() -> Iterator[Case]:
    for name, change in RESULTS.items():
        damage = edit_json("run/target/result.json", change)
        yield Case(f"workdir/run-result-{name}", REPEAT, (damage,))
        yield Case(f"workdir/table-result-{name}", TABLE, (damage,), wanted="warned")
    for name, change in CONFIGS.items():
        yield Case(f"workdir/half-config-{name}", RESUME, (edit_json("half/config.json", change),))
    for name in ("train-null", "task-null", "task-list", "adapter-text", "train-deep", "seed-many-digits"):
        damage = edit_json("run/config.json", CONFIGS[name])
        yield Case(f"workdir/table-config-{name}", TABLE, (damage,), wanted="warned")
        # The report is still written, and lists its missing inputs.
        yield Case(f"workdir/report-config-{name}", REPORT, (damage,), wanted="clean")
    for name, store in STORES.items():
        yield Case(f"workdir/half-store-is-{name}", RESUME, (edit_json("half/store.json", {"store": store}),))
    for name, change in {
        "trunk-other": {"the trunk": "0" * 64},
        "trunk-number": {"the trunk": 3},
        "trunk-list": {"the trunk": []},
        "trunk-missing": {"the trunk": Drop},
        "rows-other": {"task half's train rows": "0" * 64},
        "rows-missing": {"task half's dev rows": Drop},
    }.items():
        yield Case(f"workdir/half-inputs-{name}", RESUME, (edit_json("half/inputs.json", change),))
    for name, value in {"other": "0" * 64, "number": 3, "missing": Drop}.items():
        digest = _of_record(
            edit_json(f"run/target/{RECORD}", {"inputs.the adapter first": value}),
            edit_json(f"run/target/{OLD_RECORD}", {"first": value}),
        )
        yield Case(f"workdir/run-record-digest-{name}", REPEAT, (digest, remove("run/target/result.json")))


# Flags that change a run's result, so the run must not be resumed with them.
SETTINGS = {
    "learning_rate": "--config.train.learning_rate=0.5",
    "batch_size": "--config.train.batch_size=8",
    "epochs": "--config.train.epochs=3",
    "max_steps": "--config.train.max_steps=9",
    "activation": "--config.adapter.activation=tanh",
    "scaling": "--config.adapter.scaling=40.0",
    "size": "--config.adapter.size=4",
    "seed": "--config.seed=1",
    "partition": "--config.partition=head",
    "head": "--config.head.hidden_layers=1",
    "metric": "--config.task.metric=f1",
    "trunk_dtype": "--config.trunk_dtype=bfloat16",
    "name": "--config.name=other",
}


def changed_runs() -> Iterator[Case]:
    for name, flag in SETTINGS.items():
        yield Case(f"workdir/half-setting-{name}", changed(RESUME, flag))
        if name != "partition":
            yield Case(f"workdir/run-setting-{name}", changed(REPEAT, flag))
    rows = pair_rows()
    for name, split, contents in (
        ("train-rows-fewer", "train", jsonl(rows[:-1])),
        ("train-rows-in-another-order", "train", jsonl(rows[::-1])),
        ("train-labels-swapped", "train", jsonl([{**row, "label": "few"} for row in rows[:1]] + rows[1:])),
        ("dev-rows-fewer", "dev", jsonl(rows[:-1])),
        ("dev-rows-of-single-texts", "dev", jsonl(single_rows())),
        ("train-rows-missing", "train", b""),
    ):
        yield Case(f"workdir/half-{name}", RESUME, (write(f"data/{split}.jsonl", contents),))
        yield Case(f"workdir/run-{name}", REPEAT, (write(f"data/{split}.jsonl", contents),))
    yield Case("workdir/half-other-store", (*RESUME, "--store=store"))
    yield Case("workdir/half-store-is-a-file", (*RESUME, "--store=rows.jsonl"))
    yield Case("workdir/another-experiment", changed(TRAIN, "--workdir=run"))


STEP = "half/target/checkpoints/1"


def checkpoints() -> Iterator[Case]:
    kinds: dict[str, Damage] = {
        "step-empty": make_folder(STEP),
        "step-is-a-file": write(STEP, b""),
        "step-links-to-itself": link_loop(STEP),
        "state-missing": remove(f"{STEP}/state"),
        "best-missing": remove(f"{STEP}/best"),
        "progress-missing": remove(f"{STEP}/progress"),
        "state-metadata-null": write(f"{STEP}/state/_METADATA", b"null"),
        "state-metadata-deep": write(f"{STEP}/state/_METADATA", NOT_AN_OBJECT["deep-object"]),
        "state-metadata-empty": write(f"{STEP}/state/_METADATA", b""),
        "state-data-missing": of_data(f"{STEP}/state", remove),
        "state-data-empty": of_data(f"{STEP}/state", lambda path: write(path, b"")),
        "state-data-half": of_data(f"{STEP}/state", lambda path: cut(path, 0.5)),
        "state-data-flipped": of_data(f"{STEP}/state", lambda path: flip(path, 0.6)),
        "best-data-half": of_data(f"{STEP}/best", lambda path: cut(path, 0.5)),
        "progress-nested-null": write(f"{STEP}/progress/metadata", b'{"inputs": null, "progress": null}'),
        "progress-numbers": write(f"{STEP}/progress/metadata", b'{"inputs": 3, "progress": 3}'),
        "progress-of-another-run": edit_json(f"{STEP}/progress/metadata", {"inputs.the seed": "7"}),
        "progress-best-text": edit_json(f"{STEP}/progress/metadata", {"progress.best": "high"}),
        "progress-evals-text": edit_json(f"{STEP}/progress/metadata", {"progress.looks_since_best": "many"}),
        **{
            f"progress-{name}": write(f"{STEP}/progress/metadata", NOT_AN_OBJECT[name])
            for name in ("null", "list", "string", "open-brace", "deep-object", "many-digits", "empty", "utf-16")
        },
        "state-longer": of_data(f"{STEP}/state", lambda path: append(path, b"0")),
        "folder-is-a-file": write("half/target/checkpoints", b""),
        "target-is-a-file": write("half/target", b""),
    }
    for name, damage in kinds.items():
        # A file is not a checkpoint, so the run starts over.
        wanted = "clean" if name in ("state-longer", "step-is-a-file") else "refused"
        # A run reserves its names in the store before it reads its checkpoint.
        yield Case(f"checkpoint/{name}", RESUME, (damage,), wanted=wanted, begins=True)


def cases() -> Iterator[Case]:
    for family in (damaged_records, changed_records, changed_runs, checkpoints):
        yield from family()
