"""Each field of a trunk's config.json is checked.

Sizes are compared with the weights before anything is allocated.
"""

import json
import shutil
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
import transformers
from facts import has_facts
from safetensors.numpy import load_file, save_file
from small_trunk import small_trunk

from afjax.errors import UserError
from afjax.trunk.config_file import config_values, trunk_config
from afjax.trunk.families import ENCODER_FAMILIES
from afjax.trunk.pretrained import load_trunk
from afjax.trunk.sizes import trunk_size


@pytest.fixture
def folder(tiny_trunk_folder: Path, tmp_path: Path) -> Path:
    return shutil.copytree(tiny_trunk_folder, tmp_path / "trunk")


def write(folder: Path, **changes: Any) -> None:
    values = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**values, **changes}))


def refusal(folder: Path) -> str:
    with pytest.raises(UserError) as raised:
        load_trunk(str(folder))
    message = str(raised.value)
    assert str(folder) in message
    return message


@pytest.mark.parametrize(
    "text", ["[]", "null", '"bert"', "3", "", "{", "[" * 100_000, '{"a":' * 100_000, '{"vocab_size": 1e999}', b"\xff"]
)
def test_config_that_is_not_an_object_is_refused(folder: Path, text: str | bytes) -> None:
    (folder / "config.json").write_bytes(text if isinstance(text, bytes) else text.encode())
    assert str(folder / "config.json") in refusal(folder)
    with pytest.raises(UserError, match=r"config\.json"):
        trunk_size(str(folder))


SIZES = (
    "vocab_size",
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "intermediate_size",
    "max_position_embeddings",
    "type_vocab_size",
)
DROPOUT_RATES = ("hidden_dropout_prob", "attention_probs_dropout_prob")


@pytest.mark.parametrize("field", SIZES)
@pytest.mark.parametrize("value", [0, -1, True, 2.0, "2", None, [], {}, 10**400])
def test_sizes_must_be_positive_integers(folder: Path, field: str, value: Any) -> None:
    write(folder, **{field: value})
    message = refusal(folder)
    assert has_facts(message, f"{field} is {json.dumps(value)[:20]}", "whole number", "from 1 to ")


@pytest.mark.parametrize("field", DROPOUT_RATES)
@pytest.mark.parametrize("value", [2, 1, -0.1, "0.1", None, True, [0.1]])
def test_dropout_probabilities_must_be_below_one(folder: Path, field: str, value: Any) -> None:
    write(folder, **{field: value})
    assert f"{field} is {json.dumps(value)}" in refusal(folder)


@pytest.mark.parametrize("value", [0, -1, "1e-12", None, False, 1e300, 10**400, []])
def test_epsilon_must_be_positive_and_finite(folder: Path, value: Any) -> None:
    write(folder, layer_norm_eps=value)
    assert f"layer_norm_eps is {json.dumps(value)[:20]}" in refusal(folder)


@pytest.mark.parametrize("value", ["NaN", "Infinity", "-Infinity"])
def test_nan_or_infinite_epsilon_is_refused(folder: Path, value: str) -> None:
    text = (folder / "config.json").read_text().replace("{", '{"layer_norm_eps": ' + value + ",", 1)
    (folder / "config.json").write_text(text)
    assert value.strip("-") in refusal(folder)


@pytest.mark.parametrize(
    ("field", "values"),
    {
        "pad_token_id": ["0", 0.0, True, []],
        "hidden_act": ["swish", ["gelu"], {}, None, 1],
        "model_type": ["gpt2", ["bert"], None, 1],
    }.items(),
)
def test_invalid_values_of_other_fields_are_refused(folder: Path, field: str, values: list[Any]) -> None:
    for value in values:
        write(folder, **{field: value})
        refusal(folder)


def test_unusual_but_valid_values_are_accepted(folder: Path) -> None:
    write(folder, layer_norm_eps=0.5, hidden_dropout_prob=0, pad_token_id=None, hidden_act="gelu_pytorch_tanh")
    config = load_trunk(str(folder)).config
    assert (config.layer_norm_epsilon, config.hidden_dropout, config.pad_id) == (0.5, 0, 0)
    assert config.activation == "gelu_tanh"
    assert trunk_config(config_values(config), where="config.json") == config


@pytest.mark.parametrize("value", [None, -1, 10**6, -(10**9), 2**70])
def test_padding_id_outside_the_vocabulary_is_replaced_by_0(folder: Path, value: int | None) -> None:
    before = load_trunk(str(folder))
    write(folder, pad_token_id=value)
    trunk = load_trunk(str(folder))
    assert trunk.config == before.config
    assert trunk.config.pad_id == 0


@pytest.mark.parametrize("family", ENCODER_FAMILIES)
def test_padding_id_must_be_valid_only_if_positions_depend_on_it(family: str) -> None:
    values = config_values(small_trunk(family))
    for value in (-1, 10**6):
        if family in ("roberta", "xlm-roberta", "camembert"):
            with pytest.raises(UserError, match=f"pad_token_id is {value}"):
                trunk_config({**values, "pad_token_id": value}, where="config.json")
        else:
            assert trunk_config({**values, "pad_token_id": value}, where="config.json").pad_id == 0
    # Null means the family's default, or 0 if the vocabulary does not have this default.
    default = ENCODER_FAMILIES[family].default_pad_id
    expected = default if default < values["vocab_size"] else 0
    assert trunk_config({**values, "pad_token_id": None}, where="config.json").pad_id == expected


@pytest.mark.parametrize("family", ENCODER_FAMILIES)
def test_defaults_equal_transformers(family: str) -> None:
    """Tests the fields that config.json may lack."""
    values = config_values(small_trunk(family))
    for ours, field in ENCODER_FAMILIES[family].config_names.items():
        shortened = {name: value for name, value in values.items() if name != field}
        if ours == "pad_id":
            shortened["vocab_size"] = 10**6
        try:
            config = trunk_config(shortened, where="config.json")
        except UserError:
            continue  # The field is required.
        if field in ("rotary_theta", "global_attn_every_n_layers", "global_rope_theta", "local_rope_theta"):
            continue  # These fields have different names in transformers 5 (see test_modernbert.py).
        default = getattr(transformers.AutoConfig.for_model(family), field)
        value = {"gelu_tanh": "gelu_new"}.get(config.activation, config.activation)
        if field == "max_relative_positions":
            assert (default, config.max_relative_positions) == (-1, config.max_positions)
        else:
            assert (value if ours == "activation" else getattr(config, ours)) == default, field


def test_default_epsilon_of_deberta_equals_transformers() -> None:
    values = config_values(small_trunk("deberta-v2"))
    del values["layer_norm_eps"]
    assert trunk_config(values, where="config.json").layer_norm_epsilon == 1e-7


@pytest.mark.parametrize("family", ["modernbert", "deberta-v2"])
def test_families_without_a_table_of_positions_ignore_position_embedding_type(family: str) -> None:
    values = config_values(small_trunk(family))
    changed = {**values, "position_embedding_type": "relative_key"}
    assert trunk_config(changed, where="config.json") == small_trunk(family)


@pytest.mark.parametrize("present", [False, True])
def test_missing_or_null_model_type_is_refused(folder: Path, present: bool) -> None:
    values = json.loads((folder / "config.json").read_text())
    del values["model_type"]
    (folder / "config.json").write_text(json.dumps({**values, **({"model_type": None} if present else {})}))
    message = refusal(folder)
    assert has_facts(message, "lacks model_type", *(f'"{family}"' for family in ENCODER_FAMILIES))
    assert "None" not in message


@pytest.mark.parametrize(
    ("family", "field", "value"),
    [
        ("bert", "position_embedding_type", "relative_key"),
        ("bert", "is_decoder", True),
        ("bert", "hidden_act", "swish"),
        ("mpnet", "relative_attention_num_buckets", 16),
        ("deberta-v2", "conv_kernel_size", 3),
        ("deberta-v2", "share_att_key", False),
        ("deberta-v2", "attention_head_size", 4),
        ("modernbert", "rope_scaling", {"rope_type": "yarn"}),
    ],
)
def test_errors_for_unsupported_settings_do_not_advise_changing_them(family: str, field: str, value: Any) -> None:
    """With a changed setting, the same weights would give wrong results."""
    values = {**config_values(small_trunk(family)), field: value}
    with pytest.raises(UserError) as raised:
        trunk_config(values, where="config.json")
    assert has_facts(str(raised.value), "config.json", "afjax")
    assert "correct" not in str(raised.value)
    assert "fetch" not in str(raised.value)


@pytest.mark.parametrize("field", [*SIZES, "model_type"])
def test_missing_field_is_refused(folder: Path, field: str) -> None:
    values = json.loads((folder / "config.json").read_text())
    del values[field]
    (folder / "config.json").write_text(json.dumps(values))
    assert refusal(folder)


@pytest.mark.parametrize("field", [field for field in SIZES if field != "num_attention_heads"])
@pytest.mark.parametrize("value", [1_000_000_000, 9984])
def test_sizes_that_contradict_the_weights_are_refused_before_allocation(folder: Path, field: str, value: int) -> None:
    write(folder, **{field: value})
    tracemalloc.start()
    try:
        message = refusal(folder)
        assert tracemalloc.get_traced_memory()[1] < 50e6
    finally:
        tracemalloc.stop()
    assert f"{field} is {value}" in message
    assert len(message) < 1000


def test_tensor_of_a_layer_with_a_huge_number_is_refused(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    tensors[f"encoder.layer.{'9' * 5000}.output.dense.bias"] = tensors["encoder.layer.0.output.dense.bias"]
    save_file(tensors, folder / "model.safetensors")
    assert "unknown" in refusal(folder)
