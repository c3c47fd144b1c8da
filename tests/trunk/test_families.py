"""The table of encoder families has a complete entry for each family."""

import dataclasses
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

from afjax.errors import UserError
from afjax.trunk.config import TrunkConfig
from afjax.trunk.families import ENCODER_FAMILIES

TOKENS = jnp.array([[5, 6, 7, 8], [5, 6, 1, 1]])
TABLE = jnp.tile(jnp.arange(10.0)[:, None], (1, 3))


@pytest.mark.parametrize("name", ENCODER_FAMILIES)
def test_every_family_is_complete(name: str) -> None:
    family = ENCODER_FAMILIES[name]
    assert family.name == name
    fields = {*family.config_names, *family.constants, *family.defaults}
    assert fields <= {field.name for field in dataclasses.fields(TrunkConfig)}
    assert family.default_pad_id >= 0
    if family.position_embeddings is None:
        assert not any(weight.paths == ("embeddings/position",) for weight in family.weight_names.embeddings.values())
        return
    embeddings = family.position_embeddings(TABLE, TOKENS, 1)
    assert embeddings.shape == (2, 4, 3)
    # The first token of each row has the position first_position(pad_id).
    np.testing.assert_array_equal(embeddings[:, 0], TABLE[jnp.full(2, family.first_position(1))])


def test_bert_positions_count_all_tokens_and_robertas_skip_padding() -> None:
    bert, roberta = (
        ENCODER_FAMILIES[name].position_embeddings(TABLE, TOKENS, 1)[..., 0] for name in ("bert", "roberta")
    )
    assert bert.tolist() == [[0, 1, 2, 3], [0, 1, 2, 3]]
    assert roberta.tolist() == [[2, 3, 4, 5], [2, 3, 1, 1]]


def test_documentation_lists_every_family() -> None:
    page = (Path(__file__).parents[2] / "docs" / "how_to" / "encoders.md").read_text(encoding="utf-8")
    families, parity = (section.partition("|---|")[2].splitlines() for section in page.split("## Agreement"))
    for lines, quote in ((families, "`"), (parity, "")):
        listed = [line.split("|")[1].strip() for line in lines[1:] if line.startswith("| ")]
        assert listed == [f"{quote}{name}{quote}" for name in ENCODER_FAMILIES]


def test_xlm_roberta_and_camembert_differ_from_roberta_only_in_their_names() -> None:
    for name in ("xlm-roberta", "camembert"):
        assert dataclasses.replace(ENCODER_FAMILIES[name], name="roberta") == ENCODER_FAMILIES["roberta"]


def test_unknown_family_is_refused() -> None:
    sizes = {"vocab_size": 50, "hidden_size": 16, "num_layers": 1, "num_heads": 2, "intermediate_size": 16}
    with pytest.raises(UserError, match=r'"robeta".*bert, roberta, .*"roberta"'):
        TrunkConfig(family="robeta", max_positions=20, type_vocab_size=2, **sizes)
