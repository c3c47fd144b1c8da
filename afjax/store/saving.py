"""Saves artifacts to a store, and reserves names for unfinished runs."""

import contextlib
import dataclasses
import datetime
import importlib.metadata
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from etils import epath

from afjax.errors import UserError
from afjax.storage.paths import AnyPath, file_error, is_remote, is_temporary
from afjax.store import checkpoint, files, reservations
from afjax.store.artifacts import folder_of, load, names, read_manifest, store_folder, title
from afjax.store.manifest import FORMAT_VERSION, Manifest, describe, plain, to_json
from afjax.trees import Tree, flatten, map_with_path, tree_digest

# The fields common to manifests and drafts that describe an artifact.
_DESCRIPTION = ("config", "trunk", "task", "labels", "metrics", "seed", "adapters", "trained_with")


@dataclasses.dataclass(frozen=True)
class Draft:
    """An artifact to save.

    Attributes:
      kind: One of ``KINDS``.
      name: The artifact's name, see ``config.check_name``.
      params: The parameters, nested mappings of arrays with any shapes and numeric dtypes.
      config, trunk, task, labels, metrics, seed, adapters, trained_with: As in :class:`Manifest`, with
        JSON-serializable values.

    Example:
      >>> import numpy as np
      >>> from afjax import store
      >>> params = {"output": {"bias": np.zeros(2, np.float32)}}
      >>> draft = store.Draft("heads", "rte", params, config={}, trunk={}, labels=["no", "yes"])
      >>> [manifest.labels for manifest in store.save_all("stores/draft", [draft])]
      [('no', 'yes')]
    """

    kind: str
    name: str
    params: Tree
    _: dataclasses.KW_ONLY
    config: Mapping[str, Any]
    trunk: Mapping[str, Any]
    task: Mapping[str, Any] | None = None
    labels: Sequence[str] = ()
    metrics: Mapping[str, Any] | None = None
    seed: int = 0
    adapters: Sequence[Mapping[str, str]] = ()
    trained_with: Mapping[str, str] | None = None


def save(store: AnyPath, draft: Draft, *, overwrite: bool = False) -> Manifest:
    """Saves one artifact, like :func:`save_all` with a single draft.

    Args:
      store: The store's folder, local or ``gs://``. It is created if it does not exist.
      draft: The artifact.
      overwrite: Whether an existing artifact with this kind and name may be replaced.

    Returns:
      The manifest of the saved artifact.

    Raises:
      UserError: The kind, name or tree is invalid, the artifact exists and may not be replaced, an unfinished run has
        reserved the name, or the store cannot be written. The store is then unchanged.

    Example:
      >>> import numpy as np
      >>> from afjax import store
      >>> tree = {"ffn": {"down": {"kernel": np.zeros((2, 8, 4), np.float32)}}}
      >>> draft = store.Draft("adapters", "rte", tree, config={"size": 4}, trunk={"sha256": "ab"})
      >>> manifest = store.save("stores/save", draft)
      >>> manifest.num_parameters
      64
    """
    return save_all(store, [draft], overwrite=overwrite)[0]


def save_all(
    store: AnyPath, drafts: Sequence[Draft], *, overwrite: bool = False, run: str = ""
) -> tuple[Manifest, ...]:
    """Saves several artifacts together: either all of them or none.

    If several processes save the same names at the same time without ``overwrite``, one succeeds and the others raise.
    Readers see each artifact either complete or in its previous state, even if the process is killed. Object stores
    (``gs://``) have no locks, so the names are checked before and after writing. If two processes save the same names
    there within seconds, then the process whose artifacts were overwritten raises, or both do, and the artifacts must
    be saved again.

    In a multi-host run, only one process calls this, with fully addressable arrays.

    Args:
      store: The store's folder, local or ``gs://``. It is created if it does not exist.
      drafts: The artifacts, with distinct kinds and names.
      overwrite: Whether existing artifacts with these kinds and names may be replaced.
      run: Identifier of the training run that saves the artifacts; empty outside of training commands. An existing
        artifact is replaced if the same run saved it, or if it does not record a run and its parameters are identical.

    Returns:
      The manifests, in the order of the drafts. Without ``overwrite`` and ``run``, if the store already has all of the
      artifacts with the same content, nothing is written and their existing manifests are returned.

    Raises:
      UserError: A kind, a name or a tree is invalid, an artifact exists and may not be replaced, another unfinished run
        has reserved a name, or the store cannot be written. The store is then unchanged.

    Example:
      >>> import numpy as np
      >>> from afjax import store
      >>> tree, options = {"bias": np.zeros(2, np.float32)}, {"config": {}, "trunk": {"sha256": "ab"}}
      >>> drafts = [store.Draft(kind=kind, name="rte", params=tree, **options) for kind in ("adapters", "heads")]
      >>> [manifest.kind for manifest in store.save_all("stores/save_all", drafts)]
      ['adapters', 'heads']
    """
    if overwrite and run:
        raise UserError(f"overwrite=True cannot be used with run={run!r}; a run may only replace its own artifacts.")
    folders = [folder_of(store, draft.kind, draft.name) for draft in drafts]
    if len(set(folders)) != len(folders):
        raise UserError(f"Two artifacts have the same kind and name ({', '.join(map(str, folders))}); rename one.")
    trees = [_host_tree(draft) for draft in drafts]
    titles = " and the ".join(title(draft.kind, draft.name).removeprefix("The ") for draft in drafts)
    with write_lock(store, f"The {titles} cannot be written to {store}") as root:
        if not overwrite and not run and (same := _saved_before(store, drafts, trees)):
            return same
        if not overwrite:
            for draft, folder, tree in zip(drafts, folders, trees, strict=True):
                _check_free(store, draft, folder, tree, run)
        with replaced_artifacts(store, [(draft.kind, draft.name) for draft in drafts], run) as targets:
            manifests = [
                _write(draft, tree, target, run) for draft, tree, target in zip(drafts, trees, targets, strict=True)
            ]
    if is_remote(root):
        check_still_there(store, manifests)
    return tuple(manifests)


def _host_tree(draft: Draft) -> Tree:
    """Copies an artifact's parameters to the host.

    Raises:
      UserError: The parameters are not nested mappings, or there are none; a leaf is not a number or an array of
        numbers; or a key cannot be a file name.
    """
    where = title(draft.kind, draft.name)

    def host_array(path: str, leaf: Any) -> np.ndarray:
        if isinstance(leaf, list | tuple):
            raise UserError(f"{where} has a {type(leaf).__name__} at {path}; use nested mappings with array leaves.")
        array = np.asarray(leaf)
        if not array.size or not (jnp.issubdtype(array.dtype, jnp.number) or jnp.issubdtype(array.dtype, jnp.bool_)):
            shape = list(array.shape)
            raise UserError(f"{where} has {array.dtype}{shape} at {path}; a leaf must be an array with numbers.")
        return array

    if not isinstance(draft.params, Mapping):
        raise UserError(f"{where} has a {type(draft.params).__name__} as parameters; pass nested mappings of arrays.")
    for key in _keys(draft.params):
        if not isinstance(key, str) or not key.isprintable() or key in ("", ".", "..") or {*key} & {*"/\\"}:
            raise UserError(f"{where} has the key {key!r}; a key must be printable text that can name a file.")
    tree = map_with_path(host_array, draft.params)
    paths = [path.replace("/", ".") for path in flatten(tree)]
    if not paths:
        raise UserError(f"{where} has no parameters to save.")
    if repeated := sorted({path for path in paths if paths.count(path) > 1}):
        raise UserError(f"{where} has two leaves that would both be stored as {repeated[0]}; rename a key.")
    return tree


def _keys(tree: Mapping[Any, Any]) -> Iterator[Any]:
    for key, value in tree.items():
        yield key
        if isinstance(value, Mapping):
            yield from _keys(value)


def reserve(store: AnyPath, names: Sequence[tuple[str, str]], *, run: str, workdir: AnyPath) -> None:
    """Reserves the names of the artifacts that a training run will save.

    Another run that wants the same names then fails before it trains. A run calls this when it starts and when it
    resumes. A reservation is valid while the run's workdir exists and belongs to the same run. Saving the artifact
    removes the reservation. Object stores (``gs://``) have no locks, so two runs that start within the same second may
    both continue; the second one then fails in :func:`save_all`.

    Args:
      store: The store's folder, local or ``gs://``. It is created if it does not exist.
      names: ``(kind, name)`` of all artifacts that the run will save.
      run: The run's identifier, as in the workdir's ``store.json``.
      workdir: The run's folder.

    Raises:
      UserError: Another run has saved or reserved a name (the message includes the workdir of a reservation), or the
        store cannot be written. No name is reserved then.

    Example:
      >>> import numpy as np
      >>> from afjax import store
      >>> store.reserve("stores/reserve", [("adapters", "rte")], run="4f2a", workdir="runs/rte")
      >>> draft = store.Draft(kind="adapters", name="rte", params={"bias": np.zeros(2)}, config={}, trunk={})
      >>> store.save_all("stores/reserve", [draft], run="4f2a")[0].run
      '4f2a'
    """
    folders = [folder_of(store, kind, name) for kind, name in names]
    with write_lock(store, f"The store {store} cannot be written") as root:
        missing = []
        for (kind, name), folder in zip(names, folders, strict=True):
            reservations.check(store, kind, name, run)
            if files.read_current(folder) is None:
                missing.append((kind, name))
            elif read_manifest(store, kind, name).run not in ("", run):
                raise UserError(
                    f"{title(kind, name)} in the store {store} was saved by another run. Rename this run "
                    "(--config.name=NAME) or the source's task, choose another --store, or move the other run's "
                    "artifact out of the store."
                )
        for kind, name in missing:
            reservations.write(root, kind, name, run=run, workdir=workdir)
    if is_remote(root):
        for kind, name in missing:
            reservations.check(store, kind, name, run)


@contextlib.contextmanager
def write_lock(store: AnyPath, problem: str) -> Iterator[epath.Path]:
    """Locks a store within the block, and yields its folder. See :func:`files.only_writer`.

    Raises:
      UserError: The block raised an OSError. The message begins with ``problem``.
    """
    root = store_folder(store)
    try:
        with files.only_writer(root):
            yield root
    except OSError as error:
        raise file_error(problem, error, advice="Free up space there or choose another folder.") from error


@contextlib.contextmanager
def replaced_artifacts(
    store: AnyPath, artifacts: Sequence[tuple[str, str]], run: str = ""
) -> Iterator[list[epath.Path]]:
    """Yields new folders for the artifacts ``(kind, name)``, as :func:`files.replaced`.

    Their reservations are removed. The caller must hold the store's :func:`write_lock`.

    Raises:
      UserError: Another unfinished run has reserved a name.
      OSError: A file could not be written.
    """
    root = store_folder(store)
    for kind, name in artifacts:
        reservations.check(store, kind, name, run)
    with files.replaced([folder_of(store, kind, name) for kind, name in artifacts]) as targets:
        yield targets
    for kind, name in artifacts:
        reservations.release(root, kind, name)


def check_still_there(store: AnyPath, manifests: Sequence[Manifest]) -> None:
    """Raises UserError if another process has replaced the saved artifacts.

    This can only happen in stores without locks.
    """
    for manifest in manifests:
        try:
            current: Manifest | None = read_manifest(store, manifest.kind, manifest.name)
        except UserError as error:
            if is_temporary(error):
                raise
            current = None
        if current != manifest:
            raise UserError(
                f"{title(manifest.kind, manifest.name)} in the store {store} was replaced by another process at the "
                "same time. Check the store's contents (afjax store verify), then save again or under another name."
            )


def _saved_before(store: AnyPath, drafts: Sequence[Draft], trees: Sequence[Tree]) -> tuple[Manifest, ...]:
    """Returns the existing manifests if the store already has identical artifacts.

    Otherwise, returns an empty tuple. A program that saves its result can therefore be run again.
    """
    manifests = []
    for draft, tree in zip(drafts, trees, strict=True):
        if draft.name not in names(store, draft.kind):
            return ()
        try:
            manifest = load(store, draft.kind, draft.name).manifest
        except UserError:  # A damaged artifact is not the same.
            return ()
        recorded, given = (
            plain([getattr(value, field) or None for field in _DESCRIPTION]) for value in (manifest, draft)
        )
        if recorded != given or manifest.digest != tree_digest(tree):
            return ()
        manifests.append(manifest)
    return tuple(manifests)


def _check_free(store: AnyPath, draft: Draft, folder: epath.Path, tree: Tree, run: str) -> None:
    """Raises UserError if an artifact exists and may not be replaced."""
    if files.read_current(folder) is None and (is_remote(folder) or not folder.exists()):
        return
    clash = f'"{draft.name}" already exists among the {draft.kind.removesuffix("s")}s in the store {store}'
    if not run:
        raise UserError(f"{clash}, so nothing was saved. Save under another name, or with overwrite=True.")
    manifest = read_manifest(store, draft.kind, draft.name)
    # Manifests before format 2 do not record a run. If this run saved the artifact, its tree is bit-identical.
    if manifest.run != run and (manifest.run or manifest.digest != tree_digest(tree)):
        raise UserError(
            f"{clash} and was saved by another run, so nothing was saved. To save this run's, move the other run's out "
            "of the store, and run the same command again."
        )


def _write(draft: Draft, params: Tree, target: epath.Path, run: str) -> Manifest:
    """Writes an artifact into an empty folder. The manifest is written last."""
    manifest = Manifest(
        format_version=FORMAT_VERSION,
        kind=draft.kind,
        name=draft.name,
        config=plain(draft.config),
        task=plain(draft.task or {}),
        labels=tuple(draft.labels),
        trunk=plain(draft.trunk),
        leaves={path: describe(leaf) for path, leaf in flatten(params).items()},
        files=checkpoint.write(target / "params", params),
        metrics=plain(draft.metrics or {}),
        seed=int(draft.seed),
        versions=_versions(),
        adapters=plain(draft.adapters),
        created=datetime.datetime.now(datetime.UTC).isoformat(timespec="microseconds"),
        trained_with=plain(draft.trained_with or {}),
        run=run,
    )
    (target / files.MANIFEST).write_text(to_json(manifest))
    return manifest


def _versions() -> dict[str, str]:
    packages = {"afjax": "afjax", "jax": "jax", "flax": "flax", "orbax": "orbax-checkpoint", "numpy": "numpy"}
    return {key: _version(package) for key, package in packages.items()}


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:  # afjax runs from its source tree.
        return "not installed"
