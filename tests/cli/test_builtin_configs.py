"""Built-in configs are found by name in a checkout and in a wheel, and commands list their settings."""

import json
import re
import runpy
from pathlib import Path
from typing import Any

import pytest
import setuptools
from facts import has_facts

from afjax import store
from afjax.cli.config_files import builtin_configs
from afjax.cli.experiments import load_experiment
from afjax.cli.main import main
from afjax.cli.settings_help import settings_text
from afjax.cli.sweep_plan import plan
from afjax.config.defaults import LEARNING_RATES
from afjax.config.experiment import ExperimentConfig, SourceConfig
from afjax.config.from_dict import to_dict
from afjax.config.tasks import TaskConfig
from afjax.errors import UserError
from tests.cli.conftest import Refused, WriteRows

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs commands outside the checkout."""
    monkeypatch.chdir(tmp_path)


def test_wheel_contains_the_configs_and_all_files_of_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    given: dict[str, Any] = {}
    monkeypatch.setattr(setuptools, "setup", lambda **settings: given.update(settings))
    monkeypatch.chdir(ROOT)
    runpy.run_path(str(ROOT / "setup.py"))
    assert "afjax.configs" in given["packages"]
    assert given["package_dir"] == {"afjax.configs": "configs"}
    files = [path for path in (ROOT / "afjax").rglob("*") if path.is_file() and path.suffix not in (".py", ".pyc")]
    assert given["package_data"] == {"afjax": sorted(str(path.relative_to(ROOT / "afjax")) for path in files)}
    assert (ROOT / "afjax" / "py.typed") in files


def test_builtin_config_is_found_by_name_and_by_repository_path() -> None:
    assert list(builtin_configs()) == sorted(path.stem for path in (ROOT / "configs").glob("*.py"))
    arguments = "task=mine,data=mine.csv,partition=head"
    by_name = load_experiment(f"single:{arguments}", ["seed=3"])
    assert (by_name.target.name, by_name.target.source, by_name.seed) == ("mine", "mine.csv", 3)
    assert load_experiment(f"configs/single.py:{arguments}", ["seed=3"]) == by_name
    assert load_experiment(f"{ROOT / 'configs/single.py'}:{arguments}", ["seed=3"]) == by_name


def test_local_file_takes_precedence_over_builtin_config(tmp_path: Path) -> None:
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs" / "single.py").write_text("def get_config():\n    return {'task': {'name': 'own'}}\n")
    assert load_experiment("configs/single.py").target.name == "own"
    # A name without a suffix means the built-in config.
    (tmp_path / "single").write_text("def get_config():\n    return {'task': {'name': 'own'}}\n")
    assert load_experiment("single").target.name == "entail"


@pytest.mark.parametrize(
    ("config", "suggestion"),
    [("singel", "single"), ("configs/singel.py", "configs/single.py"), ("my_confg", "my_config.py")],
)
def test_unknown_config_gets_a_suggestion(config: str, suggestion: str, refused: Refused, tmp_path: Path) -> None:
    (tmp_path / "my_config.py").write_text("")
    for words in (("train", f"--workdir={tmp_path / 'run'}"), ("sweep", f"--workdir={tmp_path / 'run'}")):
        assert f'Did you mean "{suggestion}"?' in refused(*words, f"--config={config}")
    assert f'Did you mean "{suggestion}"?' in refused("tpu", "--topology=v5e:2x4", f"--config={config}")
    assert f'Did you mean "{suggestion}"?' in refused("configs", config)


def test_unknown_argument_of_a_builtin_config_is_refused_by_name() -> None:
    with pytest.raises(UserError, match=r'single.*"taks".*Did you mean "task"'):
        load_experiment("single:taks=rte")


def test_task_without_data_must_be_builtin(refused: Refused, tmp_path: Path) -> None:
    assert load_experiment("single:task=target").target.source == "builtin:target"
    message = refused("train", "--config=single:task=cola", f"--workdir={tmp_path / 'run'}")
    assert '"cola"' in message
    assert "entail, paraphrase, target" in message
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("config", "setting", "recipe"),
    [
        ("single", "fusion.temperature=5", "single"),
        ("single", "sampling.sampler=annealed", "single"),
        ("fusion:target=target,source=builtin:target,sources=entail", "partition=full", "fusion"),
    ],
)
def test_override_without_effect_is_refused(
    config: str, setting: str, recipe: str, refused: Refused, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [f"--config.{setting}", f"--workdir={tmp_path / 'run'}"]
    sources = ["--config.sources={'entail': {'task': {'source': 'builtin:entail'}}}"] if recipe == "fusion" else []
    sentence = refused("train", f"--config={config}", *words, *sources)
    assert has_facts(sentence, f"--config.{setting.partition('=')[0]} ", f"recipe={recipe}")
    # A run that an earlier version began with such an override is not refused for it.
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.json").write_text("{}")
    assert main(["train", f"--config={config}", *words, *sources]) == 2
    assert "a different config" in capsys.readouterr().err


def test_sweep_refuses_overrides_that_no_run_uses(tmp_path: Path) -> None:
    config, sampler = "single:task=entail", "sampling.sampler=square_root"

    def planned(workdir: str, overrides: list[str]) -> Any:
        return plan(config, overrides=overrides, grid=[], seeds="0,1", workdir=tmp_path / workdir)

    with pytest.raises(UserError) as refused_sweep:
        planned("new", [sampler])
    assert has_facts(str(refused_sweep.value), "--config.sampling.sampler ", "recipe=single")
    # A sweep that an earlier version began with such an override is continued.
    (tmp_path / "old").mkdir()
    record = {"config": config, "overrides": [sampler], "grid": {}, "seeds": [0, 1], "adapters": ""}
    (tmp_path / "old" / "sweep.json").write_text(json.dumps(record))
    assert planned("old", [sampler]).seeds == (0, 1)


def test_sweep_accepts_a_builtin_config(write_rows: WriteRows, tmp_path: Path) -> None:
    for split in ("train", "dev"):
        write_rows(tmp_path / "data" / "rte" / f"{split}.jsonl")
    sweep = plan("adapter:task=rte", overrides=[], grid=[], seeds="0", workdir=tmp_path / "sweep")
    assert sweep.config == "adapter:task=rte"
    assert sweep.grid == {"adapter.reduction_factor": ("2.0", "16.0", "64.0")}


def test_configs_lists_the_builtin_configs_with_their_arguments(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["configs"]) == 0
    listed = capsys.readouterr().out
    for name in builtin_configs():
        assert re.search(rf"^{name}: \w", listed, flags=re.MULTILINE)
    assert "tasks=cola+sst2+mrpc+stsb+qqp+mnli+qnli+rte" in listed
    assert main(["configs", "single"]) == 0
    one = capsys.readouterr().out
    assert "afjax train --config=" in one
    assert "data='', data_dir=''" in one


def test_train_help_lists_every_setting_with_its_default(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["train", "--help"])
    text = capsys.readouterr().out
    assert settings_text() in text
    task = TaskConfig(name="x")
    sources = (SourceConfig(task=task),)
    values = to_dict(ExperimentConfig(recipe="fusion", task=task, sources=sources))
    lines = [line.strip() for line in settings_text().splitlines()]

    def check(values: dict[str, Any], prefix: str) -> int:
        count = 0
        for name, value in values.items():
            if isinstance(value, dict):
                count += check(value, f"{prefix}{name}.")
            elif prefix + name not in ("task.name", "recipe", "tasks", "sources", "train.learning_rate"):
                shown = repr(tuple(value)) if isinstance(value, list) else str(value) or "''"
                assert any(line.split("  ")[0] == f"{prefix}{name}={shown}" for line in lines), (prefix + name, shown)
                count += 1
        return count

    assert check(values, "") > 60
    (rate,) = (line for line in lines if line.startswith("train.learning_rate="))
    assert all(f"{partition}: {value:g}" in rate for partition, value in LEARNING_RATES.items())
    assert any(line.startswith("sources.NAME.") for line in lines)
    assert "adapter.kind=pal" in lines
    assert any(line.startswith("partition=adapter  (") and "top_k" in line for line in lines)


# Fusions of stored adapters.


def test_fusion_of_stored_adapters_needs_only_the_target_data(
    trained: Path, tmp_path: Path, tiny_trunk_folder: Path, capsys: pytest.CaptureFixture[str], refused: Refused
) -> None:
    for name in ("first", "second"):
        assert main(["store", "pack", name, f"--store={trained / 'run' / 'store'}", f"--output={name}.tar"]) == 0
        assert main(["store", "unpack", f"{name}.tar", f"--store={tmp_path / 'store'}"]) == 0
    words = [f"--config.trunk={tiny_trunk_folder}", f"--workdir={tmp_path / 'run'}", f"--store={tmp_path / 'store'}"]
    train = {"max_steps": 1, "eval_every": 1, "batch_size": 8, "max_length": 16, "buckets": (16,)}
    words += [f"--config.train.{setting}={value}" for setting, value in train.items()]
    config = f"fusion:target=mine,source={trained / 'data'}"
    # "secnd" is not in the store, so it would have to be trained, and the command gives no data for it.
    sentence = refused("train", f"--config={config},sources=first+secnd", *words)
    assert 'no adapter "secnd"' in sentence
    assert 'Did you mean "second"?' in sentence
    assert main(["train", f"--config={config},sources=first+second", *words]) == 0
    assert "mine-fusion (fusion)" in capsys.readouterr().out
    members = store.read_manifest(tmp_path / "store", "fusion", "mine-fusion").adapters
    assert [member["name"] for member in members] == ["first", "second"]


def test_plan_for_a_slice_needs_no_data() -> None:
    config = load_experiment("adapter:task=rte,data=nowhere", reads_rows=False)
    assert config.target.labels == ("entailment", "not_entailment")
    with pytest.raises(UserError, match="nowhere"):
        load_experiment("adapter:task=rte,data=nowhere")
