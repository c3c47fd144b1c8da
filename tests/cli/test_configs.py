"""Config files are loaded and overridden. tests/config/test_experiment_configs.py tests the built-in configs."""

import dataclasses
import json
from pathlib import Path

import pytest
from facts import has_facts

from afjax.cli.config_files import argument_settings
from afjax.cli.experiments import load_experiment, unused_adapter_lines
from afjax.config.adapters import ADAPTER_PRESETS, AdapterConfig, PalConfig
from afjax.config.experiment import ExperimentConfig
from afjax.config.from_dict import to_dict
from afjax.errors import UserError

FOLDER = Path(__file__).parents[2] / "configs"


def load(text: str, tmp_path: Path, arguments: str = "", overrides: tuple[str, ...] = ()) -> ExperimentConfig:
    path = tmp_path / "config.py"
    path.write_text(text)
    return load_experiment(f"{path}{arguments}", overrides)


SMALL = """
def get_config(task: str = "rte", seed: int = 0):
    return {
        "task": {"name": task},
        "seed": seed,
        "sources": {"mnli": {"train": {"epochs": 2.0}}, "qqp": {}},
        "recipe": "fusion",
    }
"""


def test_arguments_and_overrides_reach_the_settings(tmp_path: Path) -> None:
    config = load(
        SMALL,
        tmp_path,
        ":task=mrpc,seed=3",
        (
            "train.learning_rate=1e-3",
            "adapter.layers=(1,0)",
            "adapter.position=attention",
            "trunk=some/folder=odd",
            "sources.mnli.train.epochs=5",
            "sources.qqp.task.source=data/qqp",
            "fusion.value=False",
            "fusion.dropout=None",
        ),
    )
    assert (config.task.name, config.seed, config.train.learning_rate) == ("mrpc", 3, 1e-3)
    assert config.adapter == AdapterConfig(position="attention", layers=(0, 1))
    assert config.trunk == "some/folder=odd"
    assert [source.task.name for source in config.sources] == ["mnli", "qqp"]
    assert config.sources[0].train.epochs == 5.0
    assert config.sources[1].task.source == "data/qqp"
    assert (config.fusion.value, config.fusion.dropout) == (False, None)


@pytest.mark.parametrize("make", ["ml_collections.ConfigDict(values)", "values"])
def test_override_changes_one_of_several_uses_of_a_dict(make: str, tmp_path: Path) -> None:
    text = f"""
import ml_collections

def get_config():
    train = {{"learning_rate": 1e-3}}
    sources = {{name: {{"task": {{"source": "builtin:" + name}}, "train": train}} for name in ("entail", "paraphrase")}}
    task = {{"name": "target", "source": "builtin:target"}}
    values = {{"recipe": "fusion", "task": task, "train": train, "sources": sources}}
    return {make}
"""
    config = load(text, tmp_path, "", ("sources.entail.train.learning_rate=0.5",))
    assert [source.train.learning_rate for source in config.sources] == [0.5, 1e-3]
    assert config.train.learning_rate == 1e-3


def test_names_of_sources_and_tasks_can_contain_dots(tmp_path: Path) -> None:
    text = SMALL.replace('"mnli"', '"my"').replace('"qqp"', '"my.v2"')
    config = load(text, tmp_path, "", ("sources.my.train.epochs=3", "sources.my.v2.train.epochs=5"))
    assert [(source.task.name, source.train.epochs) for source in config.sources] == [("my", 3.0), ("my.v2", 5.0)]
    path = tmp_path / "config.json"
    path.write_text(json.dumps(to_dict(config)))
    multitask = ["recipe=multitask", "task=None", "sources=()", "tasks={'my.v2': {}}"]
    (task,) = load_experiment(str(path), [*multitask, "tasks.my.v2.train_rows=8"]).tasks
    assert (task.name, task.train_rows) == ("my.v2", 8)
    with pytest.raises(UserError, match=r"--config\.sources\.my\.v2\.task\.data_dir=there .*config\.json"):
        load_experiment(str(path), ["sources.my.v2.task.data_dir=there"])


def test_text_that_looks_like_a_number_stays_text(tmp_path: Path) -> None:
    config = load(SMALL, tmp_path, ":task=5,seed=3", ("recipe=single", "sources=()"))
    assert (config.task.name, config.seed) == ("5", 3)
    config = load(SMALL, tmp_path, "", ("name=2024", "task.label=1e3", "sources.mnli.task.label=1", "train.epochs=2"))
    assert (config.name, config.task.label, config.sources[0].task.label) == ("2024", "1e3", "1")
    assert config.train.epochs == 2.0
    with pytest.raises(UserError, match=r"config\.name .*\[1\]"):
        load(SMALL, tmp_path, "", ("name=[1]",))


def test_task_with_data_dir_needs_a_name(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="data_dir needs a name or a preset"):
        load(SMALL.replace('"name": task', '"data_dir": task'), tmp_path)


def test_home_folder_is_expanded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "mine.toml").write_text('source = "mine.csv"\n')
    (tmp_path / "small.py").write_text(SMALL)
    assert load_experiment("~/small.py:seed=3").seed == 3
    task = load_experiment("single:task=~/mine.toml").task
    assert (task.name, task.source) == ("mine", str(tmp_path / "mine.csv"))


def test_path_may_contain_colons(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "a:b"
    folder.mkdir()
    config = load(SMALL, folder, ":task=mrpc")
    path = folder / "config.json"
    path.write_text(json.dumps(to_dict(config)))
    assert load_experiment(str(path)) == config
    assert load_experiment(f"{path}", ["seed=4"]).seed == 4
    with pytest.raises(UserError, match=r"a:b/config\.json takes no arguments"):
        load_experiment(f"{path}:task=rte")
    assert load(SMALL, folder).task.name == "rte"
    # A path on an object store is not a local one.
    opened: list[str] = []
    monkeypatch.setattr("afjax.cli.config_files.open_path", lambda given: opened.append(given) or path)
    assert load_experiment("gs://bucket/run/config.json") == config
    assert opened == ["gs://bucket/run/config.json"]


@pytest.mark.parametrize(
    ("arguments", "overrides", "facts"),
    [
        ("", ("train.learning_rat=1",), r'config.train.learning_rat .*Did you mean "learning_rate"\?'),
        ("", ("trian.epochs=1",), r'config.trian .*Did you mean "train"\?'),
        ("", ("train.epochs=many",), "config.train.epochs .*'many'.*float"),
        ("", ("train.batch_size=2.5",), r"config.train.batch_size .*2\.5.*int"),
        ("", ("adapter.position=fnn",), r'config.adapter.position .*"fnn".*Did you mean "ffn"\?'),
        ("", ("train.epochs",), "--config.train.epochs .*--config.train.epochs=VALUE"),
        ("", ("seed.x=1",), "--config.seed.x.*seed .*settings"),
        ("", ("train=3",), "config.train is 3.*mapping"),
        ("", ("sources.mnli.train.epoch=1",), r'sources\[0\].train.epoch .*Did you mean "epochs"\?'),
        (":taks=rte", (), r'"taks".*task, seed.*Did you mean "task"\?'),
        (":rte", (), '"rte".*key=value'),
        (":task=a,seed=1,task=b", (), r'"task" is given twice \(a, b\)'),
        ("", ("task.data_dir=there", "task.source=x.csv"), "rte.*data_dir=there and source=x.csv"),
        ("", ("sources.mnli.train.class_weights.yes.more=2",), "class_weights"),
    ],
)
def test_invalid_setting_is_refused(tmp_path: Path, arguments: str, overrides: tuple[str, ...], facts: str) -> None:
    with pytest.raises(UserError, match=facts):
        load(SMALL, tmp_path, arguments, overrides)


@pytest.mark.parametrize(
    ("text", "facts"),
    [
        ("def get_config(:\n", r"config\.py .*line 1.*SyntaxError"),
        ("import ml_collection\n", r"config\.py .*line 1.*ModuleNotFoundError"),
        ("def get_config():\n    values = {}\n    return values['x']\n", r"config\.py .*line 3.*KeyError"),
        ("config = {}\n", "no function get_config"),
        ("def get_config():\n    return 3\n", "int.*ConfigDict"),
        ("def get_config():\n    return {}\n", r"config\.task is missing"),
        ("def get_config():\n    return {'task': {'name': 'a/b'}}\n", 'task name "a/b"'),
        ("def get_config():\n    return {'task': {'name': 'a'}, 'recipe': 'fusion'}\n", r"needs config\.sources"),
        ("name = '\xe9'\n".encode("latin-1"), r"config\.py fails"),
    ],
)
def test_failing_config_file_is_refused(tmp_path: Path, text: str | bytes, facts: str) -> None:
    path = tmp_path / "config.py"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(UserError, match=facts):
        load_experiment(str(path))


SEQUENTIAL = """
import ml_collections

def get_config():
    config = ml_collections.ConfigDict({"recipe": "sequential", "partition": "full"})
    config.tasks = TASKS
    return config
"""


def test_sequential_tasks_keep_their_order(tmp_path: Path) -> None:
    tasks = "[{'name': 'rte'}, {'name': 'cb', 'metric': 'f1'}, {'name': 'mrpc'}]"
    config = load(SEQUENTIAL.replace("TASKS", tasks), tmp_path, "", ("tasks.mrpc.source=there",))
    assert [(task.name, task.metric, task.source) for task in config.tasks] == [
        ("rte", "", ""),
        ("cb", "f1", ""),
        ("mrpc", "", "there"),
    ]
    built_in = load_experiment("sequential:tasks=rte+stsb+cb,data=there", reads_rows=False)
    assert [(task.name, task.kind, task.scale) for task in built_in.tasks] == [
        ("rte", "classification", 1.0),
        ("stsb", "regression", 5.0),
        ("cb", "classification", 1.0),
    ]
    # A ConfigDict sorts the keys of a dict.
    with pytest.raises(UserError, match=r"config\.py .*dict of tasks.*a list: config\.tasks = "):
        load(SEQUENTIAL.replace("TASKS", "{'rte': {}, 'cb': {}}"), tmp_path)
    with pytest.raises(UserError, match=r"config\.tasks has two tasks named rte"):
        load(SEQUENTIAL.replace("TASKS", "[{'name': 'rte'}, {'name': 'rte'}]"), tmp_path)
    with pytest.raises(UserError, match=r"config\.py is invalid .*'name'"):
        load(SEQUENTIAL.replace("TASKS", "[{'source': 'rte'}]"), tmp_path)


def test_presets_and_nested_settings_override_a_recorded_config(tmp_path: Path) -> None:
    config = load(SMALL, tmp_path, "", ("recipe=single", "sources=()", "adapter.reduction_factor=4"))
    path = tmp_path / "config.json"
    path.write_text(json.dumps(to_dict(config)))
    assert load_experiment(str(path), ["adapter.preset=houlsby"]).adapter == ADAPTER_PRESETS["houlsby"]
    changed = load_experiment(str(path), ["adapter.size=8", "adapter.preset=houlsby"])
    assert changed.adapter == dataclasses.replace(ADAPTER_PRESETS["houlsby"], size=8)
    assert load_experiment(str(path), ["train.class_weights.yes=2.0"]).train.class_weights == {"yes": 2.0}
    for override in ("task.data_dir=there", "task.preset=cb", "tasks.rte.data_dir=there"):
        with pytest.raises(UserError, match=rf"--config\.{override} .*config\.json.*\.source"):
            load_experiment(str(path), [override])


@pytest.mark.parametrize(
    ("arguments", "source"),
    [
        ("task=rte", "builtin:rte"),
        ("task=rte,data=mine.csv", "mine.csv"),
        ("task=TOML", "FOLDER/there.csv"),
        ("task=TOML,data=mine.csv", "mine.csv"),
    ],
)
def test_single_reads_the_given_data(arguments: str, source: str, tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text('source = "there.csv"\n')
    given = arguments.replace("TOML", str(tmp_path / "mine.toml"))
    task = load_experiment(f"single:{given}").task
    assert task is not None
    assert task.source == source.replace("FOLDER", str(tmp_path))


def test_settings_of_arguments(tmp_path: Path) -> None:
    """An argument that the config requires has no value to compare with."""
    path = tmp_path / "config.py"
    path.write_text(
        "def get_config(task, rate: float = 1e-3, size: int = 8):\n"
        "    return {'task': {'name': task}, 'train': {'learning_rate': rate, 'batch_size': 2 * size}}\n"
    )
    assert argument_settings(str(path)) == {}
    assert argument_settings(f"{path}:task=rte,rate=0.01,size=4") == {"train.learning_rate": "rate=0.01"}
    assert argument_settings(f"{path}:task=rte,rate=0.001,size=16") == {}


@pytest.mark.parametrize("arguments", ["task=rte,data=mine.csv,data_dir=there", "task=mine.toml,data_dir=there"])
def test_single_refuses_two_sources(arguments: str) -> None:
    with pytest.raises(UserError, match=r"single .*data_dir=there"):
        load_experiment(f"single:{arguments}")


def test_missing_config_gets_a_suggestion() -> None:
    with pytest.raises(UserError, match=r'singel\.py .*Did you mean ".*single\.py"\?'):
        load_experiment(str(FOLDER / "singel.py"))


def test_tasks_are_given_by_name_and_adapters_by_preset(tmp_path: Path) -> None:
    text = """
def get_config():
    tasks = {"one": {"source": "here"}, "two": {"kind": "regression", "scale": 5.0}}
    return {"recipe": "multitask", "tasks": tasks, "adapter": {"preset": "pals", "size": 24}}
"""
    config = load(text, tmp_path, "", ("tasks.one.metric=f1", "adapter.num_heads=6"))
    assert [task.name for task in config.tasks] == ["one", "two"]
    assert (config.tasks[0].metric, config.tasks[1].scale) == ("f1", 5.0)
    assert config.adapter == PalConfig(size=24, num_heads=6)
    assert load(text, tmp_path, "", ("adapter.preset=houlsby",)).adapter == dataclasses.replace(
        ADAPTER_PRESETS["houlsby"], size=24
    )
    with pytest.raises(UserError, match=r'config.adapter.preset .*"palls".*Did you mean "pals"\?'):
        load(text, tmp_path, "", ("adapter.preset=palls",))
    with pytest.raises(UserError) as raised:
        load(text, tmp_path, "", ("adapter.kind=lora",))
    assert has_facts(str(raised.value), "preset pals", "kind lora", "--config.adapter.preset=lora")
    with pytest.raises(UserError, match=r"bottelneck.*Did you mean"):
        load(text, tmp_path, "", ("adapter.kind=bottelneck",))
    with pytest.raises(UserError, match=r"config\.adapter\.layer_norms .*known"):
        load(text, tmp_path, "", ("adapter.layer_norms=True",))
    with pytest.raises(UserError, match=r"config\.tasks\[0\] is 3.*mapping"):
        load(text, tmp_path, "", ("tasks.one=3",))
    with pytest.raises(UserError, match=r'config.adapter.presett .*Did you mean "preset"\?'):
        load(text, tmp_path, "", ("adapter.presett=pals",))
    with pytest.raises(UserError, match=r'config.tasks\[0\].data_dirr .*Did you mean "data_dir"\?'):
        load(text, tmp_path, "", ("tasks.one.data_dirr=data",))
    with pytest.raises(UserError, match=r"config\.adapter\.preset is "):
        load(text, tmp_path, "", ("adapter.preset=[1]",))
    with pytest.raises(UserError, match=r"config\.sources\[0\] is 3"):
        load(text, tmp_path, "", ("sources={'zz': 3}",))
    with pytest.raises(UserError, match=r"config\.sources\[0\]\.task is 'rte'"):
        load(text, tmp_path, "", ("sources={'zz': {'task': 'rte'}}",))
    with pytest.raises(UserError, match=r'config\.adapter\.kind is "pall"'):
        load(text, tmp_path, "", ("adapter={'kind': 'pall'}",))


@pytest.mark.parametrize(
    ("overrides", "facts"),
    [
        (["adapter.size=8"], ()),
        (["adapter.reduction_factor=8"], ()),
        (["adapter.size=8", "adapter.reduction_factor=2"], ("--config.adapter.reduction_factor ", "adapter.size=8")),
        (["adapter.preset=houlsby", "adapter.reduction_factor=2"], ("--config.adapter.reduction_factor ", "size=64")),
        (["partition=full", "adapter.size=8"], ("--config.adapter.size ", "partition=full")),
    ],
)
def test_overrides_of_the_adapter_without_effect_are_listed(overrides: list[str], facts: tuple[str, ...]) -> None:
    lines = unused_adapter_lines(
        load_experiment("single:task=rte,data=reviews.csv", overrides, reads_rows=False), overrides
    )
    assert len(lines) == bool(facts)
    assert has_facts("".join(lines), *facts)
