"""Adapters of every span of layers, removed in one program, give what a model without them gives."""

import csv
import dataclasses
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from afjax.analysis.spans import SpanScores, draw_spans, layer_spans, score_spans
from afjax.architecture import Adapter, AdapterConfig, LhucConfig, TopFfnConfig
from afjax.data.rows import Rows, rows_from_lists
from afjax.errors import UserError
from afjax.trees import Tree
from afjax.trunk import Trunk
from tests.analysis.random_models import make

HOULSBY = AdapterConfig(size=4, position="both", pretrained_layer_norm="after", residual_from="sublayer")
HOULSBY_WITH_NORMS = dataclasses.replace(HOULSBY, layer_norms=True)


@pytest.fixture(scope="module")
def rows() -> Rows:
    words = ("two", "three", "four", "five", "six", "seven")
    texts = [f"{many} of the {number}" for number in words for many in ("all", "some")]
    return rows_from_lists(texts, ["many", "few"] * 6, label_names=("few", "many"))


@pytest.mark.parametrize(
    ("config", "fused", "scan"),
    [(HOULSBY_WITH_NORMS, False, False), (AdapterConfig(size=4), True, True), (LhucConfig(), False, False)],
    ids=("houlsby", "fusion", "lhuc"),
)
def test_a_masked_layer_is_one_without_adapters(
    tiny_trunk: Trunk, rows: Rows, config: Adapter, fused: bool, scan: bool
) -> None:
    whole = make(tiny_trunk, config, names=("a", "b") if fused else ("a",), fused=fused)
    whole = dataclasses.replace(whole, model=dataclasses.replace(whole.model, scan_layers=scan))
    data = whole.tokenised(rows)

    def masked(*mask: bool) -> np.ndarray:
        @jax.jit
        def step(params: Tree, batch: Any) -> jax.Array:
            return whole.for_inference()[0](params, batch, layer_mask=jax.numpy.array(mask)).logits

        return np.asarray(whole.over_rows(lambda _, params, batch: step(params, batch), data))

    np.testing.assert_allclose(masked(True, True), whole.logits(data), atol=1e-6)
    np.testing.assert_allclose(masked(False, True), whole.without_layers([0]).logits(data), atol=1e-6)
    assert np.abs(masked(False, True) - whole.logits(data)).max() > 1e-3


def test_no_mask_is_no_operation(tiny_trunk: Trunk) -> None:
    whole = make(tiny_trunk, AdapterConfig(size=4))
    model, params = whole.for_inference()
    batch = {name: np.ones((2, 4), np.int32) for name in ("tokens", "types")} | {"mask": np.ones((2, 4), bool)}

    def text(**mask: Any) -> str:
        return jax.jit(lambda params, batch: model(params, batch, **mask).logits).lower(params, batch).as_text()

    assert text() == text(layer_mask=None)
    # A choice for each of the two slots that hold something.
    selects = text(layer_mask=jax.numpy.ones(2, bool)).count("stablehlo.select")
    assert selects >= text().count("stablehlo.select") + 2


def test_every_span_is_scored(tiny_trunk: Trunk, rows: Rows) -> None:
    whole = make(tiny_trunk, HOULSBY)
    found = score_spans(whole, rows, batch_size=8)
    assert found.layers == (0, 1)
    assert list(found.without) == [(0, 0), (0, 1), (1, 1)]
    assert found.whole == pytest.approx(whole.evaluate(rows))
    for layer in (0, 1):
        assert found.without[layer, layer] == pytest.approx(whole.without_layers([layer]).evaluate(rows))
    plain = dataclasses.replace(whole, model=dataclasses.replace(whole.model, adapters=()))
    assert found.without[0, 1] == pytest.approx(plain.evaluate(rows))
    # Over several steps, the last one filled up.
    assert score_spans(whole, rows, batch_size=8, masks_a_step=3) == found


def test_spans_are_of_the_layers_that_have_adapters() -> None:
    assert layer_spans((1, 4)) == [(1, 1), (1, 4), (4, 4)]
    assert len(layer_spans(range(12))) == 78


def scores(whole: float) -> SpanScores:
    without = {span: {"accuracy": 0.1 * number} for number, span in enumerate(layer_spans(range(3)), start=1)}
    return SpanScores((0, 1, 2), {"accuracy": whole}, without)


def test_the_picture_and_its_numbers(tmp_path: Path) -> None:
    change = scores(0.5).relative_change("accuracy")
    np.testing.assert_allclose(change[0], [-0.8, -0.6, -0.4])
    assert np.isnan(change[1, 0])
    files = draw_spans(scores(0.5), "accuracy", tmp_path / "spans", title="a")
    lines = list(csv.DictReader(files[2].read_text().splitlines()))
    assert len(lines) == 1 + 6
    assert lines[0] == {"first_layer": "", "last_layer": "", "relative_change_accuracy": "0.0", "accuracy": "0.5"}
    assert [float(line["accuracy"]) for line in lines[1:]] == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.5, 0.6])
    assert "last layer without adapters" in files[1].read_text()


def test_bad_input(tiny_trunk: Trunk, rows: Rows) -> None:
    with pytest.raises(UserError, match="sits on top of the encoder"):
        score_spans(make(tiny_trunk, TopFfnConfig(size=4)), rows)
    with pytest.raises(UserError, match="is used without adapters"):
        score_spans(make(tiny_trunk, HOULSBY, names=()), rows)
    with pytest.raises(UserError, match="have no labels"):
        score_spans(make(tiny_trunk, HOULSBY), rows_from_lists(["all of the two"]))
    with pytest.raises(UserError, match="to which no change is relative"):
        scores(0.0).relative_change("accuracy")
