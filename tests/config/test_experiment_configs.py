"""Every file in ``configs/`` and every run of its sweep loads, and each config trains for one step."""

import ast
import itertools
import json
import math
import runpy
import shlex
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest

from afjax import store
from afjax.cli.experiments import load_experiment
from afjax.config.from_dict import to_dict
from afjax.errors import UserError
from afjax.train.experiment import run_experiment
from afjax.train.results import Result

pytestmark = pytest.mark.slow

FOLDER = Path(__file__).parents[2] / "configs"
CONFIGS = sorted(FOLDER.glob("*.py"))

# Arguments for each config, one string per run. DATA is a folder of tasks. Configs that train several models have
# separate tests.
ONE_STEP: dict[str, Sequence[str]] = {
    "adapter.py": ["task=rte,data=DATA"],
    "baselines.py": [
        "method=head,data=DATA/rte",
        "method=full,data=DATA/rte,task=mrpc,metric=f1",
        "method=houlsby,data=DATA/stsb,task=stsb,kind=regression,size=4",
        "method=pfeiffer,data=DATA/rte",
    ],
    "houlsby_extra.py": ["data=DATA/columns,text=message,label=topic,size=4"],
    "houlsby_glue.py": ["task=cola,data=DATA,size=4", "task=stsb,data=DATA,size=4"],
    "houlsby_squad.py": ["data=DATA,size=4"],
    "minilm_table.py": ["method=houlsby,data=DATA,size=4", "method=top_k,top_k=1,data=DATA", "method=mt,data=DATA"],
    "pals_glue.py": ["tasks=cola+stsb,data=DATA"],
    "pfeiffer_search.py": ["task=rte,data=DATA"],
    "sequential.py": ["tasks=rte+mrpc,data=DATA"],
    "single.py": ["task=rte,data=DATA/rte", "task=csqa,data_dir=DATA"],
}
# tests/docs/test_pages.py trains quickstart.py, and the tests below train the other three.
OWN_TESTS = {"quickstart.py", "fusion.py", "mt_adapter.py", "fusion_mt.py"}
RUNS = [(name, arguments) for name, runs in ONE_STEP.items() for arguments in runs]
TASKS = (
    "cola",
    "sst2",
    "mrpc",
    "rte",
    "qqp",
    "mnli",
    "qnli",
    "columns",
    "stsb",
    "csqa",
    "squad",
    "squad_v2",
    "sms_spam",
)


@pytest.mark.parametrize(
    "arguments",
    ["baselines:data_dir=D,data=D", "baselines:data_dir=D,kind=regression", "houlsby_extra:data_dir=D,text=message"],
)
def test_arguments_that_a_benchmark_task_would_ignore_are_refused(arguments: str) -> None:
    with pytest.raises(UserError, match="data_dir=D"):
        load_experiment(arguments, [])


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Creates a working folder with ``data``, ``DATA`` and ``mine.toml``, and returns ``data``.

    ``data`` and ``DATA`` are the same folder, with tiny files for every task. ``columns`` uses different column names.
    """
    folder = tmp_path_factory.mktemp("tasks")
    for task in (*TASKS, "sick", "scitail", "boolq", "cb", "imdb"):
        write_task(folder / "data" / task, task)
    (folder / "DATA").symlink_to(folder / "data")
    (folder / "mine.toml").write_text('source = "data/rte"\n')
    return folder / "data"


@pytest.fixture(autouse=True)
def working_folder(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Changes to the working folder, because commands and config defaults use relative paths."""
    monkeypatch.chdir(data.parent)


def write_task(folder: Path, task: str) -> None:
    folder.mkdir(parents=True)
    numbers = ("two", "three", "four", "five")
    rows = [write_row(task, word, number, index) for index, word in enumerate(("none", "all")) for number in numbers]
    for split, part in (("train", rows), ("dev", rows[2:6])):
        (folder / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in part))
    if task not in ("stsb", "csqa", "squad", "squad_v2"):
        (folder / "labels.json").write_text(json.dumps(["few", "many"]))


def write_row(task: str, word: str, number: str, index: int) -> dict[str, Any]:
    text = f"{word} of the {number}"
    if task == "csqa":
        return {"context": text, "choices": ["few", "many", "some"][: 2 + index], "label": index}
    if task.startswith("squad"):
        answers = {"text": [number], "answer_start": [text.index(number)]}
        return {"id": f"{index}{number}", "question": "most", "context": text, "answers": answers}
    label = float(index) if task == "stsb" else ("many" if index else "few")
    return {"message": text, "topic": label} if task == "columns" else {"text": text, "label": label}


@pytest.mark.parametrize("path", [path for path in CONFIGS if path.name != "single.py"], ids=lambda path: path.name)
def test_study_configs_state_their_schedule(path: Path) -> None:
    values = runpy.run_path(str(path))["get_config"]().to_dict()
    assert {"learning_rate", "epochs", "warmup"} <= values["train"].keys()
    # fusion_mt.py always takes its sources from the store, so they have no training settings.
    for source in values["sources"].values() if path.name != "fusion_mt.py" and "sources" in values else ():
        assert {"learning_rate", "epochs", "warmup"} <= source["train"].keys()


def test_every_config_has_a_training_test() -> None:
    assert {path.name for path in CONFIGS} == ONE_STEP.keys() | OWN_TESTS


# Loading configs.


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.name)
def test_every_command_in_a_docstring_resolves(path: Path) -> None:
    docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    commands = [line for line in docstring.replace("\\\n", " ").splitlines() if line.startswith("afjax ")]
    assert any(command.startswith(f"afjax train --config=configs/{path.name}") for command in commands)
    for command in commands:
        words = shlex.split(command)
        named = [word.removeprefix("--config=configs/") for word in words if word.startswith("--config=")]
        assert len(named) == 1, command
        load_experiment(f"{FOLDER / named[0]}", of_prefix("--config.", words))
        changes = of_prefix("--grid.", words)
        if changes:
            grid = runpy.run_path(str(FOLDER / named[0].partition(":")[0]))["get_sweep"]()
            for change in changes:
                setting, _, values = change.partition("=")
                grid[setting] = values.split(",")
            check_sweep(f"{FOLDER / named[0]}", grid)


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.name)
def test_sweep_combinations_are_distinct_experiments(path: Path) -> None:
    get_sweep = runpy.run_path(str(path)).get("get_sweep")
    load_experiment(str(path))
    if get_sweep is not None:
        check_sweep(str(path), get_sweep())


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.name)
def test_every_method_of_a_config_resolves(path: Path) -> None:
    for method in runpy.run_path(str(path)).get("METHODS", ()):
        config = load_experiment(f"{path}:method={method}")
        assert method in config.name


@pytest.mark.parametrize("config", ["fusion:sources=", "fusion_mt:tasks=", "mt_adapter:tasks=", "pals_glue:tasks="])
def test_task_names_can_contain_dots(config: str) -> None:
    experiment = load_experiment(f"{config}my.v2+rte", reads_rows=False)
    tasks = experiment.tasks or [source.task for source in experiment.sources]
    assert [task.name for task in tasks] == ["my.v2", "rte"]


def of_prefix(prefix: str, words: Iterable[str]) -> list[str]:
    return [word.removeprefix(prefix) for word in words if word.startswith(prefix)]


def check_sweep(config: str, grid: dict[str, Sequence[Any]]) -> None:
    resolved = set()
    for values in itertools.product(*grid.values()):
        overrides = [f"{setting}={value}" for setting, value in zip(grid, values, strict=True)]
        resolved.add(json.dumps(to_dict(load_experiment(config, overrides))))
    assert len(resolved) == math.prod(map(len, grid.values())) > 1


# Training configs.


def load_sources(name: str) -> list[str]:
    return [source.task.name for source in load_experiment(str(FOLDER / name)).sources]


# All runs use these settings, so that runs with equal shapes share one compiled program.
STEP = {
    "max_steps": 1,
    "eval_every": 1,
    "batch_size": 4,
    "max_length": 8,
    "buckets": (8,),
    "learning_rate": 1e-3,
    "warmup": 0.0,
    "weight_decay": 0.01,
    "adam_epsilon": 1e-8,
    "dropout": False,
}


def one_step(prefix: str = "", **settings: Any) -> list[str]:
    return [f"{prefix}train.{setting}={value}" for setting, value in {**STEP, **settings}.items()]


def train(config: str, trunk: Path, workdir: Path, *overrides: str, store_folder: Path | None = None) -> list[Result]:
    experiment = load_experiment(f"{FOLDER / config}", [f"trunk={trunk}", *one_step(), *overrides])
    results = run_experiment(experiment, workdir=workdir, store_folder=store_folder)
    assert results
    for result in results:
        assert math.isfinite(result.metrics[result.main_metric])
    return results


@pytest.mark.parametrize(("name", "arguments"), RUNS, ids=[f"{name}:{arguments}" for name, arguments in RUNS])
def test_config_trains_one_step(name: str, arguments: str, data: Path, tiny_trunk_folder: Path, tmp_path: Path) -> None:
    config = f"{name}:{arguments.replace('DATA', str(data))}"
    results = train(config, tiny_trunk_folder, tmp_path)
    heads = store.names(tmp_path / "store", "heads")
    assert heads == sorted({result.name for result in results})
    adapters = store.names(tmp_path / "store", "adapters")
    assert adapters == (heads if load_experiment(f"{FOLDER / config}").has_adapter else [])


def test_heads_for_custom_tasks_pool_like_the_trunk() -> None:
    papers = load_experiment("fusion:target=rte,data=DATA")
    own = load_experiment("fusion:target=mine,source=mine.csv,sources=rte+cb", find_store=lambda: "store")
    assert (papers.head.pooling, own.head.pooling) == ("first", None)


def test_fusion_trains_one_step_of_each_missing_adapter(data: Path, tiny_trunk_folder: Path, tmp_path: Path) -> None:
    first, *others = load_sources("fusion.py")
    folder = tmp_path / "store"
    train(f"adapter.py:task={first},data={data}", tiny_trunk_folder, tmp_path / "adapter", store_folder=folder)
    stored = store.load(folder, "adapters", first)
    shared: dict[str, Any] = {key: getattr(stored.manifest, key) for key in ("config", "trunk", "metrics")}
    for name in others[:-1]:
        store.save(folder, store.Draft("adapters", name, stored.params, **shared))
    steps = one_step(f"sources.{others[-1]}.")
    config = f"fusion.py:target={first},data={data}"
    results = train(config, tiny_trunk_folder, tmp_path / "fused", *steps, store_folder=folder)
    kinds = {result.name: result.kind for result in results}
    assert list(kinds) == [first, *others, f"{first}-fusion"]
    assert [kinds[name] for name in (first, others[-1])] == ["adapter (from the store)", "adapter"]


def test_fusion_of_mt_adapters_trains_one_step(data: Path, tiny_trunk_folder: Path, tmp_path: Path) -> None:
    shared = f"tasks=rte+stsb,data={data}"
    folder = tmp_path / "store"
    train(f"mt_adapter.py:{shared}", tiny_trunk_folder, tmp_path / "mt", store_folder=folder)
    results = train(f"fusion_mt.py:target=rte,{shared}", tmp_path / "mt/trunk", tmp_path / "fused", store_folder=folder)
    assert [result.name for result in results] == ["rte", "stsb", "rte-fusion-mt"]
    assert store.names(folder, "fusion") == ["rte-fusion-mt"]
