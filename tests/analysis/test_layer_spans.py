"""One program scores every span of removed adapter layers, and matches models without those adapters."""

import csv
import dataclasses
import functools
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from afjax.analysis import spans
from afjax.analysis.spans import SpanScores, draw_spans, layer_spans, score_spans
from afjax.config.adapters import Adapter, AdapterConfig, LhucConfig, LoraConfig, TopFfnConfig
from afjax.data.splits import AnyRows, Rows
from afjax.errors import UserError
from afjax.model.model import Model
from afjax.model.task_model import TaskModel
from afjax.tasks.load import rows_from_lists
from afjax.trees import Tree
from afjax.trunk.pretrained import Trunk
from tests.analysis.random_models import make

pytestmark = pytest.mark.slow

HOULSBY = AdapterConfig(size=4, position="both", pretrained_layer_norm="after", residual_from="sublayer")
HOULSBY_WITH_NORMS = dataclasses.replace(HOULSBY, layer_norms=True)


@pytest.fixture(scope="module")
def rows() -> Rows:
    words = ("two", "three", "four", "five", "six", "seven")
    texts = [f"{many} of the {number}" for number in words for many in ("all", "some")]
    return rows_from_lists(texts, ["many", "few"] * 6, label_names=("few", "many"))


@pytest.mark.parametrize(
    ("config", "fused", "scan"),
    [
        (HOULSBY_WITH_NORMS, False, False),
        (AdapterConfig(size=4), True, True),
        (AdapterConfig(size=4, layers=(1,)), False, True),
        (LhucConfig(), False, False),
        (LoraConfig(target_modules=("value", "output")), False, False),
    ],
    ids=("houlsby", "fusion", "one layer", "lhuc", "lora"),
)
def test_masking_a_layer_equals_removing_its_adapters(
    tiny_trunk: Trunk, rows: Rows, config: Adapter, fused: bool, scan: bool
) -> None:
    whole = make(tiny_trunk, config, names=("a", "b") if fused else ("a",), fused=fused)
    whole = dataclasses.replace(whole, model=dataclasses.replace(whole.model, scan_layers=scan))
    plain = dataclasses.replace(whole, model=dataclasses.replace(whole.model, adapters=(), fusion_name=""))
    # Masks can be in any order and can be repeated.
    masks = np.array([[True, False], [True, True], [False, False], [True, False], [False, True]])
    found = under_masks(whole, rows, masks)
    for number, mask in enumerate(masks):
        left = [layer for layer in (0, 1) if mask[layer] and layer in (config.layers or (0, 1))]
        drop = [layer for layer in (config.layers or (0, 1)) if layer not in left]
        expected = (whole.without_layers(drop) if drop else whole) if left else plain
        if not left and isinstance(config, AdapterConfig) and config.layer_norms:
            continue  # The model keeps its trained LayerNorms, so it does not match the plain trunk.
        np.testing.assert_allclose(found[:, number], expected.logits(whole.tokenized(rows)), atol=1e-5)
    assert np.abs(found[:, 1] - found[:, 4]).max() > 1e-3 or config.layers == (1,)


def test_masks_for_multiple_choice_and_span_tasks(tiny_trunk: Trunk) -> None:
    choices = rows_from_lists(
        [("all of the two", ["few", "many"]), ("some", ["many", "few", "none"])], [1, 0], kind="multiple_choice"
    )
    spans = rows_from_lists([("how many", "all of the two"), ("what", "some of the three")], kind="span")
    masks = np.array([[True, True], [True, False]])
    for kind, rows in (("multiple_choice", choices), ("span", spans)):
        whole = make(tiny_trunk, AdapterConfig(size=4), kind=kind)
        found, data = under_masks(whole, rows, masks), whole.tokenized(rows)
        np.testing.assert_allclose(found[:, 0], whole.logits(data), atol=1e-5)
        np.testing.assert_allclose(found[:, 1], whole.without_layers([1]).logits(data), atol=1e-5)


def under_masks(whole: TaskModel, rows: AnyRows, masks: np.ndarray) -> np.ndarray:
    @functools.partial(jax.jit, static_argnums=0)
    def step(model: Model, params: Tree, batch: Any) -> jax.Array:
        return model.under_masks(params, batch, masks)

    return np.asarray(whole.over_rows(step, whole.tokenized(rows)))


def test_common_layers_of_masks_are_computed_once(tiny_trunk: Trunk) -> None:
    """Counts evaluated layers by XLA's FLOPs: 3 spans of 2 layers and the empty span need 6 layers instead of 8."""
    model, params = make(tiny_trunk, HOULSBY).for_inference()
    batch = {name: np.ones((2, 16), np.int32) for name in ("tokens", "types")} | {"mask": np.ones((2, 16), bool)}

    def flops(*masks: tuple[bool, bool]) -> float:
        step = jax.jit(lambda params, batch: model.under_masks(params, batch, np.array(masks)))
        analysis: Any = step.lower(params, batch).cost_analysis()
        return float(analysis["flops"])

    both, first, last, none = (True, True), (False, True), (True, False), (False, False)
    one_last_layer = flops(both, last) - flops(both)
    one_first_layer = flops(both, first) - flops(both) - one_last_layer
    assert one_first_layer > 0.5 * one_last_layer > 0
    shared = flops(both, first, last, none)
    assert shared == pytest.approx(flops(both) + one_first_layer + 3 * one_last_layer, rel=0.02)


def test_every_span_is_scored(tiny_trunk: Trunk, rows: Rows, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = make(tiny_trunk, HOULSBY)
    found = score_spans(whole, rows, batch_size=8)
    assert found.layers == (0, 1)
    assert list(found.without) == [(0, 0), (0, 1), (1, 1)]
    assert found.whole == pytest.approx(whole.evaluate(rows))
    for layer in (0, 1):
        assert found.without[layer, layer] == pytest.approx(whole.without_layers([layer]).evaluate(rows))
    plain = dataclasses.replace(whole, model=dataclasses.replace(whole.model, adapters=()))
    assert found.without[0, 1] == pytest.approx(plain.evaluate(rows))
    # Scores do not change if only one row fits into a step.
    monkeypatch.setattr(spans, "TOKENS_PER_STEP", 1)
    again = score_spans(whole, rows, batch_size=8).without
    assert all(again[span] == pytest.approx(of_span) for span, of_span in found.without.items())


def test_spans_cover_only_layers_with_adapters() -> None:
    assert layer_spans((1, 4)) == [(1, 1), (1, 4), (4, 4)]
    assert len(layer_spans(range(12))) == 78


def scores(whole: float) -> SpanScores:
    without = {span: {"accuracy": 0.1 * number} for number, span in enumerate(layer_spans(range(3)), start=1)}
    return SpanScores((0, 1, 2), {"accuracy": whole}, without)


def test_picture_and_its_numbers(tmp_path: Path) -> None:
    change = scores(0.5).relative_change("accuracy")
    np.testing.assert_allclose(change[0], [-0.8, -0.6, -0.4])
    assert np.isnan(change[1, 0])
    files = draw_spans(scores(0.5), "accuracy", tmp_path / "spans", title="a")
    lines = list(csv.DictReader(files[2].read_text().splitlines()))
    assert len(lines) == 1 + 6
    assert lines[0] == {"first_layer": "", "last_layer": "", "relative_change_accuracy": "0.0", "accuracy": "0.5"}
    assert [float(line["accuracy"]) for line in lines[1:]] == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.5, 0.6])
    assert "last layer" in files[1].read_text()


def test_bad_input_is_refused(tiny_trunk: Trunk, rows: Rows) -> None:
    with pytest.raises(UserError, match=r"kind top_ffn.*top.*encoder"):
        score_spans(make(tiny_trunk, TopFfnConfig(size=4)), rows)
    with pytest.raises(UserError, match=r"without adapters.*remove"):
        score_spans(make(tiny_trunk, HOULSBY, names=()), rows)
    with pytest.raises(UserError, match="have no labels"):
        score_spans(make(tiny_trunk, HOULSBY), rows_from_lists(["all of the two"]))
    with pytest.raises(UserError, match=r"accuracy of 0, .*undefined"):
        scores(0.0).relative_change("accuracy")
