"""Mean fusion activations match a slow row-by-row computation. Missing adapters leave gaps in figures."""

import csv
import dataclasses
import re
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from facts import has_facts

from afjax.analysis import activation_figures
from afjax.analysis.activation_figures import draw_activations, draw_token_activations
from afjax.analysis.activations import ALL, Activations, TokenActivations, mean_activations, token_activations
from afjax.config.adapters import AdapterConfig
from afjax.data.splits import Rows
from afjax.errors import UserError
from afjax.model.task_model import TaskModel
from afjax.tasks.load import rows_from_lists
from afjax.trunk.pretrained import Trunk
from tests.analysis.random_models import make

pytestmark = pytest.mark.slow

CONFIG = AdapterConfig(size=4)
NAMES = ("a", "b", "c")


@pytest.fixture(scope="module")
def fused(tiny_trunk: Trunk) -> TaskModel:
    return make(tiny_trunk, CONFIG, names=NAMES, fused=True)


@pytest.fixture(scope="module")
def rows() -> Rows:
    # The rows have two lengths, and one label is more frequent than the other.
    texts = ["all", "some of the two", "all of the three", "some", "six"]
    return rows_from_lists(texts, ["many", "few", "many", "few", "many"], label_names=("few", "many"))


def row_by_row(model: TaskModel, rows: Rows) -> np.ndarray:
    """Computes mean activations ``[rows, layers, adapters]`` in float64, one row at a time."""
    architecture, params = model.model, jax.tree.map(jnp.asarray, {"trunk": model.trunk.params, **model.params})
    data, found = model.tokenized(rows), []
    run = jax.jit(lambda batch: architecture(params, batch, fusion_attention=True).fusion_attention["ffn"])
    for begin, end in zip(data.offsets[:-1], data.offsets[1:], strict=True):
        tokens, types = (np.asarray(part[begin:end], np.int32)[None] for part in (data.tokens, data.types))
        batch: Any = {"tokens": tokens, "types": types, "mask": np.ones(tokens.shape, bool)}
        found.append(np.asarray(run(batch), np.float64)[:, 0].mean(1))
    return np.stack(found)


def test_tokens_may_be_dollar_signs(tmp_path: Path) -> None:
    weights = {"ffn": np.full((1, 3, 1), 1.0)}
    found = TokenActivations("fused", (r"$\oops$",), ("$", r"^\x$", "$"), 3, weights)
    assert r">$\oops$<" in draw_token_activations(found, tmp_path / "tokens")[1].read_text()


def test_means_equal_a_slow_computation(fused: TaskModel, rows: Rows) -> None:
    slow = row_by_row(fused, rows)
    found = mean_activations(fused, rows, by_label=True, batch_size=3)
    assert found.num_rows == {ALL: 5, "few": 2, "many": 3}
    labels = np.asarray(rows.labels)
    for group, members in ((ALL, labels >= 0), ("few", labels == 0), ("many", labels == 1)):
        np.testing.assert_allclose(found.means["ffn"][group], slow[members].mean(0), atol=1e-6)
    assert list(mean_activations(fused, rows).means["ffn"]) == [ALL]


def test_weights_per_token(fused: TaskModel) -> None:
    found = token_activations(fused, "all of", "the two")
    assert found.tokens == ("[CLS]", "all", "of", "[SEP]", "the", "two", "[SEP]")
    assert found.num_tokens == 7
    of_row = fused.predict([("all of", "the two")], fusion_attention=True).fusion_attention["ffn"][0]
    np.testing.assert_allclose(found.weights["ffn"].mean(1), of_row, atol=1e-6)


def test_truncated_text_reports_its_original_number_of_tokens(fused: TaskModel) -> None:
    for texts, whole in ((("all of the two " * 5,), 22), (("all of the two", "some six"), 9)):
        found = token_activations(fused, *texts)
        assert (len(found.tokens), found.num_tokens) == (8, whole)


def test_adapters_missing_from_a_layer_are_gaps(fused: TaskModel, rows: Rows) -> None:
    pruned = fused.with_kept((((0, 1), (0, 2)),))
    means = mean_activations(pruned, rows).means["ffn"][ALL]
    assert np.isnan(means).tolist() == [[False, False, True], [False, True, False]]
    np.testing.assert_allclose(np.nansum(means, -1), 1.0, atol=1e-6)
    means = mean_activations(fused.without_layers([0]), rows).means["ffn"][ALL]
    assert np.isnan(means).tolist() == [[True] * 3, [False] * 3]


def read(files: list[Path]) -> list[dict[str, str]]:
    assert [file.suffix for file in files] == [".png", ".svg", ".csv"]
    return list(csv.DictReader(files[2].read_text().splitlines()))


def activations(name: str, adapters: tuple[str, ...], *, first: float = 0.5) -> Activations:
    means = np.full((2, len(adapters)), 0.25)
    means[0, 0] = first
    return Activations(name, adapters, {ALL: 4}, {"ffn": {ALL: means}})


def test_pictures(tmp_path: Path, fused: TaskModel) -> None:
    one, other = activations("one", ("a", "b")), activations("other", ("b", "c"), first=np.nan)
    lines = read(draw_activations([one], tmp_path / "one"))
    assert [line["mean_activation"] for line in lines] == ["0.5", "0.25", "0.25", "0.25"]
    files = draw_activations([one, other], tmp_path / "both", layers=[1, 0])
    lines = read(files)
    assert len(lines) == 7  # There is no line for the gap.
    assert [line["layer"] for line in lines[:4]] == ["1", "1", "0", "0"]
    shown = files[1].read_text()
    assert all(f">{word}</text>" in shown for word in ("one", "other", "layer 0", "layer 1", "a", "c"))
    # The output path may be a string.
    lines = read(draw_token_activations(token_activations(fused, "all of"), f"{tmp_path}/tokens", layers=[1]))
    assert len(lines) == 4 * 3
    assert {line["layer"] for line in lines} == {"1"}


def test_panels_of_all_slots_have_the_same_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The panels share an axis, so a fusion that lacks a slot needs an empty row there."""
    drawn: list[Any] = []
    monkeypatch.setattr(activation_figures, "_draw", lambda panels, *_, **__: drawn.extend(panels) or [])
    one = activations("one", ("a", "b"))
    both = dataclasses.replace(one, fusion="both", means={"attention": one.means["ffn"], **one.means})
    draw_activations([one, both], tmp_path / "picture", layers=[0])
    assert [(panel.title, panel.rows) for panel in drawn] == [
        ("layer 0, ffn", ["one", "both"]),
        ("layer 0, attention", ["one", "both"]),
    ]
    assert np.isnan(drawn[1].amounts[0]).all()
    np.testing.assert_array_equal(drawn[1].amounts[1], drawn[0].amounts[1])


def test_figure_of_many_labels_leaves_them_to_the_csv_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(activation_figures, "_MAX_LINES_OF_MEANS", 45)
    one = activations("one", ("a", "b"))
    labels = {f"label {number}": 1 for number in range(9)}
    means = {slot: {**groups, **dict.fromkeys(labels, groups[ALL])} for slot, groups in one.means.items()}
    many = dataclasses.replace(one, num_rows={**one.num_rows, **labels}, means=means)
    files = draw_activations([many], tmp_path / "many")
    assert len(read(files)) == 10 * 2 * 2
    assert "label 7" not in files[1].read_text()
    assert has_facts(capsys.readouterr().err, "Note: ", "50 lines", "CSV", "--layers")
    # With one layer, there is space for all labels.
    shown = draw_activations([many], tmp_path / "one_layer", layers=[0])[1].read_text()
    assert ">label 7 (1)</text>" in shown


def of_tokens(count: int) -> TokenActivations:
    tokens = tuple(f"word{number}" for number in range(count))
    return TokenActivations("one", ("a", "b"), tokens, count, {"ffn": np.full((2, count, 2), 0.5)})


def test_long_texts_are_drawn_on_several_lines(tmp_path: Path) -> None:
    """Wraps a long text at the page width, and shows every token."""
    files = draw_token_activations(of_tokens(90), tmp_path / "long")
    assert len(read(files)) == 2 * 90 * 2
    shown = files[1].read_text()
    width = re.search(r'width="([0-9.]+)pt"', shown)
    assert width is not None
    assert float(width[1]) < 7.2 * 72
    assert all(shown.count(f">word{number}</text>") == 2 for number in range(90))
    assert all(shown.count(f">layer {layer}, tokens 60 to 89</text>") == 1 for layer in (0, 1))
    with pytest.raises(UserError, match=r"520 tokens.* 26 lines.* 24;.*--layers"):
        draw_token_activations(of_tokens(520), tmp_path / "longer")
    assert not list(tmp_path.glob("longer*"))


def test_bad_input_is_refused(tiny_trunk: Trunk, fused: TaskModel, rows: Rows, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"without a fusion.*activations"):
        mean_activations(make(tiny_trunk, CONFIG), rows)
    with pytest.raises(UserError, match=r"no layer 2;.*layers 0 to 1"):
        draw_activations([activations("one", ("a",))], tmp_path / "one", layers=[2])
    with pytest.raises(UserError, match=r"layer 1 .*twice"):
        draw_activations([activations("one", ("a",))], tmp_path / "one", layers=[1, 0, 1])
    gaps = Activations("one", ("a",), {ALL: 4}, {"ffn": {ALL: np.full((2, 1), np.nan)}})
    with pytest.raises(UserError, match="nothing to show"):
        draw_activations([gaps], tmp_path / "one")
    assert list(tmp_path.iterdir()) == []
