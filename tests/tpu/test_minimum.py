"""The minimum FLOPs equal sums computed by hand, and agree with XLA's counts."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Literal

import jax
import pytest

from afjax.config.adapters import (
    ADAPTER_PRESETS,
    DENSE_LAYERS,
    Adapter,
    AdapterConfig,
    Ia3Config,
    LoraConfig,
    PalConfig,
    TopLayerConfig,
)
from afjax.errors import UserError
from afjax.model.model import Model
from afjax.tpu.minimum_flops import Trained, minimum_flops
from afjax.tpu.program import read_program
from afjax.trunk.config import TrunkConfig
from afjax.trunk.families import ENCODER_FAMILIES

pytestmark = pytest.mark.slow

ROWS, LENGTH = 4, 16
D, FFN, LAYERS = 32, 64, 2
TOKENS = ROWS * LENGTH

BASE = TrunkConfig(
    family="bert",
    vocab_size=30522,
    hidden_size=768,
    num_layers=12,
    num_heads=12,
    intermediate_size=3072,
    max_positions=512,
    type_vocab_size=2,
)

BOTTLENECK = AdapterConfig(size=8)
HOULSBY = AdapterConfig(position="both", pretrained_layer_norm="after", size=8, layer_norms=True)
PAL = PalConfig(size=8, num_heads=2)
LORA = LoraConfig(target_modules=("value",), rank=8)


def minimum(model: Model, trained: Trained, top_k: int = 0) -> int:
    return minimum_flops(model, trained, batch_size=ROWS, length=LENGTH, num_outputs=2, top_k=top_k)


def test_evaluation_flops_equal_the_textbook_sum(make_model: Callable[..., Model]) -> None:
    layer = TOKENS * (4 * D * D + 2 * D * FFN + 2 * LENGTH * D)
    head = TOKENS * D * 2
    assert minimum(make_model(reads="tokens"), "nothing") == 2 * (LAYERS * layer + head)


def test_full_training_costs_three_times_evaluation(make_model: Callable[..., Model]) -> None:
    model = make_model(reads="tokens")
    assert minimum(model, "full") == 3 * minimum(model, "nothing")


def test_training_only_the_head_needs_no_backward_pass_in_the_trunk(make_model: Callable[..., Model]) -> None:
    model = make_model()
    head = ROWS * (D * D + D * 2)
    # The gradient with respect to the output layer's input is needed for the pooler. The gradient with respect to the
    # pooler's input is not needed.
    assert minimum(model, "head") - minimum(model, "nothing") == 2 * (head + ROWS * D * 2)


def test_backward_pass_ends_at_the_adapter_of_the_lowest_layer(make_model: Callable[..., Model]) -> None:
    model = make_model([BOTTLENECK], reads="tokens")
    layer = TOKENS * (4 * D * D + 2 * D * FFN + 2 * 2 * LENGTH * D)
    weights = LAYERS * TOKENS * 2 * D * 8
    inputs = TOKENS * D * 8 + TOKENS * 2 * D * 8
    head = 2 * TOKENS * D * 2
    # In the upper layer, both factors of the two attention products need gradients. This gives 2 * 2 * LENGTH.
    assert minimum(model, "adapter") - minimum(model, "nothing") == 2 * (layer + weights + inputs + head)


def test_lora_needs_gradients_of_its_matrices_and_of_the_layers_above(make_model: Callable[..., Model]) -> None:
    model = make_model([LORA], reads="tokens")
    # LoRA is in the value layers. The lower layer's backward pass therefore only covers the products after the values.
    # These are the weighted sum, the attention's output layer and the feed-forward network. The upper layer's backward
    # pass covers all products.
    lower = TOKENS * (D * D + 2 * D * FFN + LENGTH * D)
    upper = TOKENS * (4 * D * D + 2 * D * FFN + 2 * 2 * LENGTH * D)
    forward, weights = LAYERS * TOKENS * 2 * D * 8, LAYERS * TOKENS * 2 * D * 8
    # In the lower layer, the inputs of A need no gradients, because nothing below is trained.
    inputs = TOKENS * D * 8 + TOKENS * 2 * D * 8
    head = 2 * TOKENS * D * 2
    expected = lower + upper + forward + weights + inputs + head
    assert minimum(model, "adapter") - minimum(model, "nothing") == 2 * expected


def test_ia3_only_needs_gradients_with_respect_to_inputs(make_model: Callable[..., Model]) -> None:
    model = make_model([Ia3Config(target_modules=("output",))], reads="tokens")
    lower, upper = TOKENS * D * FFN, TOKENS * (4 * D * D + 2 * D * FFN + 2 * 2 * LENGTH * D)
    head = 2 * TOKENS * D * 2
    assert minimum(model, "adapter") - minimum(model, "nothing") == 2 * (lower + upper + head)


def test_top_k_only_needs_gradients_of_the_upper_layers(make_model: Callable[..., Model]) -> None:
    model = make_model(reads="tokens")
    products = TOKENS * (4 * D * D + 2 * D * FFN)
    attention = TOKENS * 2 * LENGTH * D
    head = 2 * TOKENS * D * 2
    # The trained layer's input needs no gradient. This saves the three products for query, key and value.
    expected = 2 * products - 3 * TOKENS * D * D + 2 * attention + head
    assert minimum(model, "top_k", top_k=1) - minimum(model, "nothing") == 2 * expected


@pytest.mark.parametrize("top_k", [0, 3])
def test_top_k_outside_the_trunk_is_refused(make_model: Callable[..., Model], top_k: int) -> None:
    with pytest.raises(UserError, match=f"top_k is {top_k}, .*2 layers;.* 1 to 2"):
        minimum(make_model(), "top_k", top_k=top_k)


def test_fusion_is_cheaper_than_the_textbook_form_and_grows_slowly() -> None:
    def fused(num: int) -> int:
        adapters = tuple((f"adapter{n}", ADAPTER_PRESETS["pfeiffer"]) for n in range(num))
        model = Model(trunk=BASE, head_name="head", adapters=adapters, fusion_name="fusion")
        return minimum_flops(model, "fusion", batch_size=256, length=128, num_outputs=2)

    def textbook_mixing(num: int) -> int:
        """Returns the forward FLOPs of 11 layers of fusion in its textbook form.

        Each layer has d² + 2 N d² + 2 N r d multiply-adds per token.
        """
        return 2 * 11 * 256 * 128 * (768**2 + 2 * num * 768**2 + 2 * num * 48 * 768)

    assert fused(16) < textbook_mixing(16)
    assert fused(16) / fused(4) < 1.5


@pytest.mark.parametrize(
    ("trained", "adapters", "fuse", "top_k"),
    [
        ("nothing", [], False, 0),
        ("full", [], False, 0),
        ("top_k", [], False, 1),
        ("adapter", [BOTTLENECK], False, 0),
        ("adapter", [HOULSBY], False, 0),
        ("adapter+trunk", [PAL], False, 0),
        ("adapter", [LoraConfig()], False, 0),
        ("adapter", [LoraConfig(target_modules=tuple(DENSE_LAYERS))], False, 0),
        ("adapter", [Ia3Config()], False, 0),
    ],
)
def test_real_steps_need_at_most_two_percent_more_than_the_minimum(
    make_model: Callable[..., Model],
    compile_gradients: Callable[..., jax.stages.Compiled],
    trained: Trained,
    adapters: Sequence[Adapter],
    fuse: bool,
    top_k: int,
) -> None:
    model = make_model(adapters, fuse=fuse)
    work = read_program(compile_gradients(model, trained, top_k=top_k)).work
    assert 1.0 <= work.matmul_flops / minimum(model, trained, top_k) < 1.02


def modernbert(window: int = 2 * LENGTH, **sizes: int) -> TrunkConfig:
    """Returns the config of a ModernBERT with the sizes of the tiny BERT.

    By default, all rows fit in the attention window.
    """
    defaults = {**ENCODER_FAMILIES["modernbert"].defaults, "window": window}
    sizes = {
        "vocab_size": 50,
        "hidden_size": D,
        "num_layers": LAYERS,
        "num_heads": 4,
        "intermediate_size": FFN,
        **sizes,
    }
    return TrunkConfig(family="modernbert", max_positions=LENGTH, **sizes, **defaults)


def test_gated_feed_forward_networks_have_three_matrices(make_model: Callable[..., Model]) -> None:
    model = dataclasses.replace(make_model(reads="tokens"), trunk=modernbert())
    layer = TOKENS * (4 * D * D + 3 * D * FFN + 2 * LENGTH * D)
    assert minimum(model, "nothing") == 2 * (LAYERS * layer + TOKENS * D * 2)


def test_local_attention_only_counts_tokens_in_the_window(make_model: Callable[..., Model]) -> None:
    # The second layer is local. A token reads at most 3 tokens to the left and 3 to the right.
    narrow, wide = (
        minimum(dataclasses.replace(make_model(reads="tokens"), trunk=modernbert(window)), "nothing")
        for window in (7, 2 * LENGTH)
    )
    pairs = LENGTH * 7 - 2 * (3 + 2 + 1)
    assert wide - narrow == 2 * ROWS * (LENGTH**2 - pairs) * 2 * D


def test_rotary_attention_of_the_first_token_counts_keys_but_no_values(make_model: Callable[..., Model]) -> None:
    model = dataclasses.replace(make_model(), trunk=modernbert())
    lower = TOKENS * (4 * D * D + 3 * D * FFN + 2 * LENGTH * D)
    keys, scores, mixed = TOKENS * D * D, TOKENS * D, TOKENS * 4 * D
    upper = keys + scores + mixed + ROWS * (3 * D * D + 3 * D * FFN)
    assert minimum(model, "nothing") == 2 * (lower + upper + ROWS * (D * D + D * 2))


@pytest.mark.parametrize(
    ("adapters", "trained", "reads"),
    [
        ((), "nothing", "pooled"),
        ((), "full", "pooled"),
        ((), "layernorm", "tokens"),
        ((), "top_k", "pooled"),
        ((BOTTLENECK,), "adapter", "pooled"),
        ((HOULSBY,), "adapter", "tokens"),
        ((LORA,), "adapter", "pooled"),
        ((PAL,), "adapter+trunk", "pooled"),
        ((TopLayerConfig(),), "adapter", "pooled"),
    ],
)
def test_real_steps_of_modernbert_are_near_the_minimum(
    adapters: Sequence[Adapter],
    trained: Trained,
    reads: str,
    make_model: Callable[..., Model],
    compile_gradients: Callable[..., jax.stages.Compiled],
) -> None:
    model, top_k = dataclasses.replace(make_model(adapters, reads=reads), trunk=modernbert()), int(trained == "top_k")
    work = read_program(compile_gradients(model, trained, top_k=top_k)).work
    assert 1.0 <= work.matmul_flops / minimum(model, trained, top_k) < 1.02


QUERY_LORA = LoraConfig(target_modules=("query", "key"), rank=8)


@pytest.mark.parametrize("reads", ["pooled", "tokens"])
@pytest.mark.parametrize(
    ("adapters", "trained", "times"),
    [
        ((), "nothing", (1, 1)),
        ((), "full", (3, 3)),
        ((), "layernorm", (3, 3)),
        ((BOTTLENECK,), "adapter", (1, 2)),
        ((HOULSBY,), "adapter", (3, 3)),
        ((QUERY_LORA,), "adapter", (3, 3)),
    ],
)
def test_deberta_computes_products_with_more_distances_than_the_minimum(
    adapters: Sequence[Adapter],
    trained: Trained,
    times: tuple[int, int],
    reads: Literal["pooled", "tokens"],
    make_model: Callable[..., Model],
    compile_gradients: Callable[..., jax.stages.Compiled],
) -> None:
    bert = make_model(adapters, reads=reads)
    fields = {"type_vocab_size": 0, "position_buckets": 8, "max_relative_positions": LENGTH}
    model = dataclasses.replace(bert, trunk=dataclasses.replace(bert.trunk, family="deberta-v2", **fields))
    # Each row is one block. In every layer that computes all tokens, each query and each key is therefore multiplied
    # with twice as many distances as the row has tokens.
    more = 2 * 2 * TOKENS * LENGTH * D * sum(times[:1] if reads == "pooled" else times)
    flops = read_program(compile_gradients(model, trained)).work.matmul_flops - more
    assert 0.999 <= flops / minimum(model, trained) < 1.02


@pytest.mark.parametrize(
    ("adapters", "trained"), [((), "nothing"), ((), "full"), ((), "layernorm"), ((BOTTLENECK,), "adapter")]
)
@pytest.mark.parametrize("family", ["mpnet", "electra"])
def test_real_steps_of_other_families_are_near_the_minimum(
    family: str,
    adapters: Sequence[Adapter],
    trained: Trained,
    make_model: Callable[..., Model],
    compile_gradients: Callable[..., jax.stages.Compiled],
) -> None:
    bert = make_model(adapters)
    fields = {"mpnet": {"type_vocab_size": 0, "max_positions": LENGTH + 2}, "electra": {"embedding_size": 8}}[family]
    model = dataclasses.replace(bert, trunk=dataclasses.replace(bert.trunk, family=family, **fields))
    work = read_program(compile_gradients(model, trained)).work
    assert 1.0 <= work.matmul_flops / minimum(model, trained) < 1.02
    # MPNet has the same matrix products as BERT. ELECTRA also has the projection of its embeddings.
    projection = {"mpnet": 0, "electra": TOKENS * 8 * D}[family]
    times = {"full": 3, "layernorm": 2}.get(trained, 1)
    assert minimum(model, trained) - minimum(bert, trained) == 2 * times * projection
