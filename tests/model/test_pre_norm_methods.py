"""Every method on pre-norm layers equals a plain NumPy implementation in float64.

The implementations follow the formulas in ``docs/explanation/methods.md``.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from afjax.adapters.kinds import layer_params, merge_adapter
from afjax.adapters.pal import pal
from afjax.config.adapters import (
    DENSE_LAYERS,
    Adapter,
    AdapterConfig,
    Ia3Config,
    LhucConfig,
    LoraConfig,
    LowRankConfig,
    PalConfig,
    TopAttentionConfig,
    TopLayerConfig,
)
from afjax.config.fusion import FusionConfig
from afjax.config.heads import HeadConfig
from afjax.config.methods import Method
from afjax.fusion.textbook import textbook_fusion
from afjax.model.model import Model, trunk_layer_norms, with_layer_norms
from afjax.model.setup import fusion_setup, single_setup
from afjax.trees import Tree, flatten, map_with_path
from afjax.trunk.config import TrunkConfig
from afjax.trunk.encoder import init_trunk
from tests.small_trunk import small_trunk

pytestmark = pytest.mark.slow

NO_BIASES = small_trunk("modernbert", init_scale=0.3, layer_norm_epsilon=1e-3)
BIASES = dataclasses.replace(NO_BIASES, attention_bias=True, ffn_bias=True, norm_bias=True)
BOTTLENECK = AdapterConfig(size=4, init_scale=0.5)
ERF = np.vectorize(math.erf)
# Computes the next hidden state from the layer's index, a sub-layer's output and input, and the layer's input.
PlainSlot = Callable[[int, np.ndarray, np.ndarray, np.ndarray], np.ndarray]


def randomized(tree: Tree) -> Tree:
    """Converts a tree to float64 and adds noise. Every leaf then affects the outputs."""
    generator = np.random.default_rng(0)
    return map_with_path(
        lambda path, leaf: jnp.asarray(np.asarray(leaf, np.float64) + 0.2 * generator.standard_normal(leaf.shape)), tree
    )


def make_batch(config: TrunkConfig) -> dict[str, np.ndarray]:
    """Makes rows of 9, 4 and 1 tokens. The longest row is longer than the window."""
    mask = np.arange(9)[None] < np.array([[9], [4], [1]])
    tokens = np.random.default_rng(1).integers(2, config.vocab_size, mask.shape)
    return {"tokens": np.where(mask, tokens, 1), "types": np.zeros_like(tokens), "mask": mask}


def plain_dense(params: Tree, x: np.ndarray) -> np.ndarray:
    return x @ np.asarray(params["kernel"]) + np.asarray(params.get("bias", 0.0))


def plain_norm(params: Tree, x: np.ndarray, config: TrunkConfig) -> np.ndarray:
    centered = x - x.mean(-1, keepdims=True)
    normalized = centered / np.sqrt((centered**2).mean(-1, keepdims=True) + config.layer_norm_epsilon)
    return normalized * np.asarray(params["scale"]) + np.asarray(params.get("bias", 0.0))


def plain_attention(params: Tree, x: np.ndarray, mask: np.ndarray, config: TrunkConfig, *, local: bool) -> np.ndarray:
    """Computes attention without its output matrix, head by head and token by token."""
    theta = config.local_rotary_theta if local else config.rotary_theta
    assert theta is not None
    assert config.window is not None
    length, half = mask.shape[1], config.head_size // 2
    rotations = np.exp(1j * np.arange(length)[:, None] * theta ** (-np.arange(half) / half))  # [length, half]
    query, keys, values = (
        np.split(plain_dense(params[name], x), config.num_heads, -1) for name in ("query", "key", "value")
    )

    def rotated(head: np.ndarray) -> np.ndarray:
        pairs = (head[..., :half] + 1j * head[..., half:]) * rotations
        return np.concatenate([pairs.real, pairs.imag], -1)

    contexts = []
    for head in range(config.num_heads):
        rotated_query, rotated_keys, context = rotated(query[head]), rotated(keys[head]), np.zeros_like(values[head])
        for row in range(len(mask)):
            for token in range(length):
                near = np.abs(np.arange(length) - token) <= (config.window // 2 if local else length)
                attended = mask[row] & near
                # A padding token may attend to no token, so its sum of weights is zero. Padding is not compared.
                scores = rotated_keys[row] @ rotated_query[row, token] / math.sqrt(config.head_size)
                weights = np.exp(scores) * attended
                context[row, token] = weights @ values[head][row] / max(weights.sum(), 1e-300)
        contexts.append(context)
    return np.concatenate(contexts, -1)


def plain_layer(
    layer: Tree,
    config: TrunkConfig,
    x: np.ndarray,
    mask: np.ndarray,
    *,
    has_attention_norm: bool,
    local: bool,
    attention_slot: Callable[..., np.ndarray] = lambda output, residual, layer_input: residual + output,
    ffn_slot: Callable[..., np.ndarray] = lambda output, residual, layer_input: residual + output,
) -> np.ndarray:
    """Computes one layer.

    The functions in the slots take the sub-layer's output, the sub-layer's input and the layer's input.
    """
    inputs = plain_norm(layer["attention"]["norm"], x, config) if has_attention_norm else x
    context = plain_attention(layer["attention"], inputs, mask, config, local=local)
    h = attention_slot(plain_dense(layer["attention"]["output"], context), x, x)
    inner = plain_dense(layer["ffn"]["intermediate"], plain_norm(layer["ffn"]["norm"], h, config))
    activated, gate = np.split(inner, 2, -1)
    gated = activated * 0.5 * (1 + ERF(activated / math.sqrt(2))) * gate
    return ffn_slot(plain_dense(layer["ffn"]["output"], gated), h, x)


def plain_encoder(
    trunk: Tree, config: TrunkConfig, batch: Mapping[str, np.ndarray], slots: Mapping[str, PlainSlot]
) -> np.ndarray:
    """Computes the last hidden states of an encoder with modules in its slots."""
    assert config.global_every is not None
    x = plain_norm(trunk["embeddings"]["norm"], np.asarray(trunk["embeddings"]["word"])[batch["tokens"]], config)
    for index in range(config.num_layers):
        layer = jax.tree.map(lambda leaf, i=index: np.asarray(leaf[i]), trunk["layers"])
        filled = {f"{name}_slot": functools.partial(slot, index) for name, slot in slots.items()}
        local = index % config.global_every != 0
        x = plain_layer(layer, config, x, batch["mask"], has_attention_norm=index > 0, local=local, **filled)
    return plain_norm(trunk["norm"], x, config)


def plain_bottleneck(params: Tree, z: np.ndarray) -> np.ndarray:
    return plain_dense(params["up"], np.maximum(plain_dense(params["down"], z), 0))


def make_params(adapter: Adapter, config: TrunkConfig) -> tuple[Model, Tree]:
    setup = single_setup(Method(adapter=adapter), config, name="task", reads="tokens", num_outputs=2)
    trunk = jax.jit(init_trunk, static_argnums=1)(jax.random.key(0), config)
    return setup.model, randomized(setup.init(jax.random.key(1), trunk))


def check(model: Model, params: Tree, plain: Callable[[Mapping[str, np.ndarray]], np.ndarray]) -> None:
    """Compares a model with a plain implementation.

    The model runs as straight-line code and as a loop. A fusion is compared in all its forms.
    """
    batch = make_batch(model.trunk)
    expected, present = plain(batch), batch["mask"]
    for scan_layers in (False, True):
        run = dataclasses.replace(model, scan_layers=scan_layers)
        for tree in (params, run.with_bank(params), run.fold(params)) if model.fusion_name else (params,):
            hidden = jax.jit(run.hidden_states)(tree, batch)
            assert hidden.dtype == jnp.float64
            np.testing.assert_allclose(hidden[present], expected[present], atol=1e-10)


@pytest.fixture(autouse=True)
def float64() -> Any:
    with jax.enable_x64(True):
        yield


@pytest.mark.parametrize("config", [NO_BIASES, BIASES], ids=["no biases", "biases"])
def test_encoder_without_adapters(config: TrunkConfig) -> None:
    model, params = make_params(AdapterConfig(layers=(0,)), config)
    model = dataclasses.replace(model, adapters=())
    check(model, params, lambda batch: plain_encoder(params["trunk"], config, batch, {}))


@pytest.mark.parametrize("layers", [None, (0, 1), (2,)])
def test_pfeiffers_adapter_reads_the_residual_sum_and_adds_to_it(layers: tuple[int, ...] | None) -> None:
    config = dataclasses.replace(BOTTLENECK, layers=layers)
    model, params = make_params(config, NO_BIASES)

    def ffn(index: int, f: np.ndarray, h: np.ndarray, x: np.ndarray) -> np.ndarray:
        if layers is not None and index not in layers:
            return h + f
        adapter = layer_params(params["adapters"]["task"], config, index)
        return h + f + plain_bottleneck(adapter, h + f)

    check(model, params, lambda batch: plain_encoder(params["trunk"], NO_BIASES, batch, {"ffn": ffn}))


def test_houlsbys_adapters_read_sublayer_outputs_and_replace_all_layer_norms() -> None:
    config = AdapterConfig(
        position="both", pretrained_layer_norm="after", layer_norms=True, activation="relu", size=4, init_scale=0.5
    )
    model, params = make_params(config, BIASES)
    tree = params["adapters"]["task"]
    norms = tree["layer_norms"]
    assert set(norms) == {"embeddings", "attention", "ffn", "final"}
    assert jax.tree.map(jnp.shape, norms) == jax.tree.map(jnp.shape, trunk_layer_norms(params["trunk"]))

    def slot(name: str) -> PlainSlot:
        def run(index: int, output: np.ndarray, residual: np.ndarray, x: np.ndarray) -> np.ndarray:
            return residual + output + plain_bottleneck(layer_params(tree, config, index, name), output)

        return run

    trunk = with_layer_norms(params["trunk"], norms)
    assert not np.array_equal(trunk["norm"]["scale"], params["trunk"]["norm"]["scale"])
    slots = {name: slot(name) for name in ("attention", "ffn")}
    check(model, params, lambda batch: plain_encoder(trunk, BIASES, batch, slots))


@pytest.mark.parametrize("placement", ["parallel", "serial"])
def test_pals_read_the_layers_input_or_the_residual_sum(placement: Any) -> None:
    config = PalConfig(size=4, num_heads=2, placement=placement, init_scale=0.5)
    model, params = make_params(config, NO_BIASES)

    def plain(batch: Mapping[str, np.ndarray]) -> np.ndarray:
        def ffn(index: int, f: np.ndarray, h: np.ndarray, x: np.ndarray) -> np.ndarray:
            module = layer_params(params["adapters"]["task"], config, index)
            inputs = jnp.asarray(x if placement == "parallel" else h + f)
            return h + f + np.asarray(pal(module, inputs, batch["mask"], config))

        return plain_encoder(params["trunk"], NO_BIASES, batch, {"ffn": ffn})

    check(model, params, plain)


def test_lhuc_scales_the_residual_sum() -> None:
    config = LhucConfig()
    model, params = make_params(config, NO_BIASES)

    def ffn(index: int, f: np.ndarray, h: np.ndarray, x: np.ndarray) -> np.ndarray:
        scale = np.asarray(layer_params(params["adapters"]["task"], config, index)["scale"])
        return (h + f) * 2 / (1 + np.exp(-scale))

    check(model, params, lambda batch: plain_encoder(params["trunk"], NO_BIASES, batch, {"ffn": ffn}))


def test_top_layer_reads_all_tokens_and_its_output_is_not_normalized() -> None:
    model, params = make_params(TopLayerConfig(init_scale=0.3), BIASES)
    layer = params["adapters"]["task"]["top"]["layer"]

    def plain(batch: Mapping[str, np.ndarray]) -> np.ndarray:
        hidden = plain_encoder(params["trunk"], BIASES, batch, {})
        return plain_layer(layer, BIASES, hidden, batch["mask"], has_attention_norm=True, local=False)

    check(model, params, plain)


@pytest.mark.parametrize("config", [TopLayerConfig(), TopAttentionConfig(size=4, num_heads=2, num_layers=2)])
def test_modules_on_top_give_the_same_logits_if_only_the_first_token_is_computed(config: Adapter) -> None:
    model, params = make_params(config, NO_BIASES)
    batch = make_batch(NO_BIASES)
    pooled = dataclasses.replace(model, reads="pooled", head=HeadConfig(pooling="first", pooler="none"))
    np.testing.assert_allclose(pooled(params, batch).logits, model(params, batch).logits[:, 0], atol=1e-10)


@pytest.mark.parametrize("trunk", [NO_BIASES, BIASES], ids=["no biases", "biases"])
@pytest.mark.parametrize(
    "config",
    [LoraConfig(target_modules=tuple(DENSE_LAYERS), rank=2), Ia3Config(target_modules=tuple(DENSE_LAYERS))],
    ids=["lora", "ia3"],
)
def test_adapters_in_dense_layers_equal_merged_weights(config: LoraConfig | Ia3Config, trunk: TrunkConfig) -> None:
    model, params = make_params(config, trunk)
    layers = merge_adapter(params["trunk"]["layers"], params["adapters"]["task"], config)
    assert flatten(layers).keys() == flatten(params["trunk"]["layers"]).keys()
    merged = {**params["trunk"], "layers": layers}
    check(model, params, lambda batch: plain_encoder(merged, trunk, batch, {}))
    # The result is the same if only the first token is computed. In this case, the merged value matrix is applied to
    # the weighted sum of tokens.
    batch = make_batch(trunk)
    pooled = dataclasses.replace(model, reads="pooled", head=HeadConfig(pooling="first", pooler="none"))
    first = pooled(params, batch).logits
    assert pooled.first_token_only
    np.testing.assert_allclose(first, model(params, batch).logits[:, 0], atol=1e-10)


# Tests of fusions.


def fusion_params(adapters: Mapping[str, Adapter]) -> tuple[Model, Tree]:
    fusion = FusionConfig(init_scale=0.4, value_init_scale=0.2)
    setup = fusion_setup(adapters, fusion, HeadConfig(), NO_BIASES, name="task", reads="tokens", num_outputs=2)
    trunk = jax.jit(init_trunk, static_argnums=1)(jax.random.key(0), NO_BIASES)
    return setup.model, randomized(setup.init(jax.random.key(1), trunk))


@pytest.mark.parametrize(
    "adapters",
    [
        {"one": BOTTLENECK, "two": dataclasses.replace(BOTTLENECK, size=3)},
        {
            "one": LowRankConfig(size=3, init_scale=0.5, activation="relu"),
            "two": LowRankConfig(size=4, init_scale=0.5, activation="relu"),
        },
    ],
    ids=["bottleneck", "low_rank"],
)
def test_every_form_of_a_fusion_equals_the_textbook(adapters: Mapping[str, Any]) -> None:
    model, params = fusion_params(adapters)

    def output(name: str, index: int, z: np.ndarray, x: np.ndarray) -> np.ndarray:
        config = adapters[name]
        member = layer_params(params["adapters"][name], config, index)
        if isinstance(config, AdapterConfig):
            return plain_bottleneck(member, z)
        return plain_dense(member["decode"], np.maximum(plain_dense(member["encode"], x), 0))

    def ffn(index: int, f: np.ndarray, h: np.ndarray, x: np.ndarray) -> np.ndarray:
        z = h + f
        fusion = layer_params(params["fusion"]["task"], adapters["one"], index)
        outputs = np.stack([output(name, index, z, x) for name in adapters], -2)
        return z + np.asarray(textbook_fusion(fusion, outputs, jnp.asarray(z))[0])

    def plain(batch: Mapping[str, np.ndarray]) -> np.ndarray:
        return plain_encoder(params["trunk"], NO_BIASES, batch, {"ffn": ffn})

    check(model, params, plain)


# Tests of trained leaves.


def test_first_layers_attention_norm_is_not_used() -> None:
    model, params = make_params(BOTTLENECK, BIASES)
    batch = make_batch(BIASES)

    def loss(layers: Tree) -> jax.Array:
        return jnp.sin(model.hidden_states({**params, "trunk": {**params["trunk"], "layers": layers}}, batch)).sum()

    gradient = jax.grad(loss)(params["trunk"]["layers"])["attention"]["norm"]
    for leaf in gradient.values():
        assert not leaf[0].any()
        assert np.abs(leaf[1:]).min(0).max() > 1e-4


@pytest.mark.parametrize(
    ("partition", "trained"), [("layernorm", True), ("full", True), ("top_k", True), ("head", False)]
)
def test_final_layer_norm_is_trained_together_with_layers_or_layer_norms(partition: Any, trained: bool) -> None:
    method = Method(partition=partition, top_k=1 if partition == "top_k" else 0)
    setup = single_setup(method, NO_BIASES, name="task", reads="pooled", num_outputs=2)
    params = setup.init(jax.random.key(1), init_trunk(jax.random.key(0), NO_BIASES))
    part, _ = setup.split(params)
    assert ("norm" in part.get("trunk", {})) == trained
