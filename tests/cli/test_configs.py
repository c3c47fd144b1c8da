"""Config files and their overrides; every config that comes with the package."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from afjax import store
from afjax.architecture import AdapterConfig
from afjax.cli.configs import load_experiment
from afjax.cli.main import main
from afjax.config import ExperimentConfig
from afjax.dataclass_dicts import to_dict
from afjax.errors import UserError

FOLDER = Path(__file__).parents[2] / "configs"
CONFIGS = sorted(FOLDER.glob("*.py"))


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


@pytest.mark.parametrize(
    ("arguments", "overrides", "sentence"),
    [
        ("", ("train.learning_rat=1",), r'config.train.learning_rat is not a known .* Did you mean "learning_rate"\?'),
        ("", ("trian.epochs=1",), r'config.trian is not a known setting. Did you mean "train"\?'),
        ("", ("train.epochs=many",), "config.train.epochs is 'many'; it must be of type float"),
        ("", ("train.batch_size=2.5",), "config.train.batch_size is 2.5; it must be of type int"),
        ("", ("adapter.position=fnn",), r'config.adapter.position is "fnn"; .* Did you mean "ffn"\?'),
        ("", ("train.epochs",), "--config.train.epochs has no value; write --config.train.epochs=VALUE"),
        ("", ("seed.x=1",), "--config.seed.x: seed holds no further settings"),
        ("", ("train=3",), "config.train is 3; give its settings as a mapping"),
        ("", ("sources.mnli.train.epoch=1",), r'sources\[0\].train.epoch is not a known .* Did you mean "epochs"\?'),
        (":taks=rte", (), r'has no argument "taks"; it takes: task, seed. Did you mean "task"\?'),
        (":rte", (), 'The config argument "rte" is not of the form key=value'),
    ],
)
def test_a_wrong_setting_is_refused(tmp_path: Path, arguments: str, overrides: tuple[str, ...], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        load(SMALL, tmp_path, arguments, overrides)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("def get_config(:\n", "config.py fails in line 1: SyntaxError"),
        ("import ml_collection\n", "config.py fails in line 1: ModuleNotFoundError"),
        ("def get_config():\n    values = {}\n    return values['x']\n", "config.py fails in line 3: KeyError"),
        ("config = {}\n", "has no function get_config"),
        ("def get_config():\n    return 3\n", "returns int; it must return a ConfigDict"),
        ("def get_config():\n    return {}\n", "config.task is missing"),
        ("def get_config():\n    return {'task': {'name': 'a/b'}}\n", 'task name "a/b" cannot be used'),
        ("def get_config():\n    return {'task': {'name': 'a'}, 'recipe': 'fusion'}\n", "needs config.sources"),
        ("name = '\xe9'\n".encode("latin-1"), "config.py fails"),
    ],
)
def test_a_config_file_that_fails_is_refused(tmp_path: Path, text: str | bytes, sentence: str) -> None:
    path = tmp_path / "config.py"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(UserError, match=sentence):
        load_experiment(str(path))


def test_a_config_that_is_not_there_gives_the_nearest() -> None:
    with pytest.raises(UserError, match=r'singel.py does not exist; .* Did you mean ".*single.py"\?'):
        load_experiment(str(FOLDER / "singel.py"))


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.name)
def test_every_config_resolves(path: Path) -> None:
    config = load_experiment(str(path))
    assert config.trunk == "minilm"
    json.dumps(to_dict(config))
    assert f"--config=configs/{path.name}" in path.read_text().split('"""')[1]


@pytest.fixture
def run(tiny_trunk_folder: Path, tmp_path: Path) -> Callable[..., Path]:
    """Trains a config for one step on the tiny trunk and returns the store."""

    def train(config: str, *overrides: str, sources: tuple[str, ...] = ()) -> Path:
        steps = [f"--config.{part}train.max_steps=1" for part in ("", *(f"sources.{name}." for name in sources))]
        words = [f"--config={config}", f"--workdir={tmp_path / 'run'}", f"--config.trunk={tiny_trunk_folder}"]
        assert main(["train", *words, *steps, *overrides]) == 0
        return tmp_path / "run" / "store"

    return train


def test_quickstart_trains(run: Callable[..., Path], capsys: pytest.CaptureFixture[str]) -> None:
    folder = run(str(FOLDER / "quickstart.py"), sources=("entail", "paraphrase", "target"))
    assert store.names(folder, "adapters") == ["entail", "paraphrase", "target"]
    assert [entry["name"] for entry in store.read_manifest(folder, "fusion", "target-fusion").adapters] == [
        "entail",
        "paraphrase",
    ]
    table = capsys.readouterr().out
    for line in ("entail (adapter)", "paraphrase (adapter)", "target (adapter)", "target-fusion (fusion)", "accuracy"):
        assert line in table


@pytest.mark.parametrize("partition", ["adapter", "head"])
def test_single_trains(run: Callable[..., Path], data: Path, partition: str) -> None:
    folder = run(f"{FOLDER / 'single.py'}:task=rte,data={data},partition={partition}")
    name = "rte" if partition == "adapter" else "rte-head"
    assert store.names(folder, "heads") == [name]
    assert store.names(folder, "adapters") == ([name] if partition == "adapter" else [])


def test_fusion_trains_what_the_store_lacks(
    run: Callable[..., Path], trained: Path, data: Path, tmp_path: Path
) -> None:
    names = [source.task.name for source in load_experiment(str(FOLDER / "fusion.py")).sources]
    for name in names:
        shutil.copytree(data, tmp_path / "tasks" / name)
    adapter = store.load(trained / "run" / "store", "adapters", "first")
    for name in names[1:]:
        shared: dict[str, Any] = {"config": adapter.manifest.config, "trunk": adapter.manifest.trunk}
        store.save(tmp_path / "run" / "store", "adapters", name, adapter.params, **shared)
    folder = run(f"{FOLDER / 'fusion.py'}:target=cb,data={tmp_path / 'tasks'}", sources=tuple(names))
    assert store.names(folder, "adapters") == sorted(names)
    assert store.names(folder, "heads") == [names[0], "cb-fusion"]
    assert store.names(folder, "fusion") == ["cb-fusion"]


def test_configs_are_all_trained_here() -> None:
    trained: dict[str, Any] = {
        "quickstart.py": test_quickstart_trains,
        "single.py": test_single_trains,
        "fusion.py": test_fusion_trains_what_the_store_lacks,
    }
    assert {path.name for path in CONFIGS} == trained.keys()
