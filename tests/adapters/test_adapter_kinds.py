"""The table of adapter kinds has exactly one complete entry per kind."""

import typing

import jax
import pytest

from afjax import adapters
from afjax.adapters.kind import AdapterKind, DenseKind, SlotKind, TopKind
from afjax.adapters.kinds import KINDS, adapter_layers, kind_of
from afjax.config.adapters import ADAPTER_PRESETS, Adapter, AdapterConfig, InDenseLayers, OnTop
from afjax.trees import flatten
from afjax.trunk.config import TrunkConfig

TRUNK = TrunkConfig(
    family="bert",
    vocab_size=20,
    hidden_size=24,
    num_layers=3,
    num_heads=2,
    intermediate_size=48,
    max_positions=8,
    type_vocab_size=2,
)


def members(union: object) -> set[type]:
    return {leaf for part in typing.get_args(union) for leaf in (members(part) or {part})}


def test_every_config_has_one_kind_and_every_module_is_in_the_table() -> None:
    assert [kind.config for kind in KINDS] == list(dict.fromkeys(kind.config for kind in KINDS))
    assert {kind.config for kind in KINDS} == members(Adapter)
    modules = [module for module in vars(adapters).values() if hasattr(module, "KIND")]
    assert {module.KIND.config for module in modules} == {kind.config for kind in KINDS}


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.config.__name__)
def test_config_determines_whether_modules_are_in_slots_or_on_top(kind: AdapterKind) -> None:
    config = kind.config()
    assert kind_of(config) is kind
    assert isinstance(kind, TopKind) == isinstance(config, OnTop) == (config.slots == ())
    assert isinstance(kind, DenseKind) == isinstance(config, InDenseLayers)
    if isinstance(kind, SlotKind):
        assert set(kind.layout) <= set(vars(config))
        assert (kind.size(config, 24) > 0) == config.linear_output
        # Only the other kinds have an ``output`` function, because a fusion computes all bottlenecks in one call.
        assert (kind.output is None) == (kind.config is AdapterConfig)
        assert (kind.units is not None) == (config.linear_output and kind.config is not AdapterConfig)


@pytest.mark.parametrize("name", ADAPTER_PRESETS)
def test_slot_leaves_are_stacked_over_layers_and_start_in_float32(name: str) -> None:
    config = ADAPTER_PRESETS[name]
    depth = len(adapter_layers(config, TRUNK.num_layers))
    tree = jax.eval_shape(lambda: kind_of(config).init(jax.random.key(0), config, TRUNK, depth))
    for path, leaf in flatten(tree).items():
        assert leaf.dtype == "float32"
        if path.partition("/")[0] in config.slots:
            assert leaf.shape[0] == TRUNK.num_layers, path
