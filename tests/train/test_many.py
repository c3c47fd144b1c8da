"""``train_many`` trains many runs in one program.

A run's results do not depend on the other runs.
"""

import contextlib
import dataclasses
import json
import os
import re
import signal
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from facts import has_facts

from afjax.config.adapters import ADAPTER_PRESETS
from afjax.config.methods import FusionMethod, Method
from afjax.config.tasks import TaskConfig
from afjax.config.training import TrainConfig
from afjax.data.batches import Batch
from afjax.data.splits import Rows
from afjax.errors import PreemptionError, UserError
from afjax.model.task_model import TaskModel
from afjax.tasks.load import rows_from_lists
from afjax.train import single_run, stack, together
from afjax.train.loop import Training
from afjax.train.many import PlannedRun, _with_details, train_many
from afjax.train.options import RunOptions
from afjax.train.shared import Shared
from afjax.train.single import single_training, train_single
from afjax.train.single_run import SingleRun
from afjax.trees import flatten, tree_digest
from afjax.trunk.pretrained import Trunk

pytestmark = pytest.mark.slow

SLOTS = 3


@pytest.fixture
def planned(task: TaskConfig, rows: Mapping[str, Rows], tiny: TrainConfig, tmp_path: Path) -> "Plan":
    return Plan(task, rows, dataclasses.replace(tiny, dropout=True), tmp_path)


class Plan:
    """Makes planned runs on one task. Each seed has its own workdir."""

    def __init__(self, task: TaskConfig, rows: Mapping[str, Rows], config: TrainConfig, folder: Path) -> None:
        self.task, self.rows, self.config, self.folder = task, rows, config, folder

    def __call__(self, seed: int, *, folder: str = "many", method: Any = Method(), **changes: Any) -> PlannedRun:
        return PlannedRun(
            task=self.task,
            data=self.rows,
            workdir=self.folder / folder / str(seed),
            method=method,
            config=dataclasses.replace(self.config, **changes),
            options=RunOptions(seed=seed),
        )


def train_separately(trunk: Trunk, run: PlannedRun, folder: Path) -> TaskModel:
    assert isinstance(run.method, Method)
    return train_single(
        trunk, run.task, run.data, workdir=folder, method=run.method, config=run.config, options=run.options
    )


def models(outcomes: Sequence[TaskModel | Exception]) -> list[TaskModel]:
    assert all(isinstance(outcome, TaskModel) for outcome in outcomes), outcomes
    return [outcome for outcome in outcomes if isinstance(outcome, TaskModel)]


def digests(outcomes: Sequence[TaskModel | Exception]) -> list[str]:
    return [tree_digest(model.params) for model in models(outcomes)]


def assert_close(model: TaskModel, other: TaskModel) -> None:
    leaves, others = flatten(model.params), flatten(other.params)
    assert leaves.keys() == others.keys()
    for path, leaf in leaves.items():
        np.testing.assert_allclose(leaf, others[path], atol=2e-4, rtol=2e-3, err_msg=path)


def scalars(folder: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def group_sizes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Records the number of runs in each compiled step.

    Returns:
      A list with one number per step. It grows during the test.
    """
    sizes: list[int] = []
    step_together = together._step_together

    def counted(requests: Any, *given: Any) -> Any:
        sizes.append(len(requests))
        return step_together(requests, *given)

    monkeypatch.setattr(together, "_step_together", counted)
    return sizes


def test_one_slot_gives_the_results_and_files_of_separate_runs(
    tiny_trunk: Trunk, planned: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = [planned(0), planned(1, learning_rate=3e-3, max_steps=10), planned(2, method=Method(partition="full"))]
    compiled: list[Method] = []
    compile_programs = single_run._compile

    def counted(setup: Any, *given: Any) -> Any:
        compiled.append(setup)
        return compile_programs(setup, *given)

    monkeypatch.setattr(single_run, "_compile", counted)
    together_models = train_many(tiny_trunk, runs)
    # Only two programs are compiled for the three runs, because the first two runs share a program.
    assert len(compiled) == 2
    separate = [train_separately(tiny_trunk, run, tmp_path / "separate" / str(run.options.seed)) for run in runs]
    assert digests(together_models) == digests(separate)
    assert [model.metrics for model in models(together_models)] == [model.metrics for model in separate]
    for seed in range(3):
        many, own = tmp_path / "many" / str(seed), tmp_path / "separate" / str(seed)
        assert scalars(many) == scalars(own)
        assert sorted(path.name for path in many.iterdir()) == sorted(path.name for path in own.iterdir())


def test_each_program_is_compiled_once(tiny_trunk: Trunk, planned: Plan, caplog: pytest.LogCaptureFixture) -> None:
    # All calls of train_many share small programs, for example for initializing parameters.
    train_many(tiny_trunk, [planned(0)])
    with jax.log_compiles():
        models(train_many(tiny_trunk, [planned(seed) for seed in (1, 2, 3)]))
    compiled = [re.match(r"Compiling jit\((\w+)\)", message) for message in caplog.messages]
    assert sorted(found[1] for found in compiled if found) == ["rest", "step", "train_step"]


def test_each_program_of_runs_in_one_step_is_compiled_once(
    tiny_trunk: Trunk, planned: Plan, caplog: pytest.LogCaptureFixture
) -> None:
    train_many(tiny_trunk, [planned(0)])
    with jax.log_compiles():
        models(train_many(tiny_trunk, [planned(seed, max_steps=seed) for seed in (1, 2, 3, 4)], slots=SLOTS))
    compiled = [re.match(r"Compiling jit\((\w+)\)", message) for message in caplog.messages]
    # The fourth run takes the slot of the first one.
    assert sorted(found[1] for found in compiled if found) == [
        "fill",
        "get_slot",
        "one_run",
        "rest",
        "set_slot",
        "step",
    ]


def test_runs_train_if_shared_values_are_dropped(
    tiny_trunk: Trunk, planned: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kinds = [Method(), Method(partition="head"), Method(adapter=ADAPTER_PRESETS["lora"])]
    runs = [planned(seed, method=method, max_steps=4) for seed, method in enumerate(kinds)]
    expected = digests(train_many(tiny_trunk, runs, slots=SLOTS))
    once = Shared.once
    monkeypatch.setattr(
        Shared, "once", lambda self, kind, key, make, **capacity: once(self, kind, key, make, capacity=1)
    )
    again = [dataclasses.replace(run, workdir=tmp_path / f"again {run.options.seed}") for run in runs]
    assert digests(train_many(tiny_trunk, again, slots=SLOTS)) == expected


@pytest.mark.parametrize(
    "method",
    [Method(), Method(adapter=ADAPTER_PRESETS["lora"]), Method(partition="head"), Method(partition="layernorm")],
    ids=["adapter", "lora", "head", "layernorm"],
)
def test_runs_in_one_step_equal_separate_runs_up_to_rounding(
    tiny_trunk: Trunk, planned: Plan, tmp_path: Path, method: Method
) -> None:
    changes: list[dict[str, Any]] = [{}, {"learning_rate": 3e-3, "warmup": 0.5}, {"max_steps": 5}, {"max_steps": 9}]
    # With the default epsilon, Adam's first steps mostly depend on the signs of the gradients. Rounding could change
    # the signs.
    runs = [planned(seed, method=method, adam_epsilon=1e-3, **changes[seed]) for seed in range(4)]
    outcomes = models(train_many(tiny_trunk, runs, slots=SLOTS))
    for run, model in zip(runs, outcomes, strict=True):
        seed = run.options.seed
        own = train_separately(tiny_trunk, run, tmp_path / "separate" / str(seed))
        assert_close(model, own)
        assert model.metrics == own.metrics
        many, separate = scalars(tmp_path / "many" / str(seed)), scalars(tmp_path / "separate" / str(seed))
        assert [line.keys() for line in many] == [line.keys() for line in separate]
        losses = [[line["loss"] for line in lines if "loss" in line] for lines in (many, separate)]
        np.testing.assert_allclose(*losses, rtol=1e-3)


def test_runs_in_one_step_share_a_single_compiled_step(
    tiny_trunk: Trunk, planned: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = group_sizes(monkeypatch)
    models(train_many(tiny_trunk, [planned(seed) for seed in range(4)], slots=SLOTS))
    # Three runs share 16 steps. The fourth run then trains 16 steps on its own.
    assert sizes == [3] * 16 + [1] * 16


def test_runs_with_different_step_settings_share_programs_and_steps(
    tiny_trunk: Trunk, planned: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = group_sizes(monkeypatch)
    settings: list[dict[str, Any]] = [
        {"weight_decay": 0.0, "class_weights": {"many": 5.0}},
        {"clip_norm": 0.1, "class_weights": {"few": 3.0}},
        {"clip_norm": 10.0, "weight_decay": 0.5, "class_weights": "balanced"},
    ]
    runs = [planned(0, folder=str(number), adam_epsilon=1e-3, **each) for number, each in enumerate(settings)]
    outcomes = models(train_many(tiny_trunk, runs, slots=SLOTS))
    assert sizes == [3] * 16
    assert len(set(digests(outcomes))) == 3
    in_turn = [dataclasses.replace(run, workdir=tmp_path / "in turn" / str(n)) for n, run in enumerate(runs)]
    own = [train_separately(tiny_trunk, run, tmp_path / "separate" / str(number)) for number, run in enumerate(runs)]
    assert digests(train_many(tiny_trunk, in_turn)) == digests(own)
    for model, other in zip(outcomes, own, strict=True):
        assert_close(model, other)
        assert model.metrics == other.metrics


def test_runs_with_and_without_clipping_or_class_weights_do_not_share_steps(
    tiny_trunk: Trunk, planned: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = group_sizes(monkeypatch)
    settings: list[dict[str, Any]] = [{}, {"clip_norm": 0.0}, {"class_weights": {"many": 5.0}}]
    runs = [planned(0, folder=str(number), max_steps=2, **each) for number, each in enumerate(settings)]
    models(train_many(tiny_trunk, runs, slots=SLOTS))
    assert sizes == [1] * 6


def test_tasks_with_different_names_share_programs_and_steps(
    tiny_trunk: Trunk, planned: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = group_sizes(monkeypatch)
    # The names are not in alphabetical order. The name "norm" also occurs in the paths of LayerNorms.
    runs = [
        dataclasses.replace(planned(seed, weight_decay_on="weights"), options=RunOptions(seed=seed, name=name))
        for seed, name in enumerate(("zeta", "norm", "alpha"))
    ]
    outcomes = models(train_many(tiny_trunk, runs, slots=SLOTS))
    assert sizes == [3] * 16
    for run, model in zip(runs, outcomes, strict=True):
        assert list(model.params["adapters"]) == list(model.params["heads"]) == [run.options.name]
        own = train_separately(tiny_trunk, run, tmp_path / "separate" / str(run.options.seed))
        assert model.metrics == own.metrics
        assert_close(model, own)


def test_fusions_of_adapters_with_different_names_share_steps(
    tiny_trunk: Trunk, planned: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = tmp_path / "store"
    for seed, name in enumerate(("one", "two", "three")):
        run = dataclasses.replace(planned(seed, folder="sources"), options=RunOptions(seed=seed, name=name))
        models(train_many(tiny_trunk, [run]))[0].save(store)
    # The adapters of a fusion do not have to be in alphabetical order.
    fused = [("two", "one"), ("three", "two"), ("one", "three")]
    methods = [FusionMethod(adapters=names, store=store) for names in fused]
    separate = models(train_many(tiny_trunk, [planned(seed, folder="own", method=methods[seed]) for seed in range(3)]))
    sizes = group_sizes(monkeypatch)
    runs = [planned(seed, method=methods[seed]) for seed in range(3)]
    together_models = models(train_many(tiny_trunk, runs, slots=SLOTS))
    assert sizes == [3] * 16
    for model, own, names in zip(together_models, separate, fused, strict=True):
        assert tuple(model.params["adapters"]) == names
        assert model.metrics == own.metrics
        assert_close(model, own)


def test_other_runs_do_not_change_the_parameters_of_a_run(tiny_trunk: Trunk, planned: Plan) -> None:
    [one] = digests(train_many(tiny_trunk, [planned(7, folder="one")], slots=SLOTS))
    others = [planned(1), planned(2, max_steps=3), planned(3, learning_rate=0.1), planned(4, max_steps=5)]
    with_others = train_many(tiny_trunk, [*others, planned(7)], slots=SLOTS)
    assert digests(with_others)[-1] == one


def of_two_lengths(run: PlannedRun) -> PlannedRun:
    """Makes every second train row longer, and uses two padded lengths."""
    rows = run.data["train"]
    texts = [f"{text} of three" if number % 2 else text for number, text in enumerate(rows.text_a)]
    train = rows_from_lists(texts, [rows.label_names[label] for label in rows.labels], label_names=rows.label_names)
    config = dataclasses.replace(run.config, buckets=(6,), batch_size=4)
    return dataclasses.replace(run, data={**run.data, "train": train}, config=config)


def test_runs_of_several_padded_lengths_do_not_depend_on_each_other(
    tiny_trunk: Trunk, planned: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    [one] = digests(train_many(tiny_trunk, [of_two_lengths(planned(1, folder="one"))], slots=SLOTS))
    sizes = group_sizes(monkeypatch)
    outcomes = train_many(tiny_trunk, [of_two_lengths(planned(seed)) for seed in range(4)], slots=SLOTS)
    # In some rounds, runs wait because their next batch has another length.
    assert {2, 3} <= set(sizes)
    assert digests(outcomes)[1] == one


def test_failed_runs_do_not_change_the_parameters_of_other_runs(
    tiny_trunk: Trunk, planned: Plan, tmp_path: Path
) -> None:
    expected = digests(train_many(tiny_trunk, [planned(seed, folder="expected") for seed in (0, 1)], slots=SLOTS))
    no_rows = dataclasses.replace(planned(3), data={})
    runs = [planned(0), planned(2, learning_rate=1e38), no_rows, planned(1)]
    outcomes = train_many(tiny_trunk, runs, slots=SLOTS)
    assert digests([outcomes[0], outcomes[3]]) == expected
    assert isinstance(outcomes[1], UserError)
    assert isinstance(outcomes[2], UserError)
    assert list((tmp_path / "many" / "2").glob("not_finite_step_*/report.json"))
    # If the call is repeated, the failed run is not treated as finished.
    again = train_many(tiny_trunk, runs, slots=SLOTS)
    assert digests([again[0], again[3]]) == expected
    assert isinstance(again[1], UserError)


def test_next_run_starts_when_a_run_stops_early(tiny_trunk: Trunk, planned: Plan, tmp_path: Path) -> None:
    runs = [planned(seed, learning_rate=0.0, patience=1, eval_every=2) for seed in range(4)]
    models(train_many(tiny_trunk, runs, slots=SLOTS))
    for seed in range(4):
        assert scalars(tmp_path / "many" / str(seed))[-1]["step"] == 4


def test_runs_stopped_by_sigterm_resume_bit_identically(
    tiny_trunk: Trunk, planned: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uninterrupted_runs = [planned(seed, folder="uninterrupted") for seed in range(5)]
    uninterrupted = digests(train_many(tiny_trunk, uninterrupted_runs, slots=SLOTS))
    finished: list[int] = []

    def extra_metrics(run: SingleRun, batch: Batch) -> dict[str, float]:
        finished.append(1)
        if len(finished) == 3 * 4 + 2:
            os.kill(os.getpid(), signal.SIGTERM)
        return {}

    before = signal.getsignal(signal.SIGTERM)
    runs = [planned(seed) for seed in range(5)]
    with monkeypatch.context() as patched:
        patched.setattr(SingleRun, "extra_metrics", extra_metrics)
        with pytest.raises(PreemptionError):
            train_many(tiny_trunk, runs, slots=SLOTS)
    assert signal.getsignal(signal.SIGTERM) == before
    # The three active runs have saved checkpoints. The other two runs have not started.
    assert [(tmp_path / "many" / str(seed) / "checkpoints").exists() for seed in range(5)] == [True] * 3 + [False] * 2
    assert digests(train_many(tiny_trunk, runs, slots=SLOTS)) == uninterrupted
    # Finished runs are returned without training.
    assert digests(train_many(tiny_trunk, runs, slots=SLOTS)) == uninterrupted


def test_run_started_with_other_runs_resumes_in_a_separate_call(
    tiny_trunk: Trunk, planned: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = [planned(seed, adam_epsilon=1e-3) for seed in range(3)]

    def extra_metrics(run: SingleRun, batch: Batch) -> dict[str, float]:
        os.kill(os.getpid(), signal.SIGTERM)
        return {}

    with monkeypatch.context() as patched:
        patched.setattr(SingleRun, "extra_metrics", extra_metrics)
        with pytest.raises(PreemptionError):
            train_many(tiny_trunk, runs, slots=SLOTS)
    resumed = train_separately(tiny_trunk, runs[1], tmp_path / "many" / "1")
    assert_close(resumed, train_separately(tiny_trunk, runs[1], tmp_path / "separate"))


@pytest.mark.parametrize("method", [Method(partition="full"), Method(partition="top_k", top_k=1)])
def test_runs_that_train_layers_of_the_trunk_do_not_share_steps(
    tiny_trunk: Trunk, planned: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: Method
) -> None:
    sizes = group_sizes(monkeypatch)
    runs = [planned(seed, method=method, max_steps=3) for seed in range(2)]
    monkeypatch.setattr(stack, "jit_step_together", None)
    outcomes = train_many(tiny_trunk, runs, slots=SLOTS)
    assert sizes == [1] * 6
    separate = [train_separately(tiny_trunk, run, tmp_path / f"separate {run.workdir.name}") for run in runs]
    assert digests(outcomes) == digests(separate)


def test_runs_can_come_from_a_generator(tiny_trunk: Trunk, planned: Plan) -> None:
    assert len(models(train_many(tiny_trunk, (planned(seed) for seed in range(2))))) == 2


@pytest.mark.parametrize(
    ("make", "facts"),
    [
        (lambda run: run, ("quantity", "list", "PlannedRun")),
        (lambda run: None, ("None", "PlannedRun")),
        (lambda run: [run, "quantity"], ("'quantity'", "PlannedRun")),
        (lambda run: [run, dataclasses.replace(run, task="entail")], ("'entail'", "TaskConfig")),
    ],
    ids=["a run", "None", "a string", "a task's name"],
)
def test_runs_of_the_wrong_type_are_refused(
    tiny_trunk: Trunk, planned: Plan, tmp_path: Path, make: Any, facts: tuple[str, ...]
) -> None:
    with pytest.raises(UserError) as refused:
        train_many(tiny_trunk, make(planned(0)))
    assert has_facts(str(refused.value), *facts)
    assert not (tmp_path / "many").exists()


def test_sigterm_while_a_run_starts_stops_all_runs(
    tiny_trunk: Trunk, planned: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[int] = []
    init = SingleRun.__init__

    def signalled(self: SingleRun, *given: Any, **named: Any) -> None:
        init(self, *given, **named)
        started.append(1)
        if len(started) == 2:
            os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(SingleRun, "__init__", signalled)
    with pytest.raises(PreemptionError):
        train_many(tiny_trunk, [planned(seed) for seed in range(2)], slots=2)
    steps = [int(path.name) for seed in range(2) for path in (tmp_path / "many" / str(seed) / "checkpoints").iterdir()]
    assert len(steps) == 2
    assert max(steps) <= 2


def test_sigterm_before_any_run_trains_stops_the_call(
    tiny_trunk: Trunk, planned: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    def signalled(self: SingleRun, *given: Any, **named: Any) -> None:
        os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(SingleRun, "__init__", signalled)
    with pytest.raises(PreemptionError):
        train_many(tiny_trunk, [planned(0), planned(1)])


def test_interrupt_closes_all_runs(tiny_trunk: Trunk, planned: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    def extra_metrics(run: SingleRun, batch: Batch) -> dict[str, float]:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(SingleRun, "extra_metrics", extra_metrics)
        with pytest.raises(KeyboardInterrupt):
            train_many(tiny_trunk, [planned(seed) for seed in range(3)], slots=SLOTS)
    # The interrupted call has released the locks of the workdirs.
    models(train_many(tiny_trunk, [planned(seed) for seed in range(3)], slots=SLOTS))


def test_error_in_a_step_fails_only_the_runs_of_the_step(
    tiny_trunk: Trunk, planned: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*given: Any) -> Any:
        raise RuntimeError("out of memory")

    monkeypatch.setattr(stack, "jit_step_together", fails)
    outcomes = train_many(tiny_trunk, [planned(0), planned(1), planned(2, prng="rbg")], slots=SLOTS)
    assert [type(outcome) for outcome in outcomes] == [RuntimeError, RuntimeError, TaskModel]


def test_error_in_a_step_fails_all_runs_whose_states_it_has_lost(
    tiny_trunk: Trunk, planned: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    compute, waiting = stack.Stack.step, list[int]()

    def fails(self: stack.Stack, requests: Any) -> Any:
        done = compute(self, requests)
        # The batches have several padded lengths, so some runs wait while others take a step.
        waiting.append(sum(run is not None for run in self.runs) - len(requests))
        if waiting[-1]:
            assert self._arrays is not None
            for leaf in self._arrays[0]:
                leaf.delete()
            raise RuntimeError("out of memory")
        return done

    monkeypatch.setattr(stack.Stack, "step", fails)
    runs = [of_two_lengths(planned(seed)) for seed in range(3)]
    outcomes = train_many(tiny_trunk, [*runs, planned(3, prng="rbg")], slots=4)
    assert waiting[-1]
    assert [type(outcome) for outcome in outcomes] == [RuntimeError, RuntimeError, RuntimeError, TaskModel]


def test_step_that_does_not_compile_fails_only_the_runs_that_take_it(
    tiny_trunk: Trunk, planned: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    compute, taken = stack.Stack.step, list[int]()

    def fails(self: stack.Stack, requests: Any) -> Any:
        if sum(run is not None for run in self.runs) > len(requests) and not taken:
            taken.extend(range(len(requests)))
            raise RuntimeError("cannot be compiled")
        return compute(self, requests)

    monkeypatch.setattr(stack.Stack, "step", fails)
    outcomes = train_many(tiny_trunk, [of_two_lengths(planned(seed)) for seed in range(3)], slots=SLOTS)
    assert sum(isinstance(outcome, RuntimeError) for outcome in outcomes) == len(taken)
    assert any(isinstance(outcome, TaskModel) for outcome in outcomes)


@pytest.mark.parametrize("slots", [1, SLOTS])
def test_returned_errors_keep_no_arrays_in_memory(
    tiny_trunk: Trunk, planned: Plan, monkeypatch: pytest.MonkeyPatch, slots: int
) -> None:
    def fails(*given: Any) -> Any:
        raise RuntimeError("broken")

    def frames(error: BaseException) -> list[Any]:
        trace, found = error.__traceback__, []
        while trace is not None:
            found.append(trace.tb_frame)
            trace = trace.tb_next
        return found

    [not_finite] = train_many(tiny_trunk, [planned(0, learning_rate=1e30)], slots=slots)
    with monkeypatch.context() as patched:
        patched.setattr(stack, "_SlotMetrics", fails)
        patched.setattr(single_run, "run_step", fails)
        [broken_step] = train_many(tiny_trunk, [planned(1)], slots=slots)
    monkeypatch.setattr(together, "_step_together", fails)
    [broken] = train_many(tiny_trunk, [planned(1)], slots=slots)
    for outcome in (not_finite, broken_step, broken):
        assert isinstance(outcome, Exception)
        assert frames(outcome)
        assert all(not frame.f_locals for frame in frames(outcome))


def test_error_in_a_callback_stops_all_runs(tiny_trunk: Trunk, planned: Plan, tmp_path: Path) -> None:
    run, shared = planned(0), Shared()

    def requested(number: int, request: Any) -> None:
        if request.done == 2:
            raise BrokenPipeError

    options = dataclasses.replace(run.options, shared=shared)
    training = single_training(tiny_trunk, dataclasses.replace(run, options=options))
    with pytest.raises(BrokenPipeError):
        together.run_together([training], slots=1, shared=shared, requested=requested)
    # The run's workdir is no longer locked, so the run can be resumed.
    assert tree_digest(train_separately(tiny_trunk, run, Path(run.workdir)).params) == tree_digest(
        train_separately(tiny_trunk, run, tmp_path / "separate").params
    )


@pytest.mark.parametrize("num_runs", [1, SLOTS])
def test_error_suggests_fewer_slots_if_memory_runs_out(
    tiny_trunk: Trunk, planned: Plan, monkeypatch: pytest.MonkeyPatch, num_runs: int
) -> None:
    def full(*given: Any) -> Any:
        raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory\ndetails")

    monkeypatch.setattr(together, "_step_together", full)
    outcomes = train_many(tiny_trunk, [planned(seed) for seed in range(num_runs)], slots=SLOTS)
    assert len(outcomes) == num_runs
    for outcome in outcomes:
        assert isinstance(outcome, UserError)
        assert has_facts(str(outcome), "3 runs", "Out of memory", "fewer slots")


def test_each_run_trains_in_its_own_context(tiny_trunk: Trunk, planned: Plan, tmp_path: Path) -> None:
    shared, ended = Shared(), []
    runs = [planned(seed) for seed in range(3)]
    trainings = [
        single_training(
            tiny_trunk,
            dataclasses.replace(
                run, options=dataclasses.replace(run.options, shared=shared, name=f"run{run.options.seed}")
            ),
        )
        for run in runs
    ]

    @contextlib.contextmanager
    def within(number: int) -> Any:
        with (tmp_path / f"{number}.log").open("a") as log, contextlib.redirect_stderr(log):
            yield

    outcomes = together.run_together(
        trainings, slots=2, shared=shared, within=within, ended=lambda number, outcome: ended.append((number, outcome))
    )
    assert sorted(ended, key=lambda pair: pair[0]) == list(enumerate(outcomes))
    for number in range(3):
        lines = (tmp_path / f"{number}.log").read_text().splitlines()
        assert lines
        assert all(line.startswith(f"run{number}: ") for line in lines)


def test_next_training_is_created_when_a_slot_is_free() -> None:
    events = list[str]()

    def training(name: str) -> Training[str]:
        events.append(f"{name} starts")
        yield from ()
        return name

    def trainings() -> Iterator[Training[str]]:
        for name in ("a", "b"):
            events.append(f"{name} is created")
            yield training(name)

    outcomes = together.run_together(
        trainings(), slots=1, shared=Shared(), ended=lambda number, outcome: events.append(f"{outcome} ended")
    )
    assert outcomes == ["a", "b"]
    assert events == ["a is created", "a starts", "a ended", "b is created", "b starts", "b ended"]


def test_log_lines_of_runs_with_the_same_name_show_their_settings(
    tiny_trunk: Trunk, planned: Plan, capsys: pytest.CaptureFixture[str]
) -> None:
    train_many(tiny_trunk, [planned(0), planned(1, learning_rate=3e-3)], slots=2)
    lines = capsys.readouterr().err.splitlines()
    rate = planned.config.learning_rate
    for detail in (f"seed=0, train.learning_rate={rate}", "seed=1, train.learning_rate=0.003"):
        own = [line for line in lines if line.startswith(f"{planned.task.name} ({detail}): ")]
        assert any("dev accuracy" in line for line in own)
    assert not any(line.startswith(f"{planned.task.name}: ") for line in lines)


def test_log_lines_show_what_differs_between_runs(planned: Plan) -> None:
    other = dataclasses.replace(planned(2), options=RunOptions(name="other"))
    assert [run.options.detail for run in _with_details([planned(0), planned(1), other])] == ["seed=0", "seed=1", ""]
    # If the runs differ in many settings or in none, their workdirs are shown.
    methods = [Method(adapter=ADAPTER_PRESETS[name]) for name in ("houlsby", "lora")]
    many = [planned(0, folder=str(number), method=method) for number, method in enumerate(methods)]
    same = [planned(0, folder=folder) for folder in ("a", "b")]
    for runs in (many, same):
        assert [run.options.detail for run in _with_details(runs)] == [str(run.workdir) for run in runs]
    own = dataclasses.replace(planned(0), options=RunOptions(detail="the first"))
    assert _with_details([own, planned(1)])[0].options.detail == "the first"


@pytest.mark.parametrize("slots", [0, -1, True, 1.5])
def test_invalid_numbers_of_slots_are_refused(tiny_trunk: Trunk, planned: Plan, slots: Any) -> None:
    with pytest.raises(UserError, match=str(slots)):
        train_many(tiny_trunk, [planned(0)], slots=slots)


def test_runs_with_the_same_workdir_are_refused(tiny_trunk: Trunk, planned: Plan) -> None:
    with pytest.raises(UserError, match="many/3"):
        train_many(tiny_trunk, [planned(3), planned(4), planned(3)])


def test_shared_option_of_the_wrong_type_is_refused() -> None:
    shared: Any = {}
    with pytest.raises(UserError, match="shared"):
        RunOptions(shared=shared)
