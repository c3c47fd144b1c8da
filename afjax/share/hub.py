"""Pushes artifacts to the Hugging Face hub and pulls them from it.

A repository has the same contents as an archive, as separate files: one adapter, fusion or head, its dependencies and a
model card. A copy of it is a store, and Orbax can load its parameters without afjax.
"""

import contextlib
import glob
import tempfile
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

from afjax import __version__
from afjax.errors import UserError
from afjax.share import bundle
from afjax.share.received import FETCH_AGAIN, check_artifacts
from afjax.storage.paths import DISK_FULL, AnyPath, error_text
from afjax.store.files import MANIFEST
from afjax.store.manifest import KINDS, Manifest

# Files that a repository may contain in addition to artifacts. The hub creates some of them.
_NEUTRAL = (".gitattributes", "LICENSE", bundle.CARD)


def push(
    store: AnyPath,
    name: str,
    repository: str,
    *,
    kind: str = "",
    head: str = "",
    license: str = "",
    private: bool = False,
) -> str:
    """Pushes an artifact to the Hugging Face hub.

    Its dependencies and a model card are part of the same commit. The repository is created if it does not exist.
    Earlier versions of the artifact and its card are replaced, but remain in the repository's history.

    Args:
      store: The store, local or ``gs://``.
      name: The artifact's name.
      repository: ``USER/REPO``.
      kind: ``adapters``, ``fusion`` or ``heads``. Defaults to the adapter or fusion of that name, or else the head.
      head: The head to push with an adapter or a fusion; see :func:`afjax.share.pack`.
      license: An identifier such as ``apache-2.0`` for the card. Empty if unknown.
      private: Whether to make a new repository private.

    Returns:
      The repository's URL.

    Raises:
      UserError: The artifact cannot be packed (see :func:`afjax.share.pack`), the hub rejects the request, the
        repository contains other artifacts or files, or ``private`` is True and the repository is public.

    Example:
      >>> from afjax import share
      >>> share.push("store", "rte", "me/rte", license="apache-2.0")  # doctest: +SKIP
      'https://huggingface.co/me/rte'
    """
    _check_repository(repository)
    with tempfile.TemporaryDirectory(prefix="afjax-") as temporary:
        folder = Path(temporary)
        main = bundle.write(store, name, folder, kind=kind, head=head, license=license, repository=repository)[-1]
        files = {file.relative_to(folder).as_posix(): file for file in folder.rglob("*") if file.is_file()}
        with _explain_hub_errors(repository, "written"):
            return _commit(_client(), repository, files, main, private)


def pull(
    repository: str, store: AnyPath, *, revision: str = "", name: str = "", overwrite: bool = False
) -> tuple[Manifest, ...]:
    """Pulls artifacts from the Hugging Face hub into a store.

    The repository must have been written by :func:`push`. All files are checked before anything is installed.

    Args:
      repository: ``USER/REPO``.
      store: The store, local or ``gs://``. It is created if it does not exist.
      revision: A branch, tag or commit. Defaults to the latest commit.
      name: New name for the main artifact and its head. Empty to keep their name. A fusion's adapters are never
        renamed.
      overwrite: Whether existing artifacts may be replaced.

    Returns:
      The manifests in the store. The main artifact's manifest comes last.

    Raises:
      UserError: The repository or the revision does not exist, there is no network connection, the repository contains
        damaged or modified artifacts, or a name is taken. Nothing is written in this case.

    Example:
      >>> from afjax import share
      >>> share.pull("me/rte", "store")[-1].name  # doctest: +SKIP
      'rte'
    """
    _check_repository(repository)
    where = f"The repository {repository}"
    with bundle.staging_folder(store) as folder:
        with _explain_hub_errors(repository, "read"):
            _download(_client(), repository, revision, folder, where)
        manifests = bundle.read(folder, where=where, advice=FETCH_AGAIN)
        return bundle.install(manifests, folder, store, name=name, overwrite=overwrite)


def _commit(api: Any, repository: str, files: dict[str, Path], main: Manifest, private: bool) -> str:
    from huggingface_hub import CommitOperationAdd, CommitOperationDelete

    # private=None uses the organization's default visibility.
    address = str(api.create_repo(repo_id=repository, private=private or None, exist_ok=True))
    info = api.repo_info(repo_id=repository)
    if private and not info.private:
        raise UserError(
            f"The repository {repository} already exists and is public, which --private does not change. Make "
            "it private in its settings, or choose another --repo."
        )
    repository_files = [sibling.rfilename for sibling in info.siblings]
    foreign_files = [path for path in repository_files if path not in _NEUTRAL]
    held = _main_artifacts(repository_files)
    if foreign_files and held != {f"{main.kind}/{main.name}"}:
        raise UserError(
            f"The repository {repository} holds {', '.join(sorted(held) or foreign_files[:3])} and not "
            f"{main.kind}/{main.name}; choose another --repo."
        )
    operations: list[Any] = [
        CommitOperationAdd(path_in_repo=path, path_or_fileobj=files[path]) for path in sorted(files)
    ]
    removed = sorted(path for path in repository_files if path.split("/")[0] in KINDS and path not in files)
    operations += [CommitOperationDelete(path_in_repo=path) for path in removed]
    message = f"{main.kind}/{main.name}, SHA-256 {main.digest[:12]}"
    # With parent_commit, a concurrent commit makes this one fail instead of being reverted.
    api.create_commit(repo_id=repository, operations=operations, commit_message=message, parent_commit=info.sha)
    return address


def _main_artifacts(paths: Collection[str]) -> set[str]:
    """Lists a repository's fusions, or else its adapters, or else its heads.

    Each entry is ``kind/name``.
    """
    manifests = [path.removesuffix(f"/{MANIFEST}") for path in paths if path.split("/")[2:] == [MANIFEST]]
    paths_by_kind = (
        {path for path in manifests if path.startswith(f"{kind}/")} for kind in ("fusion", "adapters", "heads")
    )
    return next(filter(None, paths_by_kind), set())


def _download(api: Any, repository: str, revision: str, folder: Path, where: str) -> None:
    """Downloads a repository's artifacts to an empty folder.

    The manifests are downloaded and checked first.
    """
    info = api.repo_info(repo_id=repository, revision=revision or None, files_metadata=True)
    # The repository may also contain other files, such as pictures and licenses.
    artifact_files = [sibling for sibling in info.siblings if sibling.rfilename.split("/")[0] in KINDS]
    sizes = {sibling.rfilename: sibling.size or 0 for sibling in artifact_files}

    def fetch(paths: Collection[str]) -> None:
        # Pin the commit, in case another one is pushed meanwhile. Names may contain glob characters.
        patterns = [glob.escape(path) for path in paths]
        api.snapshot_download(repo_id=repository, revision=info.sha, local_dir=folder, allow_patterns=patterns)

    def read(paths: Collection[str]) -> Iterator[bytes]:
        fetch(paths)
        yield from ((folder / path).read_bytes() for path in paths)

    check_artifacts(sizes, read, sum(sizes.values()), where)
    fetch(sizes)


def _client() -> Any:
    from huggingface_hub import HfApi

    return HfApi(library_name="afjax", library_version=__version__)


def _check_repository(repository: str) -> None:
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id

    try:
        validate_repo_id(repository)
        valid = repository.count("/") == 1
    except HFValidationError:
        valid = False
    if not valid:
        raise UserError(
            f'The repository is "{repository}", but must be USER/REPO on the Hugging Face hub, such as me/rte.'
        )


@contextlib.contextmanager
def _explain_hub_errors(repository: str, done: str) -> Iterator[None]:
    """Converts exceptions from the hub's client to UserErrors with short messages."""
    from huggingface_hub import errors

    cannot = f"The repository {repository} cannot be {done}"
    try:
        yield
    except UserError:
        raise
    except errors.GatedRepoError as error:
        raise UserError(f"{cannot}: the repository is gated; request access on its page.") from error
    except errors.RevisionNotFoundError as error:
        raise UserError(f"{cannot}: it has no such revision; use one of its branches, tags or commits.") from error
    except errors.RepositoryNotFoundError as error:
        raise UserError(
            f"{cannot}: it does not exist, or you do not have access to it; check the name, or run hf auth login."
        ) from error
    except errors.LocalTokenNotFoundError as error:
        raise UserError(f"{cannot}: you are not logged in; run hf auth login, or set HF_TOKEN.") from error
    except errors.HfHubHTTPError as error:
        status = error.response.status_code
        if status in (401, 403):
            raise UserError(
                f"{cannot}: permission denied ({status}); run hf auth login with a token that has access."
            ) from error
        message = error.server_message or error_text(error)
        raise UserError(f"{cannot} ({status}: {message}); try again.") from error
    except Exception as error:  # Without a network, the hub's client raises many types of errors.
        if isinstance(error, OSError) and error.errno in DISK_FULL:
            raise UserError(f"{cannot} ({error_text(error)}); free up disk space, then try again.") from error
        # Not error_text, because the path is part of an OSError's text.
        message = str(error).partition("\n")[0] or type(error).__name__
        raise UserError(f"{cannot} ({type(error).__name__}: {message}); check the network, then try again.") from error
