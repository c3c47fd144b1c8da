"""Trunks that share weights with another trunk."""

import dataclasses

from afjax.distributed.sharding import local_mesh, shard
from afjax.trees import Tree, flatten, unflatten
from afjax.trunk.layers import fastest_form
from afjax.trunk.pretrained import Trunk


@dataclasses.dataclass(frozen=True, repr=False, kw_only=True)
class MergedTrunk(Trunk):
    """A trunk for inference that has an adapter merged into its layers.

    Weights that are the same arrays in ``base`` also share their copy on the devices. The digest is not computed.

    Attributes:
      base: The trunk without the adapter, in the same dtype.
    """

    base: Trunk

    def device_params(self, *, scan: bool) -> Tree:
        if scan not in self._device_params:
            base, before = self.base.device_params(scan=scan), flatten(self.base.params["layers"])
            leaves = flatten(self.params["layers"])
            changed = unflatten({path: leaf for path, leaf in leaves.items() if leaf is not before[path]})
            placed = shard({"trunk": {"layers": fastest_form(changed, scan=scan)}}, local_mesh())["trunk"]["layers"]
            layers = {part: unflatten({**flatten(base["layers"][part]), **flatten(placed[part])}) for part in placed}
            self._device_params[scan] = {**base, "layers": type(placed)(layers)}
        return self._device_params[scan]


def merged_trunk(base: Trunk, params: Tree) -> MergedTrunk:
    """Replaces the parameters of a trunk for inference."""
    fields = {field.name: getattr(base, field.name) for field in dataclasses.fields(Trunk)}
    return MergedTrunk(**{**fields, "params": params, "sha256": ""}, base=base)
