"""Runs are collected from workdirs, sweeps and stores, and commands are suggested for missing runs."""

import dataclasses
import json
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from etils import epath
from facts import has_facts
from made_runs import PRETRAINED, adapter, begin, experiment, finish, finish_all, finish_source, fusion

from afjax import store
from afjax.analysis.cells import make_cells, order, task_metrics
from afjax.analysis.methods import method_of
from afjax.analysis.missing import command
from afjax.analysis.runs import collect
from afjax.analysis.tables import make_grid, make_table
from afjax.analysis.workdirs import find_folders
from afjax.cli.experiments import load_experiment
from afjax.cli.main import make_parser
from afjax.config.adapters import LoraConfig
from afjax.config.experiment import ExperimentConfig
from afjax.config.from_dict import to_dict
from afjax.config.fusion import FusionConfig
from afjax.config.heads import HeadConfig
from afjax.config.tasks import TaskConfig
from afjax.config.training import SamplingConfig
from afjax.errors import UserError

OTHER = "b" * 64


def jointly(method: str, tasks: tuple[str, ...], **settings: object) -> ExperimentConfig:
    configs = tuple(TaskConfig(name=task, source=f"data/{task}") for task in tasks)
    own = experiment("unused", method)
    values = {"tasks": configs, "partition": own.partition, "adapter": own.adapter, **settings}
    return ExperimentConfig(recipe="multitask", **values)


@pytest.mark.parametrize(
    ("config", "method"),
    [
        (experiment("rte", "head"), "head"),
        (experiment("rte", "top-3"), "top-3"),
        (
            experiment("rte", "pfeiffer", adapter=adapter("pfeiffer", reduction_factor=2.0, activation="tanh")),
            "pfeiffer",
        ),
        (experiment("rte", "houlsby", adapter=adapter("houlsby", size=8, init_scale=1.0)), "houlsby"),
        (experiment("rte", "pfeiffer", adapter=adapter("pfeiffer", position="both")), "bottleneck"),
        (experiment("rte", "pals"), "pals"),
        (experiment("rte", "lora"), "lora"),
        (experiment("rte", "lora_all"), "lora_all"),
        (experiment("rte", "lora", adapter=LoraConfig(rank=2, target_modules=("key",))), "lora-key"),
        (experiment("rte", "top_ffn_2"), "top_ffn_2"),
        (experiment("rte", "pfeiffer", partition="adapter+trunk"), "pfeiffer-trunk"),
        (jointly("full", ("rte", "cb")), "mt-full"),
        (jointly("pals_unshared", ("rte", "cb"), partition="adapter+trunk"), "mt-pals_unshared"),
        (dataclasses.replace(jointly("full", ("rte", "cb")), recipe="sequential"), "sequential-full"),
        (fusion("rte", ("cb", "mnli")), "fusion"),
        (fusion("rte", ("cb",), adapter=adapter("houlsby")), "fusion-houlsby"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_method(config: ExperimentConfig, method: str) -> None:
    assert method_of(config) == method


def test_order_of_methods() -> None:
    methods = ["head", "full", "top-2", "top-12", "houlsby:8", "houlsby:64", "mt-pals", "fusion", "fusion-mt", "zeta"]
    for expected in (methods, ["houlsby:1/2", "houlsby:1/2.5", "houlsby:1/10.5"]):
        assert order(sorted(expected)) == expected


def test_parameter_counts_equal_those_of_training(tmp_path: Path) -> None:
    """``minilm`` has 22 713 216 parameters: 1 774 464 per layer, 768 per LayerNorm, and 147 840 in the pooler."""
    own = HeadConfig(pooler="head")
    for method, pooler in (
        ("full", "trunk"),
        ("layernorm", "trunk"),
        ("top-2", "head"),
        ("houlsby", "head"),
        ("head", "head"),
    ):
        head = dataclasses.replace(own, pooler=pooler)
        finish(tmp_path / method, experiment("rte", method, head=head), 0.5, saved=10)
    of = {record.method: record for record in collect([tmp_path]).records}
    assert {record.trunk_parameters for record in of.values()} == {22_713_216}
    assert of["full"].trained_parameters == 22_713_216 + 10
    assert of["layernorm"].trained_parameters == 13 * 768 + 10
    assert of["top-2"].trained_parameters == 2 * 1_774_464 + 10
    assert of["houlsby"].trained_parameters == 10 + 10
    assert of["head"].trained_parameters == 10


def test_parameters_are_unknown_without_the_store(tmp_path: Path) -> None:
    finish(tmp_path / "run", experiment("rte", "full"), 0.5)
    # The store has an artifact with the same name but a different score, from another run.
    store.save(
        tmp_path / "store",
        store.Draft("heads", "rte-full", {"leaf": np.zeros(3)}, config={}, trunk={}, metrics={"accuracy": 1}),
    )
    assert [record.trained_parameters for record in collect([tmp_path]).records] == [None]


def test_workdirs_sweeps_and_stores(tmp_path: Path) -> None:
    """Collects a fusion's sources, sweep runs and stores without workdirs, and counts every run once."""
    finish(tmp_path / "fused", fusion("rte", ("cb", "mnli"), seed=3), 0.7)
    finish_source(tmp_path / "fused", "cb", 0.6)
    finish(tmp_path / "sweep" / "runs" / "seed=1", experiment("rte", "head", seed=1), 0.4)
    finish(tmp_path / "single", experiment("cb", "pfeiffer"), 0.5, saved=4)
    (tmp_path / "single" / "store").rename(tmp_path / "store")
    task, identity = TaskConfig(name="sick", source="data/sick"), {"name": "minilm", "sha256": PRETRAINED}
    config = to_dict(adapter("houlsby"))
    alone = {"task": to_dict(task), "trunk": identity, "metrics": {"accuracy": 0.8}, "seed": 2}
    store.save(tmp_path / "store", store.Draft("adapters", "sick", {"leaf": np.zeros(5)}, config=config, **alone))
    # A pruned fusion is an edit of a trained one, and not a run.
    pruned = to_dict(FusionConfig(kept=(((0,), (1,)),)))
    store.save(tmp_path / "store", store.Draft("fusion", "sick", {"leaf": np.zeros(5)}, config=pruned, **alone))
    begin(tmp_path / "begun", experiment("rte", "full"))
    found = collect([tmp_path, str(tmp_path / "single")])
    assert sorted((each.task, each.method, each.seed) for each in found.records) == [
        ("cb", "pfeiffer", 0),
        ("cb", "pfeiffer", 3),
        ("rte", "fusion", 3),
        ("rte", "head", 1),
        ("sick", "houlsby", 2),
    ]
    assert {each.own_parameters for each in found.records} == {None, 8, 5}
    (left_out,) = found.left_out(["rte"])
    assert has_facts(left_out, f"{tmp_path / 'begun'} ", "full", "rte", "seed 0", "not finished")
    assert found.left_out(["cb"]) == []
    (cell,) = [cell for key, cell in make_cells(found.records).items() if key == ("cb", "pfeiffer")]
    # A fusion source's run and a separate run on the same task share a cell. Here their seeds differ.
    assert (cell.seeds, cell.num_settings) == ((0, 3), 1)


def test_folders_of_runs_may_have_the_names_of_kinds(tmp_path: Path) -> None:
    """Only a folder with artifacts is a store, and its other folders may hold runs."""
    finish(tmp_path / "full" / "rte", experiment("rte", "full"), 0.6)
    finish(tmp_path / "heads" / "rte", experiment("rte", "head"), 0.5)
    finish(tmp_path / "cb", experiment("cb", "pfeiffer"), 0.7, saved=3)
    (tmp_path / "cb" / "store").rename(tmp_path / "shared")
    finish(tmp_path / "shared" / "rte", experiment("rte", "layernorm"), 0.4)
    found = collect([tmp_path])
    assert {record.method for record in found.records} == {"full", "head", "pfeiffer", "layernorm"}
    assert {record.own_parameters for record in found.records if record.task == "cb"} == {6}


def test_artifact_that_does_not_describe_its_trunk_is_refused_by_name(tmp_path: Path) -> None:
    tree = {"ffn": {"down": {"kernel": np.zeros((2, 8, 4), np.float32)}}}
    config, task = {"kind": "bottleneck", "size": 4}, {"name": "rte"}
    store.save(
        tmp_path / "store", store.Draft("adapters", "rte", tree, config=config, task=task, trunk={"sha256": "ab"})
    )
    with pytest.raises(UserError) as refused:
        collect([tmp_path / "store"])
    assert has_facts(str(refused.value), "adapters/rte", '"name"')


def test_store_in_the_folder_of_a_python_run_is_found(tmp_path: Path) -> None:
    run = epath.Path(tmp_path) / "run"
    (run / "store" / "heads" / "rte").mkdir(parents=True)
    for path in (run / "run.json", run / "store" / "heads" / "rte" / "manifest.json"):
        path.write_text("{}")
    assert list(find_folders(run.parent)) == [("python", run), ("store", run / "store")]


def test_run_parameters_come_from_the_store_named_in_its_workdir(tmp_path: Path) -> None:
    shared = tmp_path / "elsewhere" / "store"
    run = finish(tmp_path / "runs" / "cb", experiment("cb", "pfeiffer"), 0.5, saved=4, store_folder=shared)
    finish(tmp_path / "other", experiment("rte", "pfeiffer"), 0.6, saved=3, store_folder=shared)
    (record,) = collect([run]).records
    assert (record.task, record.own_parameters, record.store) == ("cb", 8, str(shared))


def test_runs_on_a_jointly_trained_trunk_belong_to_the_pretrained_trunk(tmp_path: Path) -> None:
    joint = jointly("pfeiffer", ("rte", "cb"), partition="adapter+trunk", trunk="minilm")
    joint = dataclasses.replace(joint, adapter=adapter("pfeiffer"))
    finish(tmp_path / "joint", joint, {"rte": 0.6, "cb": 0.7}, saved=2, trained_trunk=OTHER)
    fused = fusion("rte", ("cb",), trunk="somewhere/joint/trunk")
    finish(tmp_path / "fused", fused, 0.8, trunk=OTHER)
    of = {(each.task, each.method): each for each in collect([tmp_path]).records}
    assert set(of) == {("rte", "mt-pfeiffer"), ("cb", "mt-pfeiffer"), ("rte", "fusion-mt")}
    assert of["rte", "fusion-mt"].trunk_name == "minilm"
    assert of["cb", "mt-pfeiffer"].shared_parameters == 22_713_216 - 147_840
    begin(tmp_path / "begun", fusion("cb", ("rte",), trunk="somewhere/joint/trunk"), trunk=OTHER)
    (left_out,) = collect([tmp_path]).left_out(["cb"])
    assert has_facts(left_out, f"{tmp_path / 'begun'} ", "fusion-mt", "cb", "seed 0", "not finished")
    finish(tmp_path / "head", experiment("rte", "head"), 0.5)
    with pytest.raises(UserError, match=r"different trunks .*somewhere/joint/trunk.*minilm.*trained"):
        collect([tmp_path / "fused", tmp_path / "head"])


def test_trunks_and_rows_are_identified_by_content_not_by_path(tmp_path: Path) -> None:
    rows = {f"task rte's {split} rows": split for split in ("train", "dev")}
    for seed, place in enumerate(("data/rte", "elsewhere/rte")):
        of = TaskConfig(name="rte", source=place, dev=f"{place}.csv")
        finish(tmp_path / f"head{seed}", experiment("rte", "head", seed=seed, of=of), 0.5, rows=rows)
    other = experiment("rte", "head", seed=2)
    finish(tmp_path / "others", other, 0.9, rows={**rows, "task rte's dev rows": "others"})
    # For each seed, a fusion uses the trunk from the joint run with that seed.
    for seed, digest in enumerate((OTHER, "c" * 64)):
        joint = jointly("pfeiffer", ("rte", "cb"), partition="adapter+trunk", trunk="minilm", seed=seed)
        scores = {"rte": 0.6, "cb": 0.7}
        finish(tmp_path / str(seed) / "joint", joint, scores, saved=2, trained_trunk=digest)
        fused = fusion("rte", ("cb",), trunk=f"{seed}/joint/trunk", seed=seed)
        finish(tmp_path / str(seed) / "fused", fused, 0.8, trunk=digest)
    cells = make_cells(collect([tmp_path]).records)
    assert {(method, cell.seeds, cell.num_settings) for (task, method), cell in cells.items() if task == "rte"} == {
        ("head", (0, 1), 2),
        ("mt-pfeiffer", (0, 1), 1),
        ("fusion-mt", (0, 1), 1),
    }


def test_duplicate_run_with_another_score_is_ignored(tmp_path: Path) -> None:
    for name, score in (("a", 0.5), ("b", 0.5), ("c", 0.7)):
        finish(tmp_path / name, experiment("rte", "head"), score)
    (cell,) = make_cells(collect([tmp_path]).records).values()
    assert (cell.scores, cell.repeated) == ((50.0,), (str(tmp_path / "c"),))
    notes = make_table("adapterfusion", make_grid(collect([tmp_path]))).notes
    assert has_facts("\n".join(notes), f"{tmp_path / 'c'} ", "head", "rte", "ignored")


def test_contradictory_config_is_reported(tmp_path: Path) -> None:
    folder = finish(tmp_path / "run", experiment("rte", "head"), 0.5)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "task": None}))
    with pytest.raises(UserError, match=r"config.json.*config\.task is missing"):
        collect([tmp_path])


def test_runs_that_cannot_be_collected(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="There is no folder"):
        collect([tmp_path / "none"])
    with pytest.raises(UserError, match=r"no finished run .*workdirs"):
        collect([tmp_path])
    begin(tmp_path / "begun", experiment("rte", "head"))
    with pytest.raises(UserError, match=r"no finished run .*\(1 started"):
        collect([tmp_path])
    (tmp_path / "python").mkdir()
    (tmp_path / "python" / "trained.json").write_text("{}")
    with pytest.raises(UserError, match=r"no finished run .*\(1 started.*, 1 trained from Python"):
        collect([tmp_path])
    finish(tmp_path / "scoreless", experiment("rte", "full"), float("nan"))
    with pytest.raises(UserError, match=r'"rte".*dev score'):
        collect([tmp_path])
    finish(tmp_path / "scored", experiment("rte", "full", seed=1), 0.5)
    left_out = "\n".join(collect([tmp_path]).left_out(["rte"]))
    assert has_facts(left_out, f"{tmp_path / 'scoreless'} ", "no dev score", "rte")
    assert has_facts(left_out, str(tmp_path / "python"), "trained from Python")
    (tmp_path / "scored" / "target" / "result.json").write_text("{")
    with pytest.raises(UserError, match=r"result\.json .*not JSON"):
        collect([tmp_path])


def test_runs_that_failed_before_their_config_are_left_out(tmp_path: Path) -> None:
    """Run 1 failed without a config, run 2 with one, and run 3 was retried and finished."""
    sweep = tmp_path / "sweep"
    sweep.mkdir()
    failed = "".join(f"{seed},failed,runs/seed={seed}\n" for seed in (1, 2, 3))
    (sweep / "sweep.csv").write_text(f"seed,status,folder\n{failed}")
    with pytest.raises(UserError, match=r"no finished run .*\(3 failed\)"):
        collect([tmp_path])
    begin(sweep / "runs" / "seed=2", experiment("rte", "head", seed=2))
    finish(sweep / "runs" / "seed=3", experiment("rte", "head", seed=3), 0.5)
    found = collect([tmp_path, sweep])
    assert [str(folder) for folder in found.failed] == [str(sweep / "runs" / "seed=1")]
    unfinished, failed = found.left_out(["rte"])
    assert has_facts(unfinished, str(sweep / "runs" / "seed=2"), "seed 2", "not finished")
    assert has_facts(failed, str(sweep / "runs" / "seed=1"), "failed")


def test_dev_score_selects_the_setting(tmp_path: Path) -> None:
    """A setting with more seeds is chosen even if another has a better mean. Duplicate runs count once."""
    for name, rate, scores in (("a", 1e-3, (0.5, 0.7)), ("b", 1e-4, (0.6, 0.62)), ("c", 1e-5, (0.9,))):
        config = experiment("rte", "head")
        config = dataclasses.replace(config, train=dataclasses.replace(config.train, learning_rate=rate))
        for seed, score in enumerate(scores):
            finish(tmp_path / f"{name}{seed}", dataclasses.replace(config, seed=seed), score)
            finish(tmp_path / f"{name}{seed}-again", dataclasses.replace(config, seed=seed, name="other"), score)
    (cell,) = make_cells(collect([tmp_path]).records).values()
    assert cell.scores == (60.0, 62.0)
    assert cell.std == pytest.approx(2**0.5)
    assert (cell.num_settings, len(cell.candidates)) == (3, 5)


def test_metric_must_be_unambiguous_and_known(tmp_path: Path) -> None:
    f1 = TaskConfig(name="rte", source="data/rte", metric="f1")
    finish(tmp_path / "a", experiment("rte", "head"), 0.5)
    finish(tmp_path / "b", experiment("rte", "full", of=f1), 0.5)
    records = collect([tmp_path]).records
    with pytest.raises(UserError, match=r'"rte".*\(accuracy in .*, f1 in .*--metric'):
        make_cells(records)
    with pytest.raises(UserError, match=r'metric "acuracy".*accuracy.* "accuracy"'):
        task_metrics(records[:1], "acuracy")


# Suggested commands for missing runs.


def config_of(line: str) -> tuple[ExperimentConfig, Path]:
    """Parses a command as ``afjax train`` does, and returns ``(config, workdir)``."""
    program, *words = shlex.split(line)
    assert program == "afjax"
    arguments, rest = make_parser()[0].parse_known_args(words)
    assert all(word.startswith("--config.") for word in rest)
    config = load_experiment(arguments.config, [word.removeprefix("--config.") for word in rest])
    return config, Path(arguments.workdir)


def filled(folder: Path, task: str, method: str, seed: int) -> tuple[ExperimentConfig, Path]:
    found = collect([folder])
    line = command(found, make_cells(found.records), task, method, seed)
    assert line is not None
    return config_of(line)


def test_command_for_a_missing_seed_only_changes_the_seed(tmp_path: Path) -> None:
    config = experiment("rte", "pfeiffer", adapter=adapter("pfeiffer", layers=(0, 1)))
    finish(tmp_path / "a", config, 0.5)
    (tmp_path / "rte-pfeiffer-seed2").mkdir()
    wanted = dataclasses.replace(config, seed=2)
    assert filled(tmp_path, "rte", "pfeiffer", 2) == (wanted, tmp_path / "rte-pfeiffer-seed2-2")


@pytest.mark.parametrize("settings", [{"kind": "regression", "scale": 5.0}, {"labels": ("1", "None")}])
def test_command_for_a_missing_task_runs_the_method_on_it(tmp_path: Path, settings: dict[str, Any]) -> None:
    task = TaskConfig(name="stsb", source="da ta/it's", **settings)
    finish(tmp_path / "a", experiment("rte", "full", seed=1), 0.5)
    finish(tmp_path / "b", experiment("stsb", "head", of=task), 0.5)
    config, workdir = filled(tmp_path, "stsb", "full", 1)
    assert config == experiment("stsb", "full", of=task, seed=1)
    assert workdir == tmp_path / "stsb-full-seed1"


def test_command_for_a_fusion_source_trains_it_separately(tmp_path: Path) -> None:
    config = fusion("rte", ("cb", "mnli"))
    finish(tmp_path / "a", config, 0.7)
    finish_source(tmp_path / "a", "cb", 0.6)
    found, _ = filled(tmp_path, "cb", "pfeiffer", 1)
    assert (found.recipe, found.target.name, found.sources, found.seed) == ("single", "cb", (), 1)


def test_command_for_a_joint_run_adds_the_missing_task(tmp_path: Path) -> None:
    sampling = SamplingConfig(sampler="round_robin")
    finish(tmp_path / "a", jointly("full", ("rte", "cb"), sampling=sampling), {"rte": 0.5, "cb": 0.5})
    finish(tmp_path / "b", experiment("sick", "full"), 0.5)
    config, _ = filled(tmp_path, "sick", "mt-full", 0)
    assert config == jointly("full", ("rte", "cb", "sick"), sampling=sampling)


def test_one_joint_run_fills_gaps_for_all_its_tasks(tmp_path: Path) -> None:
    finish(tmp_path / "a", jointly("full", ("rte", "cb")), {"rte": 0.5, "cb": 0.5})
    found = collect([tmp_path])
    lines = {command(found, make_cells(found.records), task, "mt-full", 1) for task in ("rte", "cb")}
    (line,) = lines
    assert line is not None
    assert config_of(line) == (jointly("full", ("rte", "cb"), seed=1), tmp_path / "mt-full-seed1")


def test_command_for_a_fusion_reuses_stored_adapters(tmp_path: Path) -> None:
    finish(tmp_path / "a", fusion("rte", ("cb",)), 0.7, saved=2)
    found = collect([tmp_path])
    line = command(found, make_cells(found.records), "rte", "fusion", 1)
    assert line is not None
    assert f"--store={tmp_path / 'a' / 'store'}" in shlex.split(line)
    assert config_of(line)[0].artifact_name(TaskConfig(name="rte")) == "rte-fusion-seed1"


@pytest.mark.parametrize(("task", "seed", "reuses"), [("sick", 0, True), ("rte", 1, False)])
def test_command_for_a_fusion_reuses_the_adapters_of_its_seed(
    tmp_path: Path, task: str, seed: int, reuses: bool
) -> None:
    finish(tmp_path / "a", fusion("rte", ("cb",)), 0.7, saved=2)
    finish_source(tmp_path / "a", "cb", 0.6)
    finish(tmp_path / "b", experiment("sick", "full"), 0.5)
    found = collect([tmp_path])
    line = command(found, make_cells(found.records), task, "fusion", seed)
    assert line is not None
    # With another seed, the adapters are trained again.
    assert (f"--store={tmp_path / 'a' / 'store'}" in shlex.split(line)) == reuses


def test_command_resumes_an_unfinished_run(tmp_path: Path) -> None:
    config = experiment("rte", "full", seed=1)
    finish(tmp_path / "a", experiment("rte", "full"), 0.5)
    begin(tmp_path / "b", config)
    assert filled(tmp_path, "rte", "full", 1) == (config, tmp_path / "b")


@pytest.mark.parametrize("method", ["head", "full", "layernorm", "top-2", "pfeiffer", "houlsby"])
def test_command_for_a_method_without_runs(tmp_path: Path, method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    task = TaskConfig(name="rte", source="data,with:signs", kind="regression", scale=5.0)
    finish(tmp_path / "a", experiment("rte", "pals", of=task), 0.5)
    monkeypatch.chdir(Path(__file__).parents[2])
    config, _ = filled(tmp_path, "rte", method, 4)
    assert (config.task, config.seed, config.trunk, method_of(config)) == (task, 4, "minilm", method)


def test_no_command_without_a_run_to_derive_it_from(tmp_path: Path) -> None:
    finish_all(tmp_path, {("rte", "head"): (0.5,)})
    found = collect([tmp_path])
    assert command(found, make_cells(found.records), "rte", "fusion-mt", 0) is None


def test_invalid_config_json(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    with pytest.raises(UserError, match=r"not exist.*workdir's config\.json"):
        load_experiment(str(path))
    for text in ("[]", "{", json.dumps({"sources": [{}]})):
        path.write_text(text)
        with pytest.raises(UserError, match=r"workdir's config\.json"):
            load_experiment(str(path))
    with pytest.raises(UserError, match="takes no arguments"):
        load_experiment(f"{path}:seed=1")
