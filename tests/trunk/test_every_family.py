"""All forms of the computation give the same result for every encoder family.

Configs and weights can be written to files and read again.
"""

import dataclasses
import functools
import json
from pathlib import Path
from typing import Any

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest
from facts import has_facts
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from afjax.errors import UserError
from afjax.model.model import trunk_layer_norms, with_layer_norms
from afjax.model.partition import split_layers
from afjax.store import trunk_difference
from afjax.trees import Tree, flatten, map_with_path, tree_digest
from afjax.trunk.config import TrunkConfig
from afjax.trunk.config_file import config_values, trunk_config
from afjax.trunk.encoder import EncoderOptions, cast_trunk, encode, init_trunk
from afjax.trunk.encoder_layer import EncoderLayer, shared_inputs
from afjax.trunk.families import ENCODER_FAMILIES
from afjax.trunk.hugging_face import to_hugging_face
from afjax.trunk.layer_masks import encode_under_masks
from afjax.trunk.layers import loop_layers, unstack_layers
from afjax.trunk.post_norm_layer import LayerKeys
from afjax.trunk.pretrained import Trunk, load_trunk, save_trunk
from afjax.trunk.slots import FilledSlots, LayerSlots, Sublayer
from tests.small_trunk import distinct_families, families_with_distinct_layers, small_trunk

pytestmark = pytest.mark.slow

FAMILIES, DISTINCT = tuple(ENCODER_FAMILIES), distinct_families()
DISTINCT_LAYERS = families_with_distinct_layers()


def make_trunk(family: str) -> tuple[TrunkConfig, Tree]:
    """Makes a random trunk in which every leaf, including biases, affects the outputs."""
    config = small_trunk(family, init_scale=0.3)
    params = jax.jit(init_trunk, static_argnums=1)(jax.random.key(0), config)
    return config, map_with_path(lambda path, leaf: leaf + 0.1 if path.endswith("bias") else leaf, params)


def make_batch(config: TrunkConfig) -> dict[str, jax.Array]:
    """Makes rows of 7, 4 and 1 tokens."""
    mask = jnp.arange(7)[None] < jnp.array([[7], [4], [1]])
    tokens = jax.random.randint(jax.random.key(1), (3, 7), 2, config.vocab_size)
    types = jax.random.randint(jax.random.key(2), (3, 7), 0, max(1, config.type_vocab_size))
    return {"tokens": jnp.where(mask, tokens, config.pad_id), "types": types, "mask": mask}


@pytest.mark.parametrize("family", DISTINCT_LAYERS)
def test_every_form_of_the_layers_gives_the_same_result(family: str) -> None:
    config, trunk = make_trunk(family)
    batch, key = make_batch(config), jax.random.key(3)
    expected, _ = encode(trunk, config, batch, key=key)
    for form, scan in (
        (trunk, True),
        ({**trunk, "layers": unstack_layers(trunk["layers"])}, False),
        ({**trunk, "layers": loop_layers(trunk["layers"])}, True),
        (split_layers(trunk, 1), False),
    ):
        hidden, _ = encode(form, config, batch, key=key, options=EncoderOptions(scan_layers=scan, remat="layers"))
        np.testing.assert_allclose(hidden, expected, atol=1e-5)


@pytest.mark.parametrize("form", ["straight", "looped"])
@pytest.mark.parametrize("family", DISTINCT_LAYERS)
def test_first_token_only_equals_the_full_computation_in_value_and_gradient(family: str, form: str) -> None:
    config, trunk = make_trunk(family)
    batch = make_batch(config)
    with jax.enable_x64(True):
        wide = jax.tree.map(lambda leaf: jnp.asarray(np.asarray(leaf, np.float64)), trunk)
        wide.pop("pooler", None)

        @functools.partial(jax.jit, static_argnums=1)
        def loss_and_gradients(trunk: Tree, first_token_only: bool) -> Any:
            def loss(trunk: Tree) -> tuple[jax.Array, jax.Array]:
                if form == "looped":
                    trunk = {**trunk, "layers": loop_layers(trunk["layers"])}
                options = EncoderOptions(scan_layers=form == "looped")
                hidden, _ = encode(trunk, config, batch, options=options, first_token_only=first_token_only)
                return jnp.sin(hidden[:, 0]).sum(), hidden[:, 0]

            return jax.value_and_grad(loss, has_aux=True)(trunk)

        (_, expected), expected_gradients = loss_and_gradients(wide, False)
        (_, hidden), gradients = loss_and_gradients(wide, True)
        np.testing.assert_allclose(hidden, expected, atol=1e-10)
        for path, gradient in flatten(gradients).items():
            np.testing.assert_allclose(gradient, flatten(expected_gradients)[path], atol=1e-10, err_msg=path)
            assert np.abs(gradient).max() > 1e-4 or path.endswith("key/bias"), f"{path} does not matter"


@pytest.mark.parametrize("family", DISTINCT)
def test_gradients_equal_finite_differences(family: str) -> None:
    config, trunk = make_trunk(family)
    batch = make_batch(config)
    with jax.enable_x64(True):
        wide = jax.tree.map(lambda leaf: jnp.asarray(np.asarray(leaf, np.float64)), trunk)
        embeddings = wide["embeddings"]

        def loss(embeddings: Tree) -> jax.Array:
            hidden, _ = encode({**wide, "embeddings": embeddings}, config, batch)
            return jnp.square(hidden * batch["mask"][..., None])[..., :3].sum()

        gradients = jax.jit(jax.grad(loss))(embeddings)
        for path, gradient in flatten(gradients).items():
            step = np.random.default_rng(0).standard_normal(gradient.shape)

            def loss_after_step(sign: float, path: str = path, step: np.ndarray = step) -> jax.Array:
                moved = map_with_path(lambda leaf, x: x + sign * 1e-5 * step if leaf == path else x, embeddings)
                return loss(moved)

            slope = (loss_after_step(1.0) - loss_after_step(-1.0)) / 2e-5
            np.testing.assert_allclose((gradient * step).sum(), slope, rtol=1e-5, atol=1e-7, err_msg=path)


@pytest.mark.parametrize("family", DISTINCT_LAYERS)
def test_layer_masks_give_the_same_result_as_separate_runs(family: str) -> None:
    config, trunk = make_trunk(family)
    batch = make_batch(config)

    def make_slots(contents: Tree, shared: None, key: jax.Array | None) -> LayerSlots:
        def slot(sublayer: Sublayer) -> tuple[jax.Array, None]:
            return sublayer.norm(contents["ffn"] * sublayer.output + sublayer.residual), None

        return LayerSlots(sublayers={"ffn": slot})

    slots = FilledSlots(layers=(0, 1, 2), contents={"ffn": jnp.array([0.0, 2.0, 3.0])}, make=make_slots)
    masks = np.array([[False] * 3, [True] * 3])
    for first in (False, True):
        hidden = encode_under_masks(trunk, config, batch, masks, slots=slots, first_token_only=first)
        np.testing.assert_allclose(hidden[:, 0], encode(trunk, config, batch, first_token_only=first)[0], atol=1e-5)
        filled, _ = encode(trunk, config, batch, slots=slots, first_token_only=first)
        np.testing.assert_allclose(hidden[:, 1], filled, atol=1e-5)


@pytest.mark.parametrize("family", DISTINCT)
def test_integer_masks_are_nonzero_at_tokens(family: str) -> None:
    config, trunk = make_trunk(family)
    batch = make_batch(config)
    expected, _ = encode(trunk, config, batch)
    for value in (1, 2, -1):
        integers = {**batch, "mask": value * batch["mask"].astype(np.int32)}
        np.testing.assert_array_equal(encode(trunk, config, integers)[0], expected)


@pytest.mark.parametrize("family", DISTINCT)
def test_padding_does_not_affect_other_tokens(family: str) -> None:
    config, trunk = make_trunk(family)
    batch = make_batch(config)
    padded, _ = encode(trunk, config, batch)
    for row, length in enumerate(batch["mask"].sum(-1).tolist()):
        one_row = {name: array[row : row + 1, :length] for name, array in batch.items()}
        np.testing.assert_allclose(encode(trunk, config, one_row)[0][0], padded[row, :length], atol=1e-5)


@pytest.mark.parametrize("first_token_only", [False, True])
def test_deberta_exported_with_a_symbolic_length_gives_the_same_result(first_token_only: bool) -> None:
    """Without a symbolic length, the distances of tokens are constants."""
    config, trunk = make_trunk("deberta-v2")

    def run(tokens: Any, types: Any, mask: Any) -> jax.Array:
        batch = {"tokens": tokens, "types": types, "mask": mask}
        return encode(trunk, config, batch, first_token_only=first_token_only)[0]

    shape = jax.export.symbolic_shape("batch, length", constraints=[f"length <= {config.max_length}"])
    inputs = [jax.ShapeDtypeStruct(shape, dtype) for dtype in (jnp.int32, jnp.int32, jnp.bool_)]
    exported = jax.export.export(jax.jit(run))(*inputs)
    for length in (1, 7, config.max_length):
        tokens = jax.random.randint(jax.random.key(1), (2, length), 2, config.vocab_size)
        mask = jnp.arange(length)[None] < jnp.array([[length], [1]])
        expected = run(tokens, 0 * tokens, mask)
        np.testing.assert_allclose(exported.call(tokens, 0 * tokens, mask), expected, atol=1e-5)


@pytest.mark.parametrize("family", DISTINCT)
def test_bfloat16_is_close_to_float32(family: str) -> None:
    config, trunk = make_trunk(family)
    batch = make_batch(config)
    expected, _ = encode(trunk, config, batch)
    hidden, _ = encode(cast_trunk(trunk, "bfloat16"), config, batch)
    assert hidden.dtype == jnp.bfloat16
    assert np.abs(hidden.astype(jnp.float32) - expected).max() < 0.1


@pytest.mark.parametrize("family", DISTINCT)
def test_weights_are_rounded_before_they_are_used(family: str) -> None:
    """A trained trunk has float32 weights, and a loaded one may have bfloat16 weights. Both compute the same."""
    config, trunk = make_trunk(family)
    batch = make_batch(config)
    trained, _ = encode(trunk, config, batch, options=EncoderOptions(dtype="bfloat16"))
    loaded, _ = encode(cast_trunk(trunk, "bfloat16"), config, batch)
    np.testing.assert_array_equal(trained.astype(jnp.float32), loaded.astype(jnp.float32))


# Tests of files.


def write_trunk(folder: Path, family: str) -> Path:
    """Writes a random trunk without a tokenizer."""
    config, params = make_trunk(family)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config_values(config)))
    save_file(to_hugging_face(params, config.encoder_family), folder / "model.safetensors")
    return folder


@pytest.mark.parametrize("family", FAMILIES)
def test_config_and_weights_round_trip(family: str, tmp_path: Path) -> None:
    config, params = make_trunk(family)
    assert trunk_config(config_values(config), where="config.json") == small_trunk(family)
    trunk = load_trunk(str(write_trunk(tmp_path / "trunk", family)))
    assert trunk.sha256 == tree_digest(jax.tree.map(np.asarray, params))
    assert trunk.config == small_trunk(family)
    save_trunk(tmp_path / "copy", trunk)
    with safe_open(tmp_path / "copy" / "model.safetensors", "numpy") as file:
        assert file.metadata() == {"format": "pt"}
    assert load_trunk(str(tmp_path / "copy")).sha256 == trunk.sha256
    config = dataclasses.replace(trunk.config, hidden_dropout=0.3, attention_dropout=0.2, activation="relu")
    save_trunk(tmp_path / "changed", dataclasses.replace(trunk, config=config))
    assert load_trunk(str(tmp_path / "changed")).config == config
    # The saved weights are float32, whatever the dtype of the loaded weights.
    values = json.loads((tmp_path / "trunk" / "config.json").read_text())
    (tmp_path / "trunk" / "config.json").write_text(json.dumps({**values, "dtype": "bfloat16"}))
    for name, saved in (("float32", trunk.config), ("changed", config)):
        save_trunk(tmp_path / name, dataclasses.replace(trunk, config=saved))
        assert json.loads((tmp_path / name / "config.json").read_text())["dtype"] == "float32"
    identity = trunk.identity()
    assert identity["family"] == identity["architecture"]["model_type"] == family


@pytest.mark.parametrize("family", FAMILIES)
def test_dropout_rates_are_not_part_of_an_architectures_identity(family: str) -> None:
    def architecture(**changes: Any) -> dict[str, Any]:
        return {"architecture": config_values(small_trunk(family, **changes))}

    recorded = architecture()
    assert not trunk_difference(recorded, architecture(hidden_dropout=0.2, attention_dropout=0.3)).differences
    assert len(trunk_difference(recorded, architecture(num_heads=3, activation="relu")).differences) == 2


@pytest.mark.parametrize("family", FAMILIES)
def test_weights_of_a_model_with_a_head_are_read(family: str, tmp_path: Path) -> None:
    folder = write_trunk(tmp_path, family)
    expected = load_trunk(str(folder)).sha256
    prefix = ENCODER_FAMILIES[family].weight_names.prefix
    tensors = {f"{prefix}.{name}": tensor for name, tensor in load_file(folder / "model.safetensors").items()}
    save_file({**tensors, "classifier.weight": np.zeros((2, 12), np.float32)}, folder / "model.safetensors")
    assert load_trunk(str(folder)).sha256 == expected


@pytest.mark.parametrize("family", FAMILIES)
def test_missing_and_unknown_weights_are_named(family: str, tmp_path: Path) -> None:
    folder = write_trunk(tmp_path, family)
    tensors = load_file(folder / "model.safetensors")
    names = [name for name in tensors if not name.startswith("pooler.")]
    for name in names:
        save_file({other: tensors[other] for other in tensors if other != name}, folder / "model.safetensors")
        with pytest.raises(UserError, match=f"- {name}"):
            load_trunk(str(folder))
    for scope in ENCODER_FAMILIES[family].weight_names.scopes:
        extra = {f"{scope}.other.weight": np.zeros(3, np.float32)}
        save_file({**tensors, **extra}, folder / "model.safetensors")
        with pytest.raises(UserError, match=rf"\+ {scope}\.other\.weight"):
            load_trunk(str(folder))


def have_other_weights(family: str, other: str) -> bool:
    """Whether the names of two families' tensors differ. Otherwise, the families only differ in positions."""
    names, other_names = (
        dataclasses.replace(ENCODER_FAMILIES[name].weight_names, prefix="", pooler={}) for name in (family, other)
    )
    return names != other_names


@pytest.mark.parametrize(
    ("family", "other"),
    [(family, other) for family in DISTINCT for other in FAMILIES if have_other_weights(family, other)],
)
def test_weights_of_another_family_are_refused(family: str, other: str, tmp_path: Path) -> None:
    folder = write_trunk(tmp_path, family)
    (folder / "config.json").write_text(json.dumps(config_values(small_trunk(other))))
    with pytest.raises(UserError) as raised:
        load_trunk(str(folder))
    assert has_facts(str(raised.value), str(folder), other)


def test_error_for_an_unsupported_model_type_lists_the_supported_types(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "gpt2"}))
    with pytest.raises(UserError) as raised:
        load_trunk(str(tmp_path))
    assert has_facts(str(raised.value), '"gpt2"', *(f'"{name}"' for name in ENCODER_FAMILIES))


@pytest.mark.parametrize(("family", "num_types", "needed"), [("bert", 0, "at least 1"), ("mpnet", 2, "0")])
def test_number_of_token_types_must_fit_the_family(family: str, num_types: int, needed: str) -> None:
    with pytest.raises(UserError, match=f'type_vocab_size is {num_types};.* "{family}" .* {needed}'):
        small_trunk(family, type_vocab_size=num_types)


@pytest.mark.parametrize(("family", "size", "needed"), [("bert", 8, "None"), ("electra", None, "at least 1")])
def test_embedding_size_must_fit_the_family(family: str, size: int | None, needed: str) -> None:
    with pytest.raises(UserError, match=f'embedding_size is {size};.* "{family}" .* {needed}'):
        small_trunk(family, embedding_size=size)


def test_electra_projects_embeddings_only_if_the_sizes_differ(tmp_path: Path) -> None:
    config = small_trunk("electra", embedding_size=12)
    assert config.projects_embeddings is False
    params = jax.jit(init_trunk, static_argnums=1)(jax.random.key(0), config)
    assert params["embeddings"].keys() == {"word", "position", "type", "norm"}
    (tmp_path / "config.json").write_text(json.dumps(config_values(config)))
    tensors = to_hugging_face(params, config.encoder_family)
    save_file(tensors, tmp_path / "model.safetensors")
    assert load_trunk(str(tmp_path)).config == config
    projection = {"embeddings_project.bias": np.zeros(12, np.float32)}
    save_file({**tensors, **projection}, tmp_path / "model.safetensors")
    with pytest.raises(UserError, match=r"\+ embeddings_project\.bias"):
        load_trunk(str(tmp_path))


@pytest.mark.parametrize("family", [name for name in DISTINCT if ENCODER_FAMILIES[name].layer == "post_norm"])
def test_only_distilbert_lacks_dropout_after_the_attention(family: str) -> None:
    """The attention's output has no dropout in Hugging Face's DistilBERT, in any of its layers."""
    config = small_trunk(family, hidden_dropout=0.5, attention_dropout=0.0)
    trunk = jax.jit(init_trunk, static_argnums=1)(jax.random.key(0), config)
    x = jax.random.normal(jax.random.key(1), (2, 7, config.hidden_size))
    mask = jnp.ones((2, 7), bool)
    layer = jax.tree.map(lambda leaf: leaf[0], trunk["layers"])
    shared = shared_inputs(trunk, config, mask, jnp.float32)
    outputs = [
        EncoderLayer(config).apply({"params": layer}, x, shared, dropout_keys=keys)[0]
        for keys in (LayerKeys(), LayerKeys(attention=jax.random.key(2)))
    ]
    assert np.array_equal(*outputs) == (family == "distilbert")


@pytest.mark.parametrize("as_numpy", [False, True])
def test_trunk_with_one_token_type_uses_it_for_both_texts(as_numpy: bool) -> None:
    config = small_trunk("roberta", init_scale=0.3, type_vocab_size=1)
    trunk = jax.jit(init_trunk, static_argnums=1)(jax.random.key(0), config)
    trunk = jax.tree.map(np.asarray, trunk) if as_numpy else trunk
    batch = make_batch(config)
    expected, _ = encode(trunk, config, batch)
    hidden, _ = encode(trunk, config, {**batch, "types": jnp.ones_like(batch["types"])})
    np.testing.assert_array_equal(hidden, expected)


def test_distilbert_config_can_have_berts_names() -> None:
    values = config_values(small_trunk("distilbert"))
    names = {"dim": "hidden_size", "n_heads": "num_attention_heads", "n_layers": "num_hidden_layers"}
    renamed = {names.get(field, field): value for field, value in values.items()}
    assert renamed.keys() >= set(names.values())
    assert trunk_config(renamed, where="config.json") == small_trunk("distilbert")
    assert trunk_config({**values, **renamed}, where="config.json") == small_trunk("distilbert")
    with pytest.raises(UserError) as raised:
        trunk_config({**values, "num_attention_heads": 3}, where="config.json")
    assert has_facts(str(raised.value), "config.json", f"n_heads is {values['n_heads']}", "num_attention_heads", "3;")


def test_mpnet_has_a_fixed_number_of_buckets() -> None:
    values = config_values(small_trunk("mpnet"))
    config = trunk_config({**values, "relative_attention_num_buckets": 32}, where="config.json")
    assert config == small_trunk("mpnet")
    with pytest.raises(UserError, match=r"relative_attention_num_buckets is 16;.* mpnet .* 32"):
        trunk_config({**values, "relative_attention_num_buckets": 16}, where="config.json")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("relative_attention", False),
        ("position_biased_input", True),
        ("share_att_key", False),
        ("pos_att_type", "c2p"),
        ("pos_att_type", ["c2p", "p2c", "p2p"]),
        ("norm_rel_ebd", "none"),
        ("type_vocab_size", 2),
        ("conv_kernel_size", 3),
        ("z_steps", 2),
        ("position_buckets", -1),
        ("position_buckets", 5),
        ("position_buckets", 256),
        ("max_relative_positions", "12"),
        ("embedding_size", 8),
        ("attention_head_size", 4),
    ],
)
def test_errors_name_unsupported_fields_of_deberta(field: str, value: Any) -> None:
    values = config_values(small_trunk("deberta-v2"))
    with pytest.raises(UserError) as raised:
        trunk_config({**values, field: value}, where="config.json")
    assert has_facts(str(raised.value), "config.json", f"{field} is {json.dumps(value)}")


@pytest.mark.parametrize(
    "field", ["relative_attention", "position_biased_input", "share_att_key", "pos_att_type", "norm_rel_ebd"]
)
def test_deberta_fields_with_unsupported_defaults_are_required(field: str) -> None:
    values = config_values(small_trunk("deberta-v2"))
    del values[field]
    with pytest.raises(UserError, match=f"{field} is missing"):
        trunk_config(values, where="config.json")


def test_equivalent_deberta_configs_are_equal() -> None:
    config = small_trunk("deberta-v2", max_relative_positions=16)
    values = config_values(config)
    for changes in (
        {"max_relative_positions": -1},
        {"pos_att_type": ["c2p", "p2c"]},
        {"conv_kernel_size": 0},
        {"attention_head_size": 6},
    ):
        assert trunk_config({**values, **changes}, where="config.json") == config
    del values["max_relative_positions"]
    assert trunk_config(values, where="config.json") == config


def test_debertas_absolute_positions_and_head_poolers_are_ignored(tmp_path: Path) -> None:
    folder = write_trunk(tmp_path, "deberta-v2")
    expected = load_trunk(str(folder)).sha256
    tensors = load_file(folder / "model.safetensors")
    unused = {
        "deberta.embeddings.position_embeddings.weight": np.zeros((16, 12), np.float32),
        "deberta.embeddings.word_embeddings._weight": np.zeros((16, 12), np.float32),
        "pooler.dense.weight": np.zeros((12, 12), np.float32),
        "pooler.dense.bias": np.zeros(12, np.float32),
    }
    save_file({**tensors, **unused}, folder / "model.safetensors")
    assert load_trunk(str(folder)).sha256 == expected


def test_layer_norms_include_the_layer_norm_of_relative_positions() -> None:
    """Houlsby's adapters train a copy of every LayerNorm, including this LayerNorm."""
    config, trunk = make_trunk("deberta-v2")
    batch = make_batch(config)
    norms = trunk_layer_norms(trunk)
    assert norms.keys() == {"embeddings", "relative", "attention", "ffn"}
    changed = {**norms, "relative": {**norms["relative"], "scale": 2.0 * norms["relative"]["scale"]}}
    expected, _ = encode(trunk, config, batch)
    np.testing.assert_array_equal(encode(with_layer_norms(trunk, norms), config, batch)[0], expected)
    assert np.abs(encode(with_layer_norms(trunk, changed), config, batch)[0] - expected).max() > 1e-3


def test_random_trunks_have_the_leaves_of_their_family() -> None:
    def leaves(family: str) -> set[str]:
        return {path for path in flatten(make_trunk(family)[1]) if not path.startswith("layers/")}

    pooler = {"pooler/kernel", "pooler/bias"}
    norm = {"embeddings/norm/scale", "embeddings/norm/bias"}
    tables = {"embeddings/word", "embeddings/position"}
    assert leaves("bert") == leaves("roberta") == pooler | norm | tables | {"embeddings/type"}
    projection = {"embeddings/projection/kernel", "embeddings/projection/bias"}
    assert leaves("electra") == norm | tables | projection | {"embeddings/type"}
    assert leaves("distilbert") == norm | tables
    assert leaves("mpnet") == pooler | norm | tables | {"embeddings/relative_position"}
    relative = {f"embeddings/relative/{leaf}" for leaf in ("position", "norm/scale", "norm/bias")}
    assert leaves("deberta-v2") == norm | relative | {"embeddings/word"}


def test_repr_of_a_trunk_has_its_family_and_maximum_length(tmp_path: Path) -> None:
    trunk = load_trunk(str(write_trunk(tmp_path, "mpnet")))
    assert isinstance(trunk, Trunk)
    assert has_facts(repr(trunk), "family mpnet", "longest row 14 tokens")
