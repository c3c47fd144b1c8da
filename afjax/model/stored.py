"""Loads stored adapters and fusions as plain trees, for use in any model."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from afjax import store
from afjax.config.adapters import Adapter
from afjax.config.from_dict import from_dict
from afjax.config.fusion import FusionConfig
from afjax.errors import UserError
from afjax.fusion.pruning import keep_adapters, kept_config
from afjax.storage.paths import AnyPath
from afjax.store.artifacts import title
from afjax.trees import Tree


def load_adapter(
    store_folder: AnyPath, name: str, *, trunk_sha256: str | None = None, trunk: Mapping[str, Any] | None = None
) -> tuple[Adapter, Tree]:
    """Loads an adapter from a store, and verifies its digest.

    Args:
      store_folder: The store, local or ``gs://``.
      name: The adapter's name.
      trunk_sha256: The digest of your trunk's weights (``Trunk.sha256``), to check that the adapter was trained on it.
      trunk: Your trunk's ``Trunk.identity()``, to also check the architecture and the tokenizer. If neither
        ``trunk_sha256`` nor ``trunk`` is set, the trunk is not checked.

    Returns:
      The architecture, and a tree of NumPy arrays stacked over the adapted layers. :func:`afjax.layer_params` selects
      one layer.

    Raises:
      UserError: The adapter does not exist, was trained on a different trunk, or has a damaged file.

    Example:
      >>> import numpy as np
      >>> from afjax import load_adapter, store
      >>> down = {"kernel": np.zeros((2, 8, 4), np.float32), "bias": np.zeros((2, 4), np.float32)}
      >>> up = {"kernel": np.zeros((2, 4, 8), np.float32), "bias": np.zeros((2, 8), np.float32)}
      >>> options = {"config": {"kind": "bottleneck", "size": 4}, "trunk": {"sha256": "ab"}}
      >>> draft = store.Draft("adapters", "rte", {"ffn": {"down": down, "up": up}}, **options)
      >>> _ = store.save("store", draft)
      >>> config, tree = load_adapter("store", "rte", trunk_sha256="ab")
      >>> config, tree["ffn"]["down"]["kernel"].shape
      (AdapterConfig(size=4), (2, 8, 4))
    """
    loaded = store.load(store_folder, "adapters", name, trunk=_identity(trunk_sha256, trunk))
    return from_dict(Adapter, loaded.manifest.config, f'the config of adapter "{name}"'), loaded.params


def load_fusion(
    store_folder: AnyPath, name: str, *, trunk_sha256: str | None = None, trunk: Mapping[str, Any] | None = None
) -> tuple[FusionConfig, Tree, dict[str, tuple[Adapter, Tree]]]:
    """Loads a fusion and its adapters from a store.

    Args:
      store_folder: The store, local or ``gs://``.
      name: The fusion's name.
      trunk_sha256: The digest of your trunk's weights (``Trunk.sha256``), to check that the fusion was trained on it.
      trunk: Your trunk's ``Trunk.identity()``, to also check the architecture and the tokenizer. If neither
        ``trunk_sha256`` nor ``trunk`` is set, the trunk is not checked.

    Returns:
      The architecture, a tree of NumPy arrays, and ``{name: (architecture, tree)}`` for the adapters in order. If the
      fusion was pruned layer by layer, the adapters are named "0", "1", ..., and each is assembled from the adapters
      that each layer keeps.

    Raises:
      UserError: The fusion or an adapter does not exist, was trained on a different trunk, or has a damaged file; or an
        adapter has changed since the fusion was trained.

    Example:
      >>> import numpy as np
      >>> from afjax import load_fusion, store
      >>> tree, options = {"ffn": {"query": {"bias": np.zeros((2, 8))}}}, {"config": {}, "trunk": {"sha256": "ab"}}
      >>> drafts = [store.Draft("adapters", name, tree, **options) for name in ("entail", "paraphrase")]
      >>> saved = store.save_all("store", drafts)
      >>> adapters = [{"name": manifest.name, "sha256": manifest.digest} for manifest in saved]
      >>> _ = store.save("store", store.Draft("fusion", "target", tree, adapters=adapters, **options))
      >>> config, tree, members = load_fusion("store", "target")
      >>> config, list(members)
      (FusionConfig(), ['entail', 'paraphrase'])
    """
    config, tree, adapters = load_unpruned_fusion(store_folder, name, trunk=_identity(trunk_sha256, trunk))
    if config.kept is None:
        return config, tree, adapters
    architecture = next(iter(adapters.values()))[0]
    kept_members = keep_adapters([member for _, member in adapters.values()], architecture, config.kept)
    numbered = {str(number): (kept_config(architecture), member) for number, member in enumerate(kept_members)}
    return dataclasses.replace(config, kept=None), tree, numbered


def load_unpruned_fusion(
    store_folder: AnyPath, name: str, *, trunk: Mapping[str, Any] | None = None
) -> tuple[FusionConfig, Tree, dict[str, tuple[Adapter, Tree]]]:
    """Loads a fusion and all of its original adapters from a store.

    If the fusion was pruned layer by layer, ``config.kept`` lists the adapters that each layer fuses. In contrast,
    :func:`load_fusion` assembles new adapters.

    Raises:
      UserError: The fusion or an adapter does not exist, was trained on a different trunk, or has a damaged file; or an
        adapter has changed since the fusion was trained.
    """
    loaded = store.load(store_folder, "fusion", name, trunk=trunk)
    config = from_dict(FusionConfig, loaded.manifest.config, f'the config of fusion "{name}"')
    changed = store.adapter_problems(store_folder, loaded.manifest)
    if changed:
        raise UserError(changed[0])
    names = [str(member["name"]) for member in loaded.manifest.adapters]
    adapters = {member: load_adapter(store_folder, member, trunk=trunk) for member in names}
    return config, loaded.params, adapters


def _identity(trunk_sha256: str | None, trunk: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """Adds the weights' digest, if there is one, to a trunk's identity."""
    if trunk_sha256 is None:
        return trunk
    return {**(trunk or {}), "sha256": trunk_sha256}


def recorded_trunk(store_folder: AnyPath, kind: str, name: str) -> str:
    """Reads the name of an artifact's trunk from its manifest.

    Args:
      store_folder: The store.
      kind: ``adapters``, ``fusion`` or ``heads``.
      name: The artifact's name.

    Raises:
      UserError: The artifact does not exist, is damaged, or does not record its trunk.
    """
    trunk = store.read_manifest(store_folder, kind, name).trunk.get("name")
    if not trunk:
        raise UserError(f"{title(kind, name)} does not record the name of its trunk; use --trunk.")
    return str(trunk)


class NoHeadError(UserError):
    """No head, or more than one, was trained with an adapter or a fusion.

    Attributes:
      fact: A clause that describes the problem.
      advice: A clause with the remedy, for callers that load one model.
      heads: The names of the heads trained with the adapter or fusion.
    """

    def __init__(self, fact: str, advice: str, heads: tuple[str, ...] = ()) -> None:
        self.fact, self.advice, self.heads = fact, advice, heads
        super().__init__(fact, advice, heads)

    def __str__(self) -> str:
        return f"{self.fact}; {self.advice}."


def head_to_share(store_folder: AnyPath, kind: str, name: str, head: str | None = "") -> str:
    """Finds the head to share or export with an adapter or a fusion.

    Args:
      store_folder: The store.
      kind: ``adapters`` or ``fusion``; or ``heads``, for a head that is shared by itself.
      name: The name of the adapter, fusion or head.
      head: The head's name. Defaults to :func:`recorded_head`. None for no head.

    Returns:
      The head's name. Empty if there is none to share, or for a head by itself.

    Raises:
      UserError: Several heads were trained with it, and none has its name; or ``head`` does not exist, was trained with
        something else, or is given for a head.
    """
    if head is None:
        return ""
    if kind == "heads":
        if head:
            raise UserError(f'"{name}" is a head itself, so --head={head} does not apply to it; omit --head.')
        return ""
    if head:
        manifest = store.read_manifest(store_folder, kind, name)
        if not store.read_manifest(store_folder, "heads", head).belongs_to(manifest):
            raise UserError(
                f'The head "{head}" was not trained with {_lower_title(kind, name)}; choose another --head.'
            )
        return head
    try:
        return recorded_head(store_folder, kind, name)
    except NoHeadError as error:
        if not error.heads:
            return ""
        raise UserError(
            f"{error.fact}; choose one of them with --head ({', '.join(error.heads)}; head=NAME in Python)."
        ) from error


def recorded_head(store_folder: AnyPath, kind: str, name: str) -> str:
    """Finds the name of the head that was trained with an adapter or a fusion.

    By default, this is the head with the same name. If there is none, or it was trained with something else, this is
    the only head in the store that records being trained with this adapter or fusion.

    Args:
      store_folder: The store.
      kind: ``adapters`` or ``fusion``.
      name: The name of the adapter or fusion.

    Raises:
      NoHeadError: There is no such head, or there are several.
      UserError: A manifest is damaged.
    """
    manifest, heads = store.read_manifest(store_folder, kind, name), store.names(store_folder, "heads")
    if name in heads and store.read_manifest(store_folder, "heads", name).belongs_to(manifest):
        return name
    manifests = [store.read_manifest(store_folder, "heads", head) for head in heads]
    fitting = [head.name for head in manifests if head.trained_with and head.belongs_to(manifest)]
    if len(fitting) == 1:
        return fitting[0]
    subject = f"{len(fitting)} heads were" if fitting else "no head was"
    if fitting:
        advice = f"set --head to one of {', '.join(fitting)}"
    else:
        advice = "use one of the others with --head and --allow_mismatch" if heads else "the store has no heads"
    raise NoHeadError(
        f"In the store {store_folder} {subject} trained with {_lower_title(kind, name)}", advice, tuple(fitting)
    )


def _lower_title(kind: str, name: str) -> str:
    text = title(kind, name)
    return text[0].lower() + text[1:]
