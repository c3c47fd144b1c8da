"""Trunks that share weights with another trunk."""

import dataclasses

from afjax.trees import Tree, flatten, unflatten
from afjax.trunk.layers import fastest_form
from afjax.trunk.pretrained import Trunk, place_missing


@dataclasses.dataclass(frozen=True, repr=False, kw_only=True)
class MergedTrunk(Trunk):
    """A trunk for inference that has an adapter merged into its layers.

    All merged trunks of a trunk, and the trunk itself, share the copies of unchanged weights on the devices. The digest
    is not computed.

    Attributes:
      base: The trunk without the adapter, in the same dtype.
    """

    base: Trunk

    def device_params(self, *, scan: bool) -> Tree:
        if scan not in self._device_params:
            before, stacked = flatten(self.base.params["layers"]), flatten(self.params["layers"])
            changed = unflatten({path: leaf for path, leaf in stacked.items() if leaf is not before[path]})
            own = flatten({"layers": fastest_form(changed, scan=scan)})
            # The devices already hold these leaves if the trunk or another merged trunk is in use.
            shared = {path: leaf for path, leaf in self.base._placed(scan=scan).items() if path not in own}
            tree = place_missing(self._host_params(scan=scan), shared)
            self.base._remember({path: leaf for path, leaf in flatten(tree).items() if path not in own}, scan=scan)
            self._device_params[scan] = tree
        return self._device_params[scan]


def merged_trunk(base: Trunk, params: Tree) -> MergedTrunk:
    """Replaces the parameters of a trunk for inference."""
    fields = {field.name: getattr(base, field.name) for field in dataclasses.fields(Trunk)}
    return MergedTrunk(**{**fields, "params": params, "sha256": ""}, base=base)
