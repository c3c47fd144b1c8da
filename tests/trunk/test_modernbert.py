"""ModernBERT's config.json, weights, pooling and tokenizer are read.

Optional tensors can be missing.
"""

import dataclasses
import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import transformers
from facts import has_facts
from safetensors.numpy import load_file, save_file
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from afjax.errors import UserError
from afjax.store import trunk_difference
from afjax.trees import flatten
from afjax.trunk.config import TrunkConfig
from afjax.trunk.config_file import config_values, saved_values, trunk_config
from afjax.trunk.encoder import encode, init_trunk
from afjax.trunk.hugging_face import to_hugging_face
from afjax.trunk.pretrained import find_pooling, load_trunk, save_trunk
from afjax.trunk.sizes import SIZES, size_pooling
from tests.small_trunk import small_trunk

pytestmark = pytest.mark.slow

SMALL = small_trunk("modernbert", num_layers=4)
VALUES = config_values(SMALL)


def read(**changes: Any) -> TrunkConfig:
    return trunk_config({**VALUES, **changes}, where="config.json")


def refusal(**changes: Any) -> str:
    with pytest.raises(UserError) as raised:
        read(**changes)
    return str(raised.value)


def layer_types(text: str) -> list[str]:
    return [{"f": "full_attention", "s": "sliding_attention"}[letter] for letter in text]


# Tests of config.json.


def test_modernbert_base_equals_the_defaults_of_transformers() -> None:
    values = json.loads(transformers.ModernBertConfig().to_json_string(use_diff=False))
    assert trunk_config(values, where="config.json") == SIZES["modernbert-base"]
    # Published encoders have the fields of transformers 4, so the fields of transformers 5 can be missing.
    minimal = {"model_type": "modernbert", **{name: values[name] for name in ("vocab_size", "hidden_size")}}
    minimal |= {"num_hidden_layers": 22, "num_attention_heads": 12, "intermediate_size": 1152}
    assert trunk_config({**minimal, "max_position_embeddings": 8192}, where="") == SIZES["modernbert-base"]


def test_fields_of_transformers_4_and_5_give_the_same_config() -> None:
    old = read(global_rope_theta=500.0, local_rope_theta=20.0)
    new_values = {name: value for name, value in VALUES.items() if "rope_theta" not in name and "every" not in name}
    rotary = {
        "full_attention": {"rope_theta": 500.0, "rope_type": "default"},
        "sliding_attention": {"rope_theta": 20.0},
    }
    new = {**new_values, "layer_types": layer_types("fsfs"), "rope_parameters": rotary}
    read_new = trunk_config(new, where="config.json")
    assert read_new == old
    assert not any(trunk_difference({"architecture": config_values(old)}, {"architecture": config_values(read_new)}))
    # A trunk with these values is saved with a changed config.
    changed = dataclasses.replace(old, rotary_theta=700.0, global_every=4, hidden_dropout=0.3)
    saved = saved_values({**new, "classifier_pooling": "mean"}, changed, is_changed=True)
    assert trunk_config(saved, where="config.json") == changed
    assert saved["classifier_pooling"] == "mean"


@pytest.mark.parametrize(("types", "every"), [("fsfs", 2), ("ffff", 1), ("fssf", 3), ("fsss", 4)])
def test_layer_types_are_read(types: str, every: int) -> None:
    assert read(layer_types=layer_types(types)).global_every == every


def test_sliding_window_replaces_local_attention() -> None:
    assert read(sliding_window=8, local_attention=128).window == 16
    assert read(sliding_window=None, local_attention=128).window == 128
    for malformed in ({}, True, "8", 8.0):
        assert has_facts(refusal(sliding_window=malformed), "config.json", "sliding_window", repr(malformed))


@pytest.mark.parametrize("types", ["ssfs", "ffss", "fsf", "fsfsf", ""])
def test_irregular_layer_types_are_refused(types: str) -> None:
    assert has_facts(refusal(layer_types=layer_types(types)), "config.json", "layer_types", "4 layers")


@pytest.mark.parametrize("types", ["full_attention", {"0": "full_attention"}, [1, 2, 3, 4], [[], {}, None, 3.0], True])
def test_malformed_layer_types_are_refused(types: Any) -> None:
    assert has_facts(refusal(layer_types=types), "config.json", "layer_types")


def test_null_local_rope_theta_is_replaced_by_global_rope_theta() -> None:
    assert read(local_rope_theta=None, global_rope_theta=300.0).local_rotary_theta == 300.0
    assert read(local_rope_theta=None).local_rotary_theta == 160_000.0


@pytest.mark.parametrize(
    ("changes", "facts"),
    [
        ({"rope_scaling": {"rope_type": "yarn"}}, ["rope_scaling", "yarn", "null"]),
        ({"rope_parameters": {"full_attention": {"rope_type": "linear"}}}, ["rope_parameters", "linear", "default"]),
        ({"rope_parameters": {"sliding_attention": {"rope_type": ["x"]}}}, ["rope_parameters", "sliding_attention"]),
        ({"rope_parameters": {"full_attention": {"type": "linear", "factor": 2}}}, ["rope_parameters", "linear"]),
        ({"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e6}}, ["rope_parameters", "full_attention"]),
        ({"rope_parameters": [1]}, ["rope_parameters"]),
        ({"rope_parameters": {"full_attention": 3}}, ["rope_parameters"]),
        ({"rope_parameters": {"full_attention": {"rope_theta": "x"}}}, ["global_rope_theta", '"x"']),
        ({"global_rope_theta": 0}, ["global_rope_theta", "0"]),
        ({"local_rope_theta": float("inf")}, ["local_rope_theta"]),
        ({"local_attention": -1}, ["local_attention", "-1"]),
        ({"local_attention": None}, ["local_attention", "null"]),
        ({"global_attn_every_n_layers": 0}, ["global_attn_every_n_layers", "0"]),
        ({"attention_bias": "yes"}, ["attention_bias", '"yes"', "true or false"]),
        ({"mlp_bias": 1}, ["mlp_bias", "1", "true or false"]),
        ({"norm_bias": None}, ["norm_bias", "null", "true or false"]),
        ({"embedding_dropout": 1.0}, ["embedding_dropout", "1.0"]),
        ({"hidden_activation": "silu"}, ["silu", "gelu"]),
        ({"norm_eps": 0.0}, ["norm_eps"]),
        ({"num_attention_heads": 4}, ["12", "4 heads", "size 3", "even"]),
    ],
)
def test_errors_name_unsupported_values(changes: dict[str, Any], facts: list[str]) -> None:
    assert has_facts(refusal(**changes), "config.json", *facts)


def test_dropout_rates_are_not_part_of_the_architectures_identity() -> None:
    rates = {"mlp_dropout": 0.1, "attention_dropout": 0.2, "embedding_dropout": 0.3}
    recorded, in_use = ({"architecture": config_values(config)} for config in (SMALL, read(**rates)))
    assert not trunk_difference(recorded, in_use).differences
    in_use = {"architecture": config_values(read(local_attention=7, norm_bias=True))}
    assert len(trunk_difference(recorded, in_use).differences) == 2


# Tests of weights.


def write_trunk(folder: Path, config: TrunkConfig = SMALL, **changes: Any) -> Path:
    params = jax.jit(init_trunk, static_argnums=1)(jax.random.key(0), config)
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps({**config_values(config), **changes}))
    save_file(to_hugging_face(params, config.encoder_family), folder / "model.safetensors")
    return folder


def test_first_layer_has_no_attention_norm(tmp_path: Path) -> None:
    folder = write_trunk(tmp_path)
    tensors = load_file(folder / "model.safetensors")
    assert {name for name in tensors if "attn_norm" in name} == {f"layers.{n}.attn_norm.weight" for n in (1, 2, 3)}
    norm = load_trunk(str(folder)).params["layers"]["attention"]["norm"]["scale"]
    np.testing.assert_array_equal(norm[0], 1.0)
    save_file({**tensors, "layers.0.attn_norm.weight": np.ones(12, np.float32)}, folder / "model.safetensors")
    with pytest.raises(UserError, match=r"\+ layers\.0\.attn_norm\.weight"):
        load_trunk(str(folder))


def test_training_the_missing_norm_does_not_change_the_digest_of_the_saved_trunk(tmp_path: Path) -> None:
    """Plain AdamW decays the entry of the missing norm, although it has no effect."""
    trunk = load_trunk(str(write_trunk(tmp_path / "trunk")))
    decayed = trunk.with_params(jax.tree.map(lambda leaf: 0.5 * leaf, trunk.params))
    (tmp_path / "saved").mkdir()
    (tmp_path / "trunk" / "tokenizer.json").write_text("{}")
    save_trunk(tmp_path / "saved", decayed)
    assert load_trunk(str(tmp_path / "saved")).sha256 == decayed.sha256
    assert decayed.params["layers"]["attention"]["norm"]["scale"][1, 0] == 0.5


@pytest.mark.parametrize(
    ("field", "names"),
    [
        ("attention_bias", ["attn.Wo.bias", "attn.Wqkv.bias"]),
        ("mlp_bias", ["mlp.Wi.bias", "mlp.Wo.bias"]),
        ("norm_bias", ["attn_norm.bias", "mlp_norm.bias"]),
    ],
)
def test_biases_that_contradict_the_config_are_refused(field: str, names: list[str], tmp_path: Path) -> None:
    config = read(**{field: True})
    biases = {path for path in flatten(init_trunk(jax.random.key(0), config)) if path.endswith("bias")}
    assert len(biases) == {"attention_bias": 4, "mlp_bias": 2, "norm_bias": 4}[field]
    assert not any(path.endswith("bias") for path in flatten(init_trunk(jax.random.key(0), SMALL)))
    with pytest.raises(UserError) as raised:
        load_trunk(str(write_trunk(tmp_path / "without", **{field: True})))
    assert has_facts(str(raised.value), *(f"- layers.1.{name}" for name in names))
    with pytest.raises(UserError) as raised:
        load_trunk(str(write_trunk(tmp_path / "with", config, **{field: False})))
    assert has_facts(str(raised.value), *(f"+ layers.1.{name}" for name in names))


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("layers.1.attn.Wqkv.weight", (35, 12)),
        ("layers.1.attn.Wqkv.weight", (24, 12)),
        ("layers.1.attn.Wqkv.weight", ()),
        ("layers.2.mlp.Wi.weight", (16, 12)),
        ("layers.0.mlp.Wo.weight", (12, 17)),
        ("final_norm.weight", (11,)),
        ("embeddings.tok_embeddings.weight", (31, 12)),
    ],
)
def test_tensors_with_wrong_shapes_are_refused(name: str, shape: tuple[int, ...], tmp_path: Path) -> None:
    folder = write_trunk(tmp_path)
    tensors = load_file(folder / "model.safetensors")
    assert name in tensors
    save_file({**tensors, name: np.ones(shape, np.float32)}, folder / "model.safetensors")
    with pytest.raises(UserError) as raised:
        load_trunk(str(folder))
    assert has_facts(str(raised.value), str(folder), "shapes")


# Tests of positions.


def test_local_attention_ignores_tokens_outside_the_window() -> None:
    # Only the second layer has local attention. The first layer has no effect, because its matrices are zero.
    config = dataclasses.replace(SMALL, num_layers=2, window=5)
    params = jax.jit(init_trunk, static_argnums=1)(jax.random.key(0), dataclasses.replace(config, init_scale=0.3))
    params["layers"] = jax.tree.map(lambda leaf: leaf.at[0].set(0.0), params["layers"])
    tokens = jnp.arange(2, 12)[None]
    batch = {"tokens": tokens, "types": 0 * tokens, "mask": tokens > 0}
    hidden, _ = encode(params, config, batch)
    changed, _ = encode(params, config, {**batch, "tokens": tokens.at[0, 4].set(25)})
    assert [bool(different) for different in np.abs(changed - hidden)[0].max(-1) > 1e-6] == [
        abs(token - 4) <= 2 for token in range(10)
    ]


def test_maximum_length_is_the_number_of_positions() -> None:
    assert SIZES["modernbert-base"].max_length == 8192


# Tests of dropout.


@pytest.mark.parametrize("field", ["embedding_dropout", "hidden_dropout", "attention_dropout"])
def test_dropout_rates_only_affect_training(field: str) -> None:
    config = dataclasses.replace(SMALL, init_scale=0.3)
    params = jax.jit(init_trunk, static_argnums=1)(jax.random.key(0), config)
    tokens = jnp.arange(2, 12)[None]
    batch = {"tokens": tokens, "types": 0 * tokens, "mask": tokens > 0}
    expected, _ = encode(params, config, batch)
    np.testing.assert_array_equal(encode(params, config, batch, key=jax.random.key(1))[0], expected)
    with_rate = dataclasses.replace(config, **{field: 0.5})
    np.testing.assert_array_equal(encode(params, with_rate, batch)[0], expected)
    assert np.abs(encode(params, with_rate, batch, key=jax.random.key(1))[0] - expected).max() > 0.1


# Tests of pooling.


@pytest.mark.parametrize(("value", "pooling"), [("cls", "first"), ("mean", "mean"), (None, "first")])
def test_default_pooling_is_classifier_pooling(value: str | None, pooling: str, tmp_path: Path) -> None:
    folder = write_trunk(tmp_path, **({} if value is None else {"classifier_pooling": value}))
    assert load_trunk(str(folder)).pooling == find_pooling(str(folder)) == size_pooling(str(folder)) == pooling
    # Embeddings have mean pooling by default. sentence-transformers files set the pooling of embeddings and heads.
    assert load_trunk(str(folder)).embedding_config().pooling == "mean"
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text('{"pooling_mode_cls_token": true}')
    assert load_trunk(str(folder)).pooling == "first"


@pytest.mark.parametrize("value", ["max", 3, None, ["mean"]])
def test_unknown_classifier_pooling_is_refused(value: Any, tmp_path: Path) -> None:
    folder = write_trunk(tmp_path, classifier_pooling=value)
    with pytest.raises(UserError) as raised:
        find_pooling(str(folder))
    assert has_facts(str(raised.value), str(folder), "classifier_pooling", repr(value), "cls", "mean")


def test_named_sizes_have_mean_pooling() -> None:
    assert size_pooling("modernbert-base") == size_pooling("modernbert-large") == "mean"


# Tests of the tokenizer.


def test_published_tokenizer_is_read(tmp_path: Path) -> None:
    """The tokenizer has byte-level pieces, BERT's special tokens, and no token types."""
    special = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    ids = {piece: number for number, piece in enumerate((*special, *alphabet))}
    tokenizer = Tokenizer(models.BPE(ids, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B [SEP]",
        special_tokens=[(name, ids[name]) for name in ("[CLS]", "[SEP]")],
    )
    tokenizer.add_special_tokens(list(special))
    folder = write_trunk(tmp_path, dataclasses.replace(SMALL, vocab_size=len(ids), pad_id=0, max_positions=32))
    tokenizer.save(str(folder / "tokenizer.json"))
    names = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    inputs = {"tokenizer_class": "PreTrainedTokenizerFast", "model_input_names": ["input_ids", "attention_mask"]}
    (folder / "tokenizer_config.json").write_text(json.dumps({**names, **inputs}))
    trunk = load_trunk(str(folder))
    encoded = trunk.tokenizer()("ab", "c")
    assert encoded["input_ids"] == [2, ids["a"], ids["b"], 3, ids["c"], 3]
    assert trunk.identity()["tokenizer"] is not None
    assert trunk.embed(["ab", "a longer text, with é"], pooling="first").shape == (2, 12)
