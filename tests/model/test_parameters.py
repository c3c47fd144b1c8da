"""Parameter trees have exactly the expected leaves.

The numbers of parameters equal the numbers in the papers.
"""

import dataclasses
import functools
import typing
from typing import Any

import jax
import numpy as np
import pytest

from afjax.adapters.kinds import init_adapter
from afjax.config.adapters import ADAPTER_PRESETS, AdapterConfig
from afjax.config.fusion import FusionConfig
from afjax.config.heads import HeadConfig
from afjax.config.values import Partition
from afjax.fusion.parameters import init_fusion
from afjax.model.heads import init_head
from afjax.model.model import trunk_layer_norms
from afjax.model.partition import label, preset, split, split_layers
from afjax.trees import Tree, count, flatten
from afjax.trunk.config import TrunkConfig
from afjax.trunk.encoder import init_trunk
from afjax.trunk.layers import fastest_form
from afjax.trunk.sizes import SIZES

BASE, LARGE = SIZES["bert-base"], SIZES["bert-large"]
TINY = TrunkConfig(
    family="bert",
    vocab_size=50,
    hidden_size=16,
    num_layers=3,
    num_heads=4,
    intermediate_size=32,
    max_positions=20,
    type_vocab_size=2,
)


@functools.cache
def trunk_shapes(config: TrunkConfig) -> Tree:
    """Returns a trunk's tree with shapes instead of arrays. Nothing is allocated."""
    return jax.eval_shape(lambda: init_trunk(jax.random.key(0), config))


def adapter_shapes(config: AdapterConfig, trunk: TrunkConfig) -> Tree:
    def make(params: Tree) -> Tree:
        tree = init_adapter(jax.random.key(0), config, trunk)
        return {**tree, "layer_norms": trunk_layer_norms(params)} if getattr(config, "layer_norms", False) else tree

    return jax.eval_shape(make, trunk_shapes(trunk))


def fusion_shapes(config: FusionConfig, adapter: AdapterConfig, trunk: TrunkConfig) -> Tree:
    size = {"hidden_size": trunk.hidden_size, "num_layers": trunk.num_layers}
    return jax.eval_shape(lambda: init_fusion(jax.random.key(0), config, adapter, **size))


def shapes(tree: Tree) -> dict[str, Any]:
    assert {leaf.dtype.name for leaf in flatten(tree).values()} == {"float32"}
    return {path: leaf.shape for path, leaf in flatten(tree).items()}


# Tests of complete trees.


def test_tree_of_a_trunk() -> None:
    assert shapes(trunk_shapes(TINY)) == {
        "embeddings/norm/bias": (16,),
        "embeddings/norm/scale": (16,),
        "embeddings/position": (20, 16),
        "embeddings/type": (2, 16),
        "embeddings/word": (50, 16),
        "layers/attention/key/bias": (3, 16),
        "layers/attention/key/kernel": (3, 16, 16),
        "layers/attention/norm/bias": (3, 16),
        "layers/attention/norm/scale": (3, 16),
        "layers/attention/output/bias": (3, 16),
        "layers/attention/output/kernel": (3, 16, 16),
        "layers/attention/query/bias": (3, 16),
        "layers/attention/query/kernel": (3, 16, 16),
        "layers/attention/value/bias": (3, 16),
        "layers/attention/value/kernel": (3, 16, 16),
        "layers/ffn/intermediate/bias": (3, 32),
        "layers/ffn/intermediate/kernel": (3, 16, 32),
        "layers/ffn/norm/bias": (3, 16),
        "layers/ffn/norm/scale": (3, 16),
        "layers/ffn/output/bias": (3, 16),
        "layers/ffn/output/kernel": (3, 32, 16),
        "pooler/bias": (16,),
        "pooler/kernel": (16, 16),
    }


PRESET_TREES = {
    "pfeiffer": {
        "ffn/down/bias": (3, 1),
        "ffn/down/kernel": (3, 16, 1),
        "ffn/up/bias": (3, 16),
        "ffn/up/kernel": (3, 1, 16),
    },
    "houlsby": {
        "attention/down/bias": (3, 64),
        "attention/down/kernel": (3, 16, 64),
        "attention/up/bias": (3, 16),
        "attention/up/kernel": (3, 64, 16),
        "ffn/down/bias": (3, 64),
        "ffn/down/kernel": (3, 16, 64),
        "ffn/up/bias": (3, 16),
        "ffn/up/kernel": (3, 64, 16),
        "layer_norms/attention/bias": (3, 16),
        "layer_norms/attention/scale": (3, 16),
        "layer_norms/embeddings/bias": (16,),
        "layer_norms/embeddings/scale": (16,),
        "layer_norms/ffn/bias": (3, 16),
        "layer_norms/ffn/scale": (3, 16),
    },
}


def linear(path: str, inputs: int, outputs: int, *layers: int) -> dict[str, Any]:
    return {f"{path}/kernel": (*layers, inputs, outputs), f"{path}/bias": (*layers, outputs)}


PRESET_TREES |= {
    "pals": {
        **linear("shared/encode", 16, 204),
        **linear("shared/decode", 204, 16),
        **linear("ffn/attention/query", 204, 204, 3),
        **linear("ffn/attention/key", 204, 204, 3),
        **linear("ffn/attention/value", 204, 204, 3),
    },
    "pals_unshared": {
        **linear("ffn/encode", 16, 84, 3),
        **linear("ffn/decode", 84, 16, 3),
        **linear("ffn/attention/query", 84, 84, 3),
        **linear("ffn/attention/key", 84, 84, 3),
        **linear("ffn/attention/value", 84, 84, 3),
    },
    "low_rank": {**linear("ffn/encode", 16, 100, 3), **linear("ffn/decode", 100, 16, 3)},
    "projected_ffn": {
        **linear("shared/encode", 16, 204),
        **linear("shared/decode", 204, 16),
        **linear("ffn/intermediate", 204, 306, 3),
        **linear("ffn/output", 306, 204, 3),
    },
    "lhuc": {"ffn/scale": (3, 16)},
    "top_attention": {
        **linear("top/encode", 16, 204),
        **linear("top/decode", 204, 16),
        **linear("top/layers/attention/query", 204, 204, 6),
        **linear("top/layers/attention/key", 204, 204, 6),
        **linear("top/layers/attention/value", 204, 204, 6),
        **linear("top/layers/attention/output", 204, 204, 6),
        "top/layers/attention/norm/scale": (6, 204),
        "top/layers/attention/norm/bias": (6, 204),
    },
    "top_ffn": {
        **linear("top/encode", 16, 204),
        **linear("top/decode", 204, 16),
        **linear("top/layers/ffn/0", 204, 408, 6),
        **linear("top/layers/ffn/1", 408, 204, 6),
        "top/layers/ffn/norm/scale": (6, 204),
        "top/layers/ffn/norm/bias": (6, 204),
    },
    "top_ffn_2": {
        **linear("top/encode", 16, 204),
        **linear("top/decode", 204, 16),
        **linear("top/layers/ffn/0", 204, 252, 6),
        **linear("top/layers/ffn/1", 252, 252, 6),
        **linear("top/layers/ffn/2", 252, 204, 6),
        "top/layers/ffn/norm/scale": (6, 204),
        "top/layers/ffn/norm/bias": (6, 204),
    },
    "top_layer": {
        **linear("top/layer/attention/query", 16, 16),
        **linear("top/layer/attention/key", 16, 16),
        **linear("top/layer/attention/value", 16, 16),
        **linear("top/layer/attention/output", 16, 16),
        "top/layer/attention/norm/scale": (16,),
        "top/layer/attention/norm/bias": (16,),
        **linear("top/layer/ffn/intermediate", 16, 32),
        **linear("top/layer/ffn/output", 32, 16),
        "top/layer/ffn/norm/scale": (16,),
        "top/layer/ffn/norm/bias": (16,),
    },
}


def low_rank(path: str, inputs: int, outputs: int) -> dict[str, Any]:
    return {f"{path}/down/kernel": (3, inputs, 8), f"{path}/up/kernel": (3, 8, outputs)}


PRESET_TREES |= {
    "lora": {**low_rank("attention/query", 16, 16), **low_rank("attention/value", 16, 16)},
    "lora_all": {
        **low_rank("attention/query", 16, 16),
        **low_rank("attention/key", 16, 16),
        **low_rank("attention/value", 16, 16),
        **low_rank("attention/output", 16, 16),
        **low_rank("ffn/intermediate", 16, 32),
        **low_rank("ffn/output", 32, 16),
    },
    "ia3": {"attention/key/scale": (3, 16), "attention/value/scale": (3, 16), "ffn/output/scale": (3, 32)},
}


@pytest.mark.parametrize("name", ADAPTER_PRESETS)
def test_tree_of_every_preset(name: str) -> None:
    assert shapes(adapter_shapes(ADAPTER_PRESETS[name], TINY)) == PRESET_TREES[name]


def test_tree_of_an_adapter_with_new_layer_norms_in_some_layers() -> None:
    config = AdapterConfig(position="attention", new_layer_norm="both", size=4, layers=(0, 2))
    assert shapes(adapter_shapes(config, TINY)) == {
        "attention/down/bias": (2, 4),
        "attention/down/kernel": (2, 16, 4),
        "attention/norm_after/bias": (2, 16),
        "attention/norm_after/scale": (2, 16),
        "attention/norm_before/bias": (2, 16),
        "attention/norm_before/scale": (2, 16),
        "attention/up/bias": (2, 16),
        "attention/up/kernel": (2, 4, 16),
    }


def test_tree_of_a_fusion() -> None:
    assert shapes(fusion_shapes(FusionConfig(), AdapterConfig(), TINY)) == {
        "ffn/key/bias": (3, 16),
        "ffn/key/kernel": (3, 16, 16),
        "ffn/query/bias": (3, 16),
        "ffn/query/kernel": (3, 16, 16),
        "ffn/value/kernel": (3, 16, 16),
    }


def test_tree_of_a_head() -> None:
    def head(config: HeadConfig) -> Tree:
        return jax.eval_shape(lambda trunk: init_head(jax.random.key(0), config, 5, trunk=trunk), trunk_shapes(TINY))

    output = {"output/bias": (5,), "output/kernel": (16, 5)}
    assert shapes(head(HeadConfig())) == {**output, "pooler/bias": (16,), "pooler/kernel": (16, 16)}
    assert shapes(head(HeadConfig(pooler="trunk"))) == output


# Tests of numbers of parameters.


def test_every_preset_has_an_expected_tree_and_number_of_parameters() -> None:
    assert set(PRESET_TREES) == set(ADAPTER_PRESETS)
    assert {name for name, *_ in ADAPTER_COUNTS} == set(ADAPTER_PRESETS)


ADAPTER_COUNTS: list[tuple[str, TrunkConfig, dict[str, Any], int]] = [
    ("pfeiffer", BASE, {"reduction_factor": 2.0}, 7_091_712),
    ("pfeiffer", BASE, {}, 894_528),
    ("pfeiffer", BASE, {"reduction_factor": 64.0}, 230_544),
    ("houlsby", BASE, {}, 2_417_664),
    ("houlsby", BASE, {"layer_norms": False}, 2_379_264),
    ("houlsby", LARGE, {"size": 8}, 835_968 + 100_352),
    ("houlsby", LARGE, {}, 6_343_680 + 100_352),
    ("houlsby", LARGE, {"size": 256}, 25_227_264 + 100_352),
    # In the following comments, s is the module's size. The encoder VE has 768 s + s parameters, and the decoder VD has
    # 768 s + 768. Each layer has three matrices with s² + s parameters.
    ("pals", BASE, {}, 1_819_836),
    ("pals", BASE, {"size": 276, "layers": tuple(range(6))}, 1_801_116),
    ("pals", BASE, {"size": 276, "layers": tuple(range(6, 12))}, 1_801_116),
    ("pals_unshared", BASE, {}, 1_815_552),
    ("low_rank", BASE, {}, 1_853_616),
    # VE and VD have 314 316 parameters. Each layer has 204 * 306 + 306 and 306 * 204 + 204 parameters.
    ("projected_ffn", BASE, {}, 1_818_612),
    ("lhuc", BASE, {}, 12 * 768),
    # VE and VD have 314 316 parameters. Each layer has four matrices with s² + s parameters, and a LayerNorm.
    ("top_attention", BASE, {}, 1_320_444),
    ("top_attention", BASE, {"num_layers": 3}, 314_316 + 3 * 167_688),
    ("top_attention", BASE, {"num_layers": 12}, 314_316 + 12 * 167_688),
    ("top_ffn", BASE, {}, 314_316 + 6 * (204 * 408 + 408 + 408 * 204 + 204 + 408)),
    ("top_ffn_2", BASE, {}, 314_316 + 6 * (204 * 252 + 252 + 252 * 252 + 252 + 252 * 204 + 204 + 408)),
    ("top_layer", BASE, {}, 7_087_872),
    # Table 2 of the LoRA paper reports 0.3 M parameters for RoBERTa-base and 0.8 M for RoBERTa-large.
    ("lora", BASE, {}, 294_912),
    ("lora", LARGE, {}, 786_432),
    # In each layer, four dense layers map 768 features to 768, and two map 768 to 3072 or back.
    ("lora_all", BASE, {}, 12 * 8 * (4 * 2 * 768 + 2 * (768 + 3072))),
    ("ia3", BASE, {}, 12 * (2 * 768 + 3072)),
]


def ratio_to_bert_base(name: str, num_tasks: int = 8) -> float:
    """Returns the size of a trunk with one module per task, relative to BERT-base."""
    return (num_tasks * count(adapter_shapes(ADAPTER_PRESETS[name], BASE)) + 109_482_240) / 109_482_240


@pytest.mark.parametrize(
    ("name", "expected"),
    [("pals", 1.133), ("low_rank", 1.135), ("top_attention", 1.097), ("top_layer", 1.518), ("lhuc", 1.001)],
)
def test_parameter_ratio_to_bert_base_for_eight_tasks(name: str, expected: float) -> None:
    # Table 2 of the BERT and PALs paper has the ratios of pals, low_rank and top_attention.
    assert ratio_to_bert_base(name) == pytest.approx(expected, abs=6e-4)


@pytest.mark.parametrize(("name", "trunk", "changes", "expected"), ADAPTER_COUNTS)
def test_count_of_adapters(name: str, trunk: TrunkConfig, changes: dict[str, Any], expected: int) -> None:
    config = dataclasses.replace(ADAPTER_PRESETS[name], **changes)
    assert count(adapter_shapes(config, trunk)) == expected


@pytest.mark.parametrize(("size", "expected"), [(48, 74_544), (64, 99_136)])
def test_count_of_one_bottleneck(size: int, expected: int) -> None:
    assert count(adapter_shapes(AdapterConfig(size=size, layers=(0,)), BASE)) == expected


@pytest.mark.parametrize(
    ("value", "preset", "expected"),
    [
        (True, "pfeiffer", 21_252_096),
        (False, "pfeiffer", 14_174_208),
        (True, "houlsby", 2 * 21_252_096),
        (False, "houlsby", 2 * 14_174_208),
    ],
)
def test_count_of_fusions(value: bool, preset: str, expected: int) -> None:
    shapes_for = functools.partial(fusion_shapes, FusionConfig(value=value))
    assert count(shapes_for(ADAPTER_PRESETS[preset], BASE)) == expected
    one_layer = dataclasses.replace(AdapterConfig(), layers=(4,))
    assert count(shapes_for(one_layer, BASE)) == (1_771_008 if value else 1_181_184)


def test_count_of_trunks() -> None:
    base = trunk_shapes(BASE)
    assert count(base) == 109_482_240
    assert count(base["layers"]) == 12 * 7_087_872


HEAD = 768 * 768 + 768 + 2 * 768 + 2
POOLER = 768 * 768 + 768
TRAINED = {
    "adapter": 894_528 + HEAD,
    # Each head has its own pooler, so the trunk's pooler is neither used nor trained.
    "adapter+trunk": 894_528 + 109_482_240 - POOLER + HEAD,
    "fusion": 21_252_096 + HEAD,
    "full": 109_482_240 - POOLER + HEAD,
    "head": HEAD,
    "layernorm": 25 * 2 * 768 + HEAD,
    "top_k": 3 * 7_087_872 + HEAD,
}


@pytest.mark.parametrize("name", typing.get_args(Partition))
def test_count_of_trained_parameters_per_partition(name: str) -> None:
    adapter = {"a": ADAPTER_PRESETS["pfeiffer"]} if name in ("adapter", "adapter+trunk", "fusion") else {}

    def make(trunk: Tree) -> Tree:
        size = {"hidden_size": 768, "num_layers": 12}
        fusion = {"mix": init_fusion(jax.random.key(0), FusionConfig(), AdapterConfig(), **size)}
        return {
            "trunk": split_layers(trunk, 3) if name == "top_k" else trunk,
            "adapters": {key: init_adapter(jax.random.key(0), config, BASE) for key, config in adapter.items()},
            "fusion": fusion if name == "fusion" else {},
            "heads": {"task": init_head(jax.random.key(0), HeadConfig(), 2, trunk=trunk)},
        }

    params = jax.eval_shape(make, trunk_shapes(BASE))
    trained, _ = split(params, label(params, preset(name)))
    assert count(trained) == TRAINED[name]


def test_layer_norms_are_copied_from_layers_in_any_form() -> None:
    trunk = init_trunk(jax.random.key(0), TINY)
    forms = [trunk, *({**trunk, "layers": fastest_form(trunk["layers"], scan=scan)} for scan in (False, True))]
    expected, *others = (flatten(trunk_layer_norms(form)) for form in forms)
    assert {path: leaf.shape for path, leaf in expected.items()}["ffn/scale"] == (3, 16)
    for leaves in others:
        assert leaves.keys() == expected.keys()
        assert all(np.array_equal(leaves[path], leaf) for path, leaf in expected.items())
