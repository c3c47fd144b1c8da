"""The table of task kinds has a complete entry for each kind."""

import typing

import jax.numpy as jnp
import numpy as np
import pytest

from afjax import tasks
from afjax.config.tasks import MAIN_METRICS, Metric, TaskKind
from afjax.tasks.kind import KindSpec
from afjax.tasks.kinds import TASK_KINDS, check_metric, fitting_metrics
from afjax.train.multitask_step import STEP_GROUPS

KINDS = typing.get_args(TaskKind)


def test_table_has_every_kind_and_every_module() -> None:
    assert tuple(TASK_KINDS) == KINDS
    modules = [module for module in vars(tasks).values() if isinstance(getattr(module, "KIND", None), KindSpec)]
    assert {module.KIND.name for module in modules} == set(KINDS)
    assert sorted(kind for group in STEP_GROUPS for kind in group) == sorted(KINDS)


@pytest.mark.parametrize("kind", KINDS)
def test_metrics_are_known_and_the_main_metric_is_supported(kind: TaskKind) -> None:
    assert set(TASK_KINDS[kind].metrics) <= set(typing.get_args(Metric))
    check_metric(MAIN_METRICS[kind], kind, 3)
    assert "f1" not in fitting_metrics("classification", 3)
    assert "f1" in fitting_metrics("classification", 2)


@pytest.mark.parametrize("group", STEP_GROUPS)
def test_kinds_in_a_step_group_read_the_same_model_outputs(group: tuple[TaskKind, ...]) -> None:
    specs = [TASK_KINDS[kind] for kind in group]
    assert len({(spec.reads, spec.label_shape(3, 5), spec.has_choices) for spec in specs}) == 1


def test_only_classification_and_regression_share_a_program() -> None:
    groups = [("classification", "regression"), ("multiple_choice",), ("span",), ("multi_label",), ("tagging",)]
    assert groups == STEP_GROUPS


@pytest.mark.parametrize("kind", KINDS)
def test_losses_have_one_value_per_row(kind: TaskKind) -> None:
    spec, rows, length = TASK_KINDS[kind], 3, 5
    outputs = 4 if spec.has_choices else spec.num_outputs(("a", "b"))
    shape = (rows, length, outputs) if spec.reads == "tokens" else (rows, outputs)
    labels = jnp.ones((rows, *spec.label_shape(outputs, length)), spec.label_dtype)
    batch = {"labels": labels, "mask": jnp.ones((rows, length), bool), "weights": jnp.ones(rows)}
    losses = spec.losses(jnp.zeros(shape), batch)
    expected = {"regression": 1.0, "span": np.log(length), "multi_label": np.log(2)}.get(kind, np.log(outputs))
    np.testing.assert_allclose(losses, np.full(rows, expected), rtol=1e-6)
