"""Steps compiled from plans have the shapes and programs of real runs."""

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import pytest
from facts import has_facts
from jax.experimental.compilation_cache import compilation_cache

from afjax.cli.main import main
from afjax.config.adapters import ADAPTER_PRESETS, PalConfig
from afjax.config.experiment import ExperimentConfig, SourceConfig
from afjax.config.tasks import TaskConfig, TaskKind
from afjax.config.training import MeshConfig, SamplingConfig, TrainConfig
from afjax.distributed.sharding import make_mesh
from afjax.errors import UserError
from afjax.tasks.kinds import TASK_KINDS
from afjax.tasks.load import rows_from_lists
from afjax.tpu import plan, report
from afjax.tpu.chips import parse_topology
from afjax.tpu.minimum_flops import minimum_flops
from afjax.tpu.program import Memory, Program, Work, read_program
from afjax.tpu.report import Report, Step, largest_number, to_json, to_lines
from afjax.tpu.roofline import roofline
from afjax.tpu.steps import compile_eval_step, compile_train_step, step_shapes, trained_bytes
from afjax.train import multitask, single
from afjax.train.options import RunOptions
from afjax.trunk.pretrained import Trunk

pytestmark = pytest.mark.slow

SETTINGS = TrainConfig(batch_size=4, max_length=8, max_steps=1)
ROWS = rows_from_lists(["all of it", "none of it"] * 4, ["yes", "no"] * 4, label_names=("no", "yes"))


def one_device() -> Any:
    return make_mesh(MeshConfig(), jax.devices()[:1])


def plan_method(folder: Path, method: str, **changes: Any) -> plan.Plan:
    given: dict[str, Any] = {"num_adapters": 3, "num_tasks": 2, "batch_size": 4, "max_length": 8}
    given |= {"trunk_dtype": "float32", "unrolled": True, **changes}
    return plan.plan_method(plan.MethodCase(trunk=str(folder), method=method, **given))


def with_depth(planned: plan.Plan, num_layers: int) -> plan.Plan:
    """Returns the plan with another number of layers.

    A loop over layers needs at least three layers, because it excludes the last layer.
    """
    trunk = dataclasses.replace(planned.model.trunk, num_layers=num_layers)
    setup = dataclasses.replace(planned.setup, model=dataclasses.replace(planned.model, trunk=trunk))
    return dataclasses.replace(planned, setup=setup)


def test_step_of_three_runs_has_three_times_the_work(tiny_trunk_folder: Path) -> None:
    planned = plan_method(tiny_trunk_folder, "adapter")
    one, three = (read_program(compile_train_step(planned.with_slots(n), one_device())[0]).work for n in (1, 3))
    assert three.matmul_flops == pytest.approx(3 * one.matmul_flops, rel=0.01)
    assert three.collectives == ()


@pytest.mark.parametrize(("method", "slots", "facts"), [("adapter", 0, ("slots is 0",)), ("full", 2, ("full",))])
def test_invalid_slots_are_refused(tiny_trunk_folder: Path, method: str, slots: int, facts: tuple[str, ...]) -> None:
    with pytest.raises(UserError) as refused:
        plan_method(tiny_trunk_folder, method).with_slots(slots)
    assert has_facts(str(refused.value), *facts)


def test_slots_are_refused_with_the_generator_rbg(tiny_trunk_folder: Path) -> None:
    planned = plan_method(tiny_trunk_folder, "adapter")
    rbg = dataclasses.replace(planned, settings=dataclasses.replace(planned.settings, prng="rbg"))
    assert rbg.with_slots(1).slots == 1
    with pytest.raises(UserError) as refused:
        rbg.with_slots(4)
    assert has_facts(str(refused.value), "slots is 4", "rbg", "threefry2x32")


def test_slots_are_refused_for_tasks_that_train_one_after_another() -> None:
    tasks = tuple(TaskConfig(name=name) for name in "ab")
    planned = plan.plan_experiment(ExperimentConfig(recipe="sequential", tasks=tasks, trunk="bert-base"))
    assert planned.with_slots(1).slots == 1
    with pytest.raises(UserError) as refused:
        planned.with_slots(2)
    assert has_facts(str(refused.value), "slots is 2", "several tasks")


@pytest.mark.parametrize(
    ("kinds", "first"),
    [
        (("classification", "tagging"), "tagging"),
        (("span", "classification", "multiple_choice"), "multiple_choice"),
        (("regression", "multi_label"), "regression"),
    ],
)
def test_joint_training_is_planned_for_the_costliest_kind(
    tiny_trunk_folder: Path, kinds: tuple[TaskKind, ...], first: TaskKind
) -> None:
    tasks = tuple(TaskConfig(name=kind, kind=kind) for kind in kinds)
    planned = plan.plan_experiment(
        ExperimentConfig(recipe="multitask", tasks=tasks, trunk=str(tiny_trunk_folder), train=SETTINGS)
    )
    assert planned.kinds[0] == first
    assert planned.model.reads == TASK_KINDS[first].reads
    found = Report(planned, parse_topology("v5e:1x1"), None, None, 0, 0, None)
    assert has_facts("\n".join(to_lines(found)), "steps", first)


def test_steps_of_jointly_trained_token_tasks_compile(tiny_trunk_folder: Path) -> None:
    tasks = tuple(TaskConfig(name=name, kind="tagging") for name in "ab")
    planned = plan.plan_experiment(
        ExperimentConfig(recipe="multitask", tasks=tasks, trunk=str(tiny_trunk_folder), train=SETTINGS)
    )
    for compile_step in (compile_train_step, compile_eval_step):
        assert read_program(compile_step(planned, one_device())[0]).work.matmul_flops > 0


@pytest.mark.parametrize(
    ("trunk", "method", "pooling"),
    [
        ("bert-base", "adapter", "first"),
        ("minilm", "adapter", "mean"),
        ("minilm", "fusion", "mean"),
        ("minilm", "full", "first"),
    ],
)
def test_method_is_planned_with_the_default_pooling(trunk: str, method: str, pooling: str) -> None:
    assert plan.plan_method(plan.MethodCase(trunk=trunk, method=method)).model.head.pooling == pooling


@pytest.mark.parametrize("recipe", ["adapter", "houlsby, scanned", "full, scanned", "top_k", "multitask"])
def test_plan_has_the_shapes_of_the_run(
    tiny_trunk: Trunk, tiny_trunk_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, recipe: str
) -> None:
    name, scan = recipe.partition(",")[0], "scanned" in recipe
    task = TaskConfig(name="one", labels=("no", "yes"))
    changes: dict[str, Any] = {"partition": "adapter", "adapter": ADAPTER_PRESETS["pfeiffer"]}
    if name == "houlsby":
        changes["adapter"] = ADAPTER_PRESETS["houlsby"]
    if name in ("full", "top_k"):
        changes = {"partition": name, "top_k": int(name == "top_k")}
    if name == "multitask":
        changes = {"partition": "adapter+trunk", "adapter": PalConfig(size=8, num_heads=2), "recipe": "multitask"}
        changes["tasks"] = (task, dataclasses.replace(task, name="two"))
        changes["sampling"] = SamplingConfig(steps_per_epoch=2)
    else:
        changes["task"] = task
    config = ExperimentConfig(trunk=str(tiny_trunk_folder), train=SETTINGS, scan_layers=scan, **changes)

    class StopError(Exception):
        pass

    runs: list[Any] = []

    def record(run: Any, *given: Any, **named: Any) -> None:
        runs.append(run)
        raise StopError

    monkeypatch.setattr(single, "run_loop", record)
    monkeypatch.setattr(multitask, "run_loop", record)
    shared: dict[str, Any] = {"config": SETTINGS, "workdir": tmp_path, "options": RunOptions(scan_layers=scan)}
    data = {"train": ROWS, "dev": ROWS}
    if name == "multitask":
        data_by_task = {task.name: data for task in config.tasks}
        with pytest.raises(StopError):
            multitask.train_multitask(tiny_trunk, config.tasks, data_by_task, method=config.method, **shared)
    else:
        with pytest.raises(StopError):
            single.train_single(tiny_trunk, task, data, method=config.method, **shared)
    state, _ = step_shapes(plan.plan_experiment(config), one_device())
    found = [(leaf.shape, leaf.dtype.name) for leaf in jax.tree.leaves(state)]
    assert sorted(found) == sorted((leaf.shape, leaf.dtype.name) for leaf in jax.tree.leaves(runs[0].start))


@pytest.mark.parametrize("scan", [False, True])
@pytest.mark.parametrize("method", sorted(set(plan.METHODS) - {"adapter"}))
def test_every_method_compiles_to_nearly_the_minimum_flops(tiny_trunk_folder: Path, method: str, scan: bool) -> None:
    planned = with_depth(plan_method(tiny_trunk_folder, method, batch_size=256, unrolled=not scan), 4 if scan else 2)
    compiled, seconds = compile_train_step(planned, one_device())
    program = read_program(compiled)
    least = minimum_flops(planned.model, planned.trained, batch_size=256, length=8, num_outputs=max(planned.outputs))
    assert seconds > 0
    # A fusion may exceed the minimum by 10%. The last layer computes too few tokens for the folded form (see
    # FOLDING_TOKENS), although folding would need fewer FLOPs in such a small model.
    assert least <= program.work.matmul_flops <= (1.1 if method == "fusion" else 1.001) * least
    evaluated = read_program(compile_eval_step(planned, one_device())[0]).work.matmul_flops
    # Before evaluation, a separate program folds the fusion.
    assert 0 < evaluated < program.work.matmul_flops
    assert trained_bytes(planned, one_device()) > 0


@pytest.mark.parametrize("method", sorted(set(plan.METHODS) - {"adapter", "head"}))
def test_remat_of_matmuls_recomputes_no_matrix_products(tiny_trunk_folder: Path, method: str) -> None:
    no_remat, matmuls, layers = (
        read_program(
            compile_train_step(
                with_depth(plan_method(tiny_trunk_folder, method, remat=remat, unrolled=False), 4), one_device()
            )[0]
        ).work.matmul_flops
        for remat in ("none", "matmuls", "layers")
    )
    assert matmuls == no_remat < layers


@pytest.mark.parametrize("number", [8, 64, 1024, 4096, 10_000])
@pytest.mark.parametrize("unit", [1, 8])
@pytest.mark.parametrize("flat_until", [0, 50, 100])
def test_largest_number_is_found_from_small_and_large_steps(number: int, unit: int, flat_until: int) -> None:
    """Small steps use nearly the same memory, because they need few temporaries."""
    limit, compiled = 16_000_000, []
    work, topology = Work(0, 0, 0, 0, (), ()), parse_topology("v5e:1x1")

    def step(rows: int) -> Step | None:
        compiled.append(rows)
        peak = 50_000 + max(0, rows - flat_until) * 5000
        memory = Memory(peak, 0, 0, 0, 0, peak)
        return None if peak > limit else Step(Program(work, memory), 0, 0, roofline(work, topology))

    number = number * unit
    found = largest_number(step, number, step(number), limit, unit=unit)
    largest = flat_until + (limit - 50_000) // 5000
    assert found is not None
    assert found % unit == 0
    assert 0.9 * largest - unit <= found <= largest
    # Few steps are compiled, although each takes up to minutes.
    assert len(compiled) <= 9


def test_number_that_does_not_fit_has_no_largest() -> None:
    assert largest_number(lambda number: None, 8, None, 100, unit=4) is None


def test_best_parameters_of_every_run_take_memory(tiny_trunk_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The steps here use no memory, so only the copies of the best parameters limit the number of runs."""
    planned, topology = plan_method(tiny_trunk_folder, "head").with_slots(2), parse_topology("v5e:1x1")
    work = Work(0, 0, 0, 0, (), ())
    step = Step(Program(work, Memory(0, 0, 0, 0, 0, 0)), 0, 0, roofline(work, topology))
    monkeypatch.setattr(report, "get_topology", lambda topology: SimpleNamespace(devices=jax.devices()[:1]))
    monkeypatch.setattr(report, "train_step", lambda *_: step)
    monkeypatch.setattr(report, "_eval_step", lambda *_: step)
    found = report.report(planned, topology)
    trained = step_shapes(planned, one_device())[0]["trained"]
    size = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(trained))
    assert found.best_bytes == 2 * size
    assert found.fitting_slots is not None
    assert 0.9 * topology.chip.hbm_bytes <= found.fitting_slots * size <= topology.chip.hbm_bytes


def test_report_is_written_as_text_and_as_json(tiny_trunk_folder: Path) -> None:
    topology = parse_topology("v5e:2x4")
    planned = plan_method(tiny_trunk_folder, "fusion")
    compiled, seconds = compile_train_step(planned, one_device())
    program = read_program(compiled)
    step = Step(program, seconds, program.work.matmul_flops / 1.02, roofline(program.work, topology))
    found = Report(planned, topology, step, None, 1000, 2000, 64)
    values: Mapping[str, Any] = json.loads(json.dumps(to_json(found)))
    for name in ("flops_per_chip", "minimum_flops_per_chip", "memory_gb_per_chip", "all_reduce_bytes", "compile_s"):
        assert values[name] >= 0
        assert values[f"eval_{name}"] is None
    text = "\n".join(to_lines(found))
    assert has_facts(text, "fusion", "3 adapters: ", "4 rows", "8 tokens", "v5e:2x4, 8 chips")
    assert has_facts(text, "Largest batch", "64 rows")
    assert "bound by" in text
    assert "may fail" not in text
    four = "\n".join(
        to_lines(Report(plan_method(tiny_trunk_folder, "head").with_slots(4), topology, step, None, 1, 2, None, 9))
    )
    assert has_facts(four, "per run ", "4 runs per step")
    assert has_facts(four, "Largest number of runs", "9")
    nothing = "\n".join(to_lines(Report(planned, topology, None, None, 1000, 2000, None)))
    assert has_facts(nothing, "batch", "not fit", "16.9 GB", "per chip")
    assert "mesh.fsdp" in nothing


def test_report_warns_if_the_step_compiles_but_its_memory_may_not_fit(tiny_trunk_folder: Path) -> None:
    topology = parse_topology("v5e:2x2")
    planned = plan_method(tiny_trunk_folder, "head")
    program = read_program(compile_train_step(planned, one_device())[0])
    # These are the compiler's numbers for BERT-large with 16 rows of 512 tokens per chip.
    memory = Memory(
        arguments=4022040064,
        outputs=4021966848,
        aliased=4021964288,
        temporaries=13729465856,
        code=30545920,
        in_use=16011897856,
    )
    step = Step(dataclasses.replace(program, memory=memory), 1.0, 1.0, roofline(program.work, topology))
    found = Report(planned, topology, step, None, 1000, 2000, None)
    values = to_json(found)
    assert values["fits"]
    assert values["in_use_gb_per_chip"] < values["hbm_gb_per_chip"] < values["memory_gb_per_chip"]
    text = "\n".join(to_lines(found))
    assert has_facts(text, "in use ", "16.012 GB")
    assert has_facts(text, "total", "may fail")


def test_plan_follows_the_config_of_an_experiment(tiny_trunk_folder: Path) -> None:
    sources = tuple(SourceConfig(task=TaskConfig(name=name)) for name in ("a", "b", "c"))
    given: dict[str, Any] = {"trunk": str(tiny_trunk_folder), "task": TaskConfig(name="t"), "train": SETTINGS}
    fusion = plan.plan_experiment(ExperimentConfig(recipe="fusion", sources=sources, fused=("a", "c"), **given))
    assert [name for name, _ in fusion.model.adapters] == ["a", "c"]
    assert fusion.trained == "fusion"
    head = plan.plan_experiment(ExperimentConfig(partition="head", scan_layers=True, remat="layers", **given))
    assert (head.model.adapters, head.model.scan_layers, head.model.remat) == ((), True, "layers")
    with pytest.raises(UserError, match="The trunk size"):
        plan.plan_experiment(ExperimentConfig(**{**given, "trunk": "bert-bse"}))
    with pytest.raises(UserError, match="num_adapters=0"):
        plan_method(tiny_trunk_folder, "fusion", num_adapters=0)


def test_command_prints_the_numbers_of_a_slice_as_json(
    needs_libtpu: None, tiny_trunk_folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Compile fewer steps. test_largest_number_is_found_from_small_and_large_steps checks the whole search.
    monkeypatch.setattr(report, "_LARGER_STEPS", 1)
    monkeypatch.setattr(report, "_CORRECTIONS", 0)
    arguments = [f"--trunk={tiny_trunk_folder}", "--method=pfeiffer", "--batch_size=64", "--max_length=16"]
    assert main(["tpu", "--topology=v5e:2x4", *arguments, "--json"]) == 0
    values = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert values["num_chips"] == 8
    assert values["fits"]
    assert values["largest_batch_size"] > 64
    assert (
        values["minimum_flops_per_chip"] <= values["matmul_flops_per_chip"] <= 1.05 * values["minimum_flops_per_chip"]
    )
    # The all-reduced arrays can have more bytes than the gradients, because small arrays are padded to tiles.
    assert values["gradient_bytes"] <= values["all_reduce_bytes"]


@pytest.mark.parametrize(("topology", "code"), [("v5e:2x4", 0), ("v5e:3x3", 2)])
def test_command_neither_uses_the_compilation_cache_nor_leaves_it_disabled(
    needs_libtpu: None, tiny_trunk_folder: Path, tmp_path: Path, topology: str, code: int
) -> None:
    jax.config.update("jax_enable_compilation_cache", True)
    jax.config.update("jax_compilation_cache_dir", str(tmp_path / "compiled"))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    compilation_cache.reset_cache()
    arguments = [f"--trunk={tiny_trunk_folder}", "--method=full", "--batch_size=8", "--max_length=8", "--no_fit"]
    assert main(["tpu", f"--topology={topology}", *arguments]) == code
    programs = [path.name for path in (tmp_path / "compiled").glob("*")]
    assert not [name for name in programs if "step" in name]
    jax.jit(lambda value: value + 1).lower(1.0).compile()
    assert len(list((tmp_path / "compiled").glob("*-cache"))) > len(programs)


@pytest.mark.parametrize(
    ("arguments", "facts"),
    [
        (["--topology=v5e:3x3", "--method=full"], ('no topology "v5e:3x3"; ', "v5e:1x1")),
        (["--topology=v9:2x2", "--method=full"], ('topology "v9:2x2" ', "GENERATION:SHAPE")),
        (["--topology=v5e:3x3"], ('no topology "v5e:3x3"; ', "v5e:1x1")),
        (["--topology=v5e:2x4"], ("either --config", "--method")),
        (["--topology=v5e:2x4", "--method=full", "--config=a.py"], ("either --config", "--method")),
        (["--topology=v5e:2x4", "--method=full", "--config.seed=1"], ("--config.seed=1 ", "also pass --config")),
        (["--topology=v5e:2x4", "--method=full", "--trunk=bert-bas"], ('Did you mean "bert-base"?',)),
        (["--topology=v5e:2x4", "--method=full", "--max_length=513"], ("4 to 512 tokens",)),
        (["--topology=v5e:2x4", "--method=fusion", "--num_tasks=5"], ("--num_tasks ", "--method=pals,", "=fusion;")),
        (
            ["--topology=v5e:2x4", "--method=head", "--num_adapters=7"],
            ("--num_adapters ", "--method=fusion,", "=head;"),
        ),
        (["--topology=v5e:2x4", "--method=full", "--fsdp=0"], ("mesh.fsdp is 0;", "-1 ")),
        (["--topology=v5e:2x4", "--method=full", "--fsdp=-1", "--tensor=-1"], ("mesh.fsdp and mesh.tensor are -1;",)),
    ],
)
def test_command_refuses_bad_arguments(
    arguments: list[str], facts: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["tpu", *arguments]) == 2
    assert has_facts(capsys.readouterr().err, *facts)


@pytest.mark.parametrize(
    "flag",
    [
        "--trunk=bert-base",
        "--num_adapters=16",
        "--num_tasks=8",
        "--batch_size=256",
        "--max_length=128",
        "--trunk_dtype=bfloat16",
        "--remat=none",
        "--fsdp=1",
        "--tensor=1",
        "--unrolled",
    ],
)
def test_method_flags_are_refused_with_a_config(flag: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tpu", "--topology=v5e:2x4", "--config=configs/adapter.py", flag]) == 2
    output = capsys.readouterr().err
    assert has_facts(output, flag.partition("=")[0], "--method", "--config.")
    assert "--config.train.batch_size=64" in output


@pytest.mark.parametrize("axis", ["fsdp", "tensor"])
def test_one_axis_can_take_all_devices(tiny_trunk_folder: Path, axis: str) -> None:
    assert plan_method(tiny_trunk_folder, "full", **{axis: -1}).mesh == MeshConfig(**{"data": 1, axis: -1})


def test_help_shows_the_defaults_of_methods(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    planned: list[plan.MethodCase] = []

    def record(case: plan.MethodCase) -> None:
        planned.append(case)
        raise UserError("stop after planning")

    monkeypatch.setattr(plan, "plan_method", record)
    assert main(["tpu", "--topology=v5e:2x4", "--method=full", "--batch_size=64"]) == 2
    assert planned == [plan.MethodCase(method="full", batch_size=64)]
    # Make the terminal wide enough that no line of the help is wrapped.
    monkeypatch.setenv("COLUMNS", "200")
    with pytest.raises(SystemExit):
        main(["tpu", "--help"])
    output = capsys.readouterr().out
    defaults = [
        field.default for field in dataclasses.fields(plan.MethodCase) if field.name not in ("method", "unrolled")
    ]
    assert len(defaults) == 9
    assert all(f"({default})" in output for default in defaults)


def test_meshes_and_batches_that_do_not_fit_the_slice_are_refused(
    needs_libtpu: None, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["tpu", "--topology=v5e:2x4", "--method=full", "--fsdp=3"]) == 2
    assert has_facts(capsys.readouterr().err, "mesh (", "not match", "8 devices")
    assert main(["tpu", "--topology=v5e:2x4", "--method=full", "--batch_size=36"]) == 2
    assert has_facts(capsys.readouterr().err, "batch of 36 rows", "8 devices")
