"""Adapters and fusions are loaded from a store together with their architectures."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from afjax import store
from afjax.config.adapters import AdapterConfig, PalConfig
from afjax.config.from_dict import to_dict
from afjax.config.fusion import FusionConfig
from afjax.errors import UserError
from afjax.model.stored import load_adapter, load_fusion, recorded_head, recorded_trunk
from afjax.trees import Tree, flatten, tree_digest

TRUNK = {"name": "tiny", "sha256": "0" * 64}
PAL = PalConfig(size=2, num_heads=1)


def adapter_tree(config: Any, seed: int) -> Tree:
    generator = np.random.default_rng(seed)

    def linear(*shape: int) -> Tree:
        return {"kernel": generator.normal(size=shape), "bias": generator.normal(size=(*shape[:-2], shape[-1]))}

    if isinstance(config, AdapterConfig):
        return {"ffn": {"down": linear(2, 6, 3), "up": linear(2, 3, 6)}}
    attention = {name: linear(2, 2, 2) for name in ("query", "key", "value")}
    return {"shared": {"encode": linear(6, 2), "decode": linear(2, 6)}, "ffn": {"attention": attention}}


def fill(folder: Path, config: Any, fusion: FusionConfig) -> dict[str, Tree]:
    """Saves the adapters a, b and c and their fusion. Returns the adapters' trees."""
    trees = {name: adapter_tree(config, seed) for seed, name in enumerate("abc")}
    for name, tree in trees.items():
        store.save(folder, store.Draft("adapters", name, tree, config=to_dict(config), trunk=TRUNK))
    members = [{"name": name, "sha256": tree_digest(tree)} for name, tree in trees.items()]
    params = {"ffn": {"query": {"kernel": np.ones((2, 6, 6)), "bias": np.zeros((2, 6))}}}
    store.save(folder, store.Draft("fusion", "mixed", params, config=to_dict(fusion), trunk=TRUNK, adapters=members))
    return trees


def check_equal(ours: Tree, expected: Tree) -> None:
    assert flatten(ours).keys() == flatten(expected).keys()
    for path, leaf in flatten(expected).items():
        np.testing.assert_array_equal(flatten(ours)[path], leaf)


def test_fusion_is_loaded_with_its_adapters(tmp_path: Path) -> None:
    config, fusion = AdapterConfig(size=3, activation="tanh"), FusionConfig(temperature=2.0)
    trees = fill(tmp_path, config, fusion)
    loaded, params, adapters = load_fusion(tmp_path, "mixed", trunk_sha256=TRUNK["sha256"])
    assert (loaded, list(adapters)) == (fusion, ["a", "b", "c"])
    assert params["ffn"]["query"]["kernel"].shape == (2, 6, 6)
    for name, (architecture, tree) in adapters.items():
        assert architecture == config == load_adapter(tmp_path, name)[0]
        check_equal(tree, trees[name])


@pytest.mark.parametrize("config", [AdapterConfig(size=3), PAL])
def test_pruned_fusion_is_loaded_with_the_adapters_kept_per_layer(config: Any, tmp_path: Path) -> None:
    trees = fill(tmp_path, config, FusionConfig(kept=(((2, 0), (1, 2)),)))
    loaded, _, adapters = load_fusion(tmp_path, "mixed")
    assert (loaded, list(adapters)) == (FusionConfig(), ["0", "1"])
    for (architecture, tree), members in zip(adapters.values(), ("cb", "ac"), strict=True):
        assert architecture == (dataclasses.replace(PAL, shared_projections=False) if config == PAL else config)
        for path, leaf in flatten(tree["ffn"]).items():
            for layer, member in enumerate(members):
                stacked, shared = flatten(trees[member]["ffn"]), flatten(trees[member].get("shared", {}))
                np.testing.assert_allclose(
                    leaf[layer], shared[path] if path in shared else stacked[path][layer], rtol=1e-6
                )


def test_invalid_artifacts_are_refused(tmp_path: Path) -> None:
    config = AdapterConfig(size=3)
    fill(tmp_path, config, FusionConfig())
    with pytest.raises(UserError, match=r'adapter "d" .*store .* a, b, c'):
        load_adapter(tmp_path, "d")
    for load, name in ((load_adapter, "a"), (load_fusion, "mixed")):
        with pytest.raises(UserError, match=f'"{name}" .*trunk tiny'):
            load(tmp_path, name, trunk_sha256="1" * 64)
    store.save(
        tmp_path,
        store.Draft("adapters", "b", adapter_tree(config, 9), config=to_dict(config), trunk=TRUNK),
        overwrite=True,
    )
    with pytest.raises(UserError, match='"b"'):
        load_fusion(tmp_path, "mixed")


# Tests of recorded trunks and heads.


def save_head(folder: Path, name: str, adapter: str = "") -> None:
    """Saves a head that records the adapter it was trained with.

    If ``adapter`` is empty, the head has no record.
    """
    digest = store.read_manifest(folder, "adapters", adapter).digest if adapter else ""
    record = {"kind": "adapters", "name": adapter, "sha256": digest} if adapter else None
    store.save(folder, store.Draft("heads", name, {"bias": np.zeros(2)}, config={}, trunk=TRUNK, trained_with=record))


def test_recorded_trunk_is_returned_or_required(tmp_path: Path) -> None:
    fill(tmp_path, AdapterConfig(), FusionConfig())
    assert recorded_trunk(tmp_path, "adapters", "a") == recorded_trunk(tmp_path, "fusion", "mixed") == "tiny"
    store.save(
        tmp_path, store.Draft("adapters", "d", adapter_tree(PAL, 0), config=to_dict(PAL), trunk={"sha256": "0" * 64})
    )
    with pytest.raises(UserError, match=r'"d".*--trunk'):
        recorded_trunk(tmp_path, "adapters", "d")


def test_head_of_an_adapter_is_found_by_name_or_by_its_record(tmp_path: Path) -> None:
    fill(tmp_path, AdapterConfig(), FusionConfig())
    with pytest.raises(UserError, match=r'no head .*adapter "a"'):
        recorded_head(tmp_path, "adapters", "a")
    save_head(tmp_path, "other", "a")
    assert recorded_head(tmp_path, "adapters", "a") == "other"
    # The head with the adapter's name was trained with another adapter.
    save_head(tmp_path, "a", "b")
    assert recorded_head(tmp_path, "adapters", "a") == "other"
    assert recorded_head(tmp_path, "adapters", "b") == "a"
    save_head(tmp_path, "third", "a")
    with pytest.raises(UserError, match=r'2 heads .*adapter "a".*other, third'):
        recorded_head(tmp_path, "adapters", "a")
    # Older versions saved heads without a record. Such a head is accepted if it has the adapter's name.
    save_head(tmp_path, "c")
    assert recorded_head(tmp_path, "adapters", "c") == "c"
    with pytest.raises(UserError, match="other"):
        recorded_head(tmp_path, "fusion", "mixed")
