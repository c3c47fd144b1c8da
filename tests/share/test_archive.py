"""Archives have an artifact and its dependencies, but no private paths.

Invalid archives are refused.
"""

import contextlib
import functools
import gzip
import hashlib
import io
import json
import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from facts import has_facts
from hypothesis import given, settings
from hypothesis import strategies as st
from made_store import HOME, TRUNK, contents, digests, save

from afjax import share, store
from afjax.errors import UserError
from afjax.share import bundle
from afjax.share.provenance import shareable
from afjax.storage.json_files import json_digest
from afjax.store import files, manifest

pytestmark = pytest.mark.slow

Refused = Callable[..., contextlib.AbstractContextManager[None]]
Members = dict[str, bytes]

PARTS = {
    "rte": ["heads/rte", "adapters/rte"],
    "mnli": ["adapters/mnli"],
    "both": ["adapters/mnli", "adapters/rte", "heads/both", "fusion/both"],
}


@functools.cache
def packed(example_store: Path, name: str) -> bytes:
    file = example_store.parent / f"{name}.tar"
    share.pack(example_store, name, file)
    return file.read_bytes()


@pytest.fixture
def archive(example_store: Path, tmp_path: Path) -> Path:
    """Returns an archive of the adapter "rte" with its head."""
    (tmp_path / "rte.tar").write_bytes(packed(example_store, "rte"))
    return tmp_path / "rte.tar"


@pytest.fixture
def fusion(example_store: Path, tmp_path: Path) -> Path:
    """Returns an archive of the fusion "both" with its adapters and its head."""
    (tmp_path / "both.tar").write_bytes(packed(example_store, "both"))
    return tmp_path / "both.tar"


def names(manifests: tuple[store.Manifest, ...]) -> list[str]:
    return [f"{part.kind}/{part.name}" for part in manifests]


# Tests of packing artifacts with their dependencies.


@pytest.mark.parametrize("name", PARTS)
def test_packed_artifacts_round_trip_with_their_dependencies(example_store: Path, tmp_path: Path, name: str) -> None:
    assert names(share.pack(example_store, name, tmp_path / "x.tar")) == PARTS[name]
    assert names(share.unpack(tmp_path / "x.tar", tmp_path / "new")) == PARTS[name]
    before = digests(example_store)
    assert digests(tmp_path / "new") == {part: before[part] for part in PARTS[name]}
    for part in PARTS[name]:
        kind, other = part.split("/")
        assert store.read_manifest(tmp_path / "new", kind, other) == shareable(
            store.read_manifest(example_store, kind, other)
        )
    # If the recipient packs the artifact again, the archive is byte-identical.
    share.pack(tmp_path / "new", name, tmp_path / "y.tar")
    assert (tmp_path / "x.tar").read_bytes() == (tmp_path / "y.tar").read_bytes()
    assert sorted(path.name for path in (tmp_path / "new").iterdir()) == sorted(
        {".lock", *(part.split("/")[0] for part in PARTS[name])}
    )


def test_extracted_archive_is_a_store(fusion: Path, example_store: Path, tmp_path: Path) -> None:
    with tarfile.open(fusion) as tar:
        # Extraction filters were added in Python 3.11.4.
        tar.extractall(tmp_path / "by-hand", **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))
        paths, owners = tar.getnames(), {(member.uid, member.uname, member.mtime) for member in tar.getmembers()}
    assert paths[0] == "README.md"
    assert [name.endswith("/manifest.json") for name in paths[1:6]] == [True] * 4 + [False]
    assert owners == {(0, "", 0)}
    before = digests(example_store)
    del before["heads/rte"]
    assert digests(tmp_path / "by-hand") == before


def test_archives_do_not_contain_private_folders(example_store: Path) -> None:
    for name in PARTS:
        assert HOME.encode() not in packed(example_store, name)
        assert str(example_store.parent).encode() not in packed(example_store, name)
    with tarfile.open(fileobj=io.BytesIO(packed(example_store, "rte"))) as tar:
        values = json.load(tar.extractfile("adapters/rte/manifest.json"))
    assert values["trunk"] == {**TRUNK, "name": "./mine"}
    assert (values["task"]["source"], values["task"]["dev"], values["task"]["train"]) == ("./rte", "./dev.jsonl", "")


def test_head_of_another_trunk_is_not_packed_with_the_adapter(source: Path, tmp_path: Path) -> None:
    save(source, "heads", "mnli", trunk={**TRUNK, "sha256": "cd" * 32})
    assert names(share.pack(source, "mnli", tmp_path / "x.tar")) == ["adapters/mnli"]
    assert names(share.pack(source, "mnli", tmp_path / "x.tar", kind="heads")) == ["heads/mnli"]


def test_head_with_another_name_is_packed_under_the_name_of_its_adapter(
    source: Path, tmp_path: Path, refused: Refused
) -> None:
    adapter, old = (store.read_manifest(source, kind, "rte") for kind in ("adapters", "heads"))
    record = {"kind": "adapters", "name": "rte", "sha256": adapter.digest}
    shutil.rmtree(source / "heads" / "rte")
    save(source, "heads", "first", 2, trained_with=record)
    assert names(share.pack(source, "rte", tmp_path / "x.tar")) == ["heads/rte", "adapters/rte"]
    head, _ = share.unpack(tmp_path / "x.tar", tmp_path / "new")
    assert (head.digest, head.trained_with) == (old.digest, record)
    assert store.load(tmp_path / "new", "heads", "rte").manifest == head
    # With two heads, the user chooses.
    save(source, "heads", "second", 3, trained_with=record)
    save(source, "heads", "foreign", 4, trained_with={**record, "sha256": "ab" * 32})
    with refused("2 heads", '"rte"', "--head (first, second"):
        share.pack(source, "rte", tmp_path / "y.tar")
    with refused('"foreign"', 'adapter "rte"', "--head"):
        share.pack(source, "rte", tmp_path / "y.tar", head="foreign")
    assert not (tmp_path / "y.tar").exists()
    with refused('"first"', "head itself", "--head=second"):
        share.pack(source, "first", tmp_path / "y.tar", head="second")
    head, _ = share.pack(source, "rte", tmp_path / "y.tar", head="second")
    assert (head.name, head.digest) == ("rte", store.read_manifest(source, "heads", "second").digest)


def test_head_without_adapter_is_packed_and_ambiguous_name_is_refused(
    source: Path, tmp_path: Path, refused: Refused
) -> None:
    shutil.rmtree(source / "adapters" / "rte")
    assert names(share.pack(source, "rte", tmp_path / "x.tar")) == ["heads/rte"]
    save(source, "adapters", "both", 9)
    with refused("adapter", "fusion", '"both"', "--kind=adapters"):
        share.pack(source, "both", tmp_path / "y.tar")
    assert names(share.pack(source, "both", tmp_path / "y.tar", kind="adapters")) == ["heads/both", "adapters/both"]


def test_invalid_artifacts_cannot_be_packed(source: Path, tmp_path: Path, refused: Refused) -> None:
    file = tmp_path / "x.tar"
    with refused('Did you mean "rte"?'):
        share.pack(source, "rtee", file)
    with refused("no store", str(tmp_path / "nothing")):
        share.pack(tmp_path / "nothing", "rte", file)
    with refused('kind "adapter"', 'Did you mean "adapters"'):
        share.pack(source, "rte", file, kind="adapter")
    with refused("The license"):
        share.pack(source, "rte", file, license="do what you like")
    for output, facts in (("x.tar.gz", ("x.tar.gz;", "ends in .tar")), ("none/x.tar", ("none/x.tar ", "parent"))):
        with refused(*facts):
            share.pack(source, "rte", tmp_path / output)
    with refused("gs://bucket/x.tar", "object store"):
        share.pack(source, "rte", "gs://bucket/x.tar")
    (tmp_path / "folder.tar").mkdir()
    with refused("folder.tar ", "is a folder"):
        share.pack(source, "rte", tmp_path / "folder.tar")
    save(source, "adapters", "mnli", 7, overwrite=True)
    with refused('fusion "both"', 'adapter "mnli"', "SHA-256", "train the fusion"):
        share.pack(source, "both", file)
    shutil.rmtree(source / "adapters" / "mnli")
    with refused('fusion "both"', 'adapter "mnli"', "not in", str(source)):
        share.pack(source, "both", file)
    leaf = next((source / "adapters" / "rte" / "params").glob("output.kernel/0*"))
    leaf.write_bytes(b"damaged")
    with refused(f"{source}/adapters/rte"):
        share.pack(source, "rte", file)


def test_existing_archive_is_replaced_atomically(
    example_store: Path, archive: Path, refused: Refused, monkeypatch: pytest.MonkeyPatch
) -> None:
    def raise_no_space(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(tarfile.TarFile, "addfile", raise_no_space)
        with refused("No space left on device"):
            share.pack(example_store, "both", archive)
    share.pack(example_store, "both", archive)
    assert archive.read_bytes() == packed(example_store, "both")


# Tests of names in the store.


def test_existing_artifact_is_kept_unless_overwritten(archive: Path, tmp_path: Path, refused: Refused) -> None:
    new = tmp_path / "new"
    save(new, "heads", "rte", 8)
    with refused("already has heads/rte.", "--overwrite"):
        share.unpack(archive, new)
    share.unpack(archive, new, overwrite=True)
    with refused("already has adapters/rte"):
        share.unpack(archive, new)
    assert list(digests(new)) == ["adapters/rte", "heads/rte"]


def test_new_name_also_applies_to_the_head(archive: Path, fusion: Path, example_store: Path, tmp_path: Path) -> None:
    new, before = tmp_path / "new", digests(example_store)
    assert names(share.unpack(archive, new, name="mine")) == ["heads/mine", "adapters/mine"]
    assert names(share.unpack(fusion, new, name="mixed")) == [
        "adapters/mnli",
        "adapters/rte",
        "heads/mixed",
        "fusion/mixed",
    ]
    assert digests(new)["adapters/mine"] == digests(new)["adapters/rte"] == before["adapters/rte"]
    assert digests(new)["fusion/mixed"] == before["fusion/both"]
    share.pack(new, "mixed", tmp_path / "again.tar")


def test_stored_adapters_of_an_unpacked_fusion_must_be_identical(
    archive: Path, fusion: Path, source: Path, tmp_path: Path, refused: Refused
) -> None:
    shutil.rmtree(source / "fusion")
    shutil.rmtree(source / "heads" / "both")
    before = contents(source)
    share.unpack(fusion, source)
    assert contents(source).items() >= before.items()
    assert "fusion/both" in digests(source)
    new = tmp_path / "new"
    save(new, "adapters", "rte", 8)
    with refused("already has adapters/rte"):
        share.unpack(fusion, new)
    with refused("already has adapters/rte"):
        share.unpack(fusion, new, name="mixed")
    with refused("cannot be used"):
        share.unpack(fusion, new, name="../mixed")


@pytest.mark.parametrize("stop", range(4))
def test_interrupted_unpack_leaves_no_files(
    fusion: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stop: int
) -> None:
    new, copied = tmp_path / "new", []

    def copy(source: Path, target: Path) -> None:
        if len(copied) == stop:
            raise KeyboardInterrupt
        copied.append(target)
        files.copy(source, target)

    monkeypatch.setattr(bundle, "copy", copy)
    with pytest.raises(KeyboardInterrupt):
        share.unpack(fusion, new)
    assert digests(new) == {}
    assert [path.name for path in new.rglob("*")] == [".lock"]


def test_overwrite_restores_a_damaged_artifact(archive: Path, tmp_path: Path) -> None:
    new = tmp_path / "new"
    share.unpack(archive, new)
    before = digests(new)
    damaged = new / "heads" / "rte" / "params" / "_CHECKPOINT_METADATA"
    damaged.write_bytes(damaged.read_bytes()[:-1] + b"x")
    assert store.verify(new) != []
    share.unpack(archive, new, overwrite=True)
    assert digests(new) == before


def test_artifact_that_is_replaced_while_it_is_packed_is_copied_again(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replaced = []

    def copy(source_folder: Path, target: Path) -> None:
        files.copy(source_folder, target)
        if not replaced:
            replaced.append(save(source, "adapters", "mnli", 8, overwrite=True))
            (target / "params" / "_CHECKPOINT_METADATA").write_text("half of another version")

    monkeypatch.setattr(bundle, "copy", copy)
    (packed_manifest,) = share.pack(source, "mnli", tmp_path / "mnli.tar")
    assert packed_manifest.digest == replaced[0].digest
    share.unpack(tmp_path / "mnli.tar", tmp_path / "new")
    assert digests(tmp_path / "new") == {"adapters/mnli": replaced[0].digest}


def test_unpacking_again_adds_missing_artifacts(fusion: Path, tmp_path: Path) -> None:
    new = tmp_path / "new"
    share.unpack(fusion, new)
    shutil.rmtree(new / "fusion")
    shutil.rmtree(new / "adapters" / "rte")
    share.unpack(fusion, new)
    assert len(digests(new)) == 4


def test_full_disk_is_reported(
    archive: Path, tmp_path: Path, refused: Refused, monkeypatch: pytest.MonkeyPatch
) -> None:
    def raise_no_space(*_: object) -> None:
        raise OSError(28, "No space left on device")

    (tmp_path / "new" / "heads").mkdir(parents=True)
    (tmp_path / "new" / ".lock").touch()
    with monkeypatch.context() as patch:
        patch.setattr(bundle, "copy", raise_no_space)
        with refused("cannot be written", str(tmp_path / "new"), "No space left on device"):
            share.unpack(archive, tmp_path / "new")


def test_full_disk_during_extraction_is_not_blamed_on_the_archive(
    archive: Path, tmp_path: Path, refused: Refused, monkeypatch: pytest.MonkeyPatch
) -> None:
    def raise_no_space(*_: object) -> None:
        raise OSError(28, "No space left on device")

    (tmp_path / "new").mkdir()
    with monkeypatch.context() as patch:
        patch.setattr("afjax.share.archive.shutil.copyfileobj", raise_no_space)
        with refused("unpacked to", str(tmp_path / "new"), "No space left on device"):
            share.unpack(archive, tmp_path / "new")
    assert list((tmp_path / "new").iterdir()) == []


def test_unpack_into_an_object_store(
    archive: Path, tmp_path: Path, example_store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "is_remote", lambda path: True)
    share.unpack(archive, tmp_path / "new")
    share.unpack(archive, tmp_path / "new", overwrite=True)
    assert digests(tmp_path / "new")["adapters/rte"] == digests(example_store)["adapters/rte"]


def test_object_store_keeps_identical_adapters(fusion: Path, source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (files, bundle):
        monkeypatch.setattr(module, "is_remote", lambda path: True)
    before = digests(source)
    # The stored adapters record local paths, which the archive does not have.
    share.unpack(fusion, source, name="again")
    assert digests(source).items() > before.items()


# Tests of damaged files.


@settings(deadline=None, max_examples=80)
@given(data=st.data())
def test_changed_byte_is_detected_or_harmless(
    example_store: Path, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    original = packed(example_store, "rte")
    position = data.draw(st.integers(0, len(original) - 1))
    changed = bytearray(original)
    changed[position] ^= data.draw(st.integers(1, 255))
    check_damaged(bytes(changed), example_store, tmp_path_factory.mktemp("damaged"))


@settings(deadline=None, max_examples=30)
@given(data=st.data())
def test_truncated_archive_is_refused_or_complete(
    example_store: Path, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    original = packed(example_store, "rte")
    cut = data.draw(st.integers(0, len(original) - 1) | st.sampled_from(range(0, len(original), tarfile.BLOCKSIZE)))
    check_damaged(original[:cut], example_store, tmp_path_factory.mktemp("damaged"))


def check_damaged(archive: bytes, example_store: Path, folder: Path) -> None:
    (folder / "x.tar").write_bytes(archive)
    try:
        share.unpack(folder / "x.tar", folder / "new")
    except UserError as error:
        assert str(folder / "x.tar") in str(error)  # noqa: PT017
        assert "\n" not in str(error)  # noqa: PT017
        assert sorted(folder.iterdir()) == [folder / "x.tar"]
    else:
        before = digests(example_store)
        assert digests(folder / "new") == {part: before[part] for part in sorted(PARTS["rte"])}


def test_files_that_are_not_archives_are_refused(archive: Path, tmp_path: Path, refused: Refused) -> None:
    new, file = tmp_path / "new", tmp_path / "x"
    with refused("No such file"):
        share.unpack(tmp_path / "nothing.tar", new)
    with refused("Is a directory"):
        share.unpack(tmp_path, new)
    with refused("gs://bucket/x.tar", "object store"):
        share.unpack("gs://bucket/x.tar", new)
    original = archive.read_bytes()
    for damaged in (b"", b"PK\x03\x04", gzip.compress(original), original + b"more", bytes(9999)):
        file.write_bytes(damaged)
        with refused(str(file)):
            share.unpack(file, new)


# Tests of forged archives.


def members_of(archive: Path) -> Members:
    with tarfile.open(archive) as tar:
        return {name: tar.extractfile(name).read() for name in tar.getnames()}


def write(archive: Path, members: Members, *more: tarfile.TarInfo) -> None:
    with tarfile.open(archive, "w") as tar:
        for name, contents in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(contents)
            tar.addfile(member, io.BytesIO(contents))
        for member in more:
            tar.addfile(member, io.BytesIO(bytes(member.size)))


def entry(name: str, **values: object) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    for key, value in values.items():
        setattr(member, key, value)
    return member


RTE = "adapters/rte"


@pytest.mark.parametrize(
    ("more", "fact"),
    [
        (entry("/etc/passwd"), "escapes"),
        (entry("../evil"), "escapes"),
        (entry("adapters/rte/params/../../../evil"), "escapes"),
        (entry("adapters/../../evil/manifest.json"), "escapes"),
        (entry("adapters\\rte\\manifest.json"), "escapes"),
        (entry("./adapters/rte/x"), "escapes"),
        (entry("adapters/rte//x"), "escapes"),
        (entry("adapters/r\nte/manifest.json"), "escapes"),
        (entry("C:/evil"), "does not belong"),
        (entry("heads/x,y/manifest.json"), "cannot be used"),
        (entry("heads/.x/manifest.json"), "cannot be used"),
        (entry("adapters/rte/more.txt"), "does not belong"),
        (entry("configs/rte/manifest.json"), "does not belong"),
        (entry("heads/more/params/x"), "heads/more, "),
        (entry(f"{RTE}/params/more"), "+ unexpected): +params/more"),
        (entry(f"{RTE}/params/link", type=tarfile.SYMTYPE, linkname="/etc/passwd"), "not a regular file"),
        (entry(f"{RTE}/params/link", type=tarfile.LNKTYPE, linkname="README.md"), "not a regular file"),
        (entry(f"{RTE}/params/device", type=tarfile.CHRTYPE), "not a regular file"),
        (entry(f"{RTE}/params/pipe", type=tarfile.FIFOTYPE), "not a regular file"),
        (entry(f"{RTE}/params/folder", type=tarfile.DIRTYPE), "not a regular file"),
        (
            entry("x", pax_headers={"GNU.sparse.map": "0,1", "GNU.sparse.size": "99999999999999", "path": "x"}),
            "not a regular file",
        ),
        (entry(f"{RTE}/manifest.json"), "twice"),
        (entry("README.md"), "twice"),
    ],
    ids=lambda value: value.name if isinstance(value, tarfile.TarInfo) else "",
)
def test_unexpected_members_are_refused(
    archive: Path, tmp_path: Path, refused: Refused, more: tarfile.TarInfo, fact: str
):
    write(archive, members_of(archive), more)
    with refused(fact):
        share.unpack(archive, tmp_path / "new")


def test_missing_members_are_refused(archive: Path, fusion: Path, tmp_path: Path, refused: Refused) -> None:
    def without(file: Path, start: str) -> None:
        write(file, {name: contents for name, contents in members_of(file).items() if not name.startswith(start)})

    original = archive.read_bytes()
    for start, facts in (
        (f"{RTE}/params/output.bias/0", ("- missing", "+ unexpected", "-params/output.bias/0")),
        (f"{RTE}/manifest.json", ("adapters/rte, ", "manifest.json")),
        ("", ("no adapter", "afjax store pack")),
    ):
        archive.write_bytes(original)
        without(archive, start)
        with refused(*facts):
            share.unpack(archive, tmp_path / "new")
    without(fusion, "adapters/mnli")
    with refused("holds ", "not one adapter", "pack it again"):
        share.unpack(fusion, tmp_path / "new")


def test_unrelated_artifacts_are_refused(archive: Path, example_store: Path, source: Path, refused: Refused) -> None:
    mnli = source.parent / "mnli.tar"
    mnli.write_bytes(packed(example_store, "mnli"))
    write(archive, {**members_of(archive), **members_of(mnli)})
    with refused("adapters/mnli, adapters/rte, heads/rte, ", "not one adapter", "pack it again"):
        share.unpack(archive, source.parent / "new")
    # Make an archive of a fusion whose adapters have the right names but other weights.
    save(source, "adapters", "rte", 9, overwrite=True)
    share.pack(source, "rte", archive)
    both = source.parent / "both.tar"
    both.write_bytes(packed(example_store, "both"))
    write(
        both, {**members_of(both), **{key: value for key, value in members_of(archive).items() if key.startswith(RTE)}}
    )
    with refused('fusion "both"', 'adapter "rte"', "SHA-256", "train the fusion"):
        share.unpack(both, source.parent / "new")


def forge(archive: Path, edit: Callable[[dict, Members], None]) -> None:
    """Edits the adapter's manifest and files, and updates the checksum."""
    members = members_of(archive)
    values = json.loads(members[f"{RTE}/manifest.json"])
    edit(values, members)
    del values[manifest.CHECKSUM]
    values[manifest.CHECKSUM] = json_digest(values)
    members[f"{RTE}/manifest.json"] = json.dumps(values).encode()
    write(archive, members)


def set_version(values: dict, members: Members) -> None:
    values["format_version"] = 99


def set_name(values: dict, members: Members) -> None:
    values["name"] = "mnli"


def set_escaping_path(values: dict, members: Members) -> None:
    values["files"]["../../../evil"] = "0" * 64


def set_shape(values: dict, members: Members) -> None:
    values["leaves"]["output/kernel"]["shape"] = [2**40, 4]


def set_dtype(values: dict, members: Members) -> None:
    values["leaves"]["output/kernel"]["dtype"] = "float99"


def set_nested_leaf(values: dict, members: Members) -> None:
    values["leaves"]["output/kernel/more"] = values["leaves"]["output/kernel"]


def set_adapters(values: dict, members: Members) -> None:
    values["adapters"] = ["rte"]


def set_digest(values: dict, members: Members) -> None:
    values["leaves"]["output/kernel"]["sha256"] = "0" * 64


def set_trunk(values: dict, members: Members) -> None:
    values["trunk"] = {"name": 3}


def set_trunk_dtype(values: dict, members: Members) -> None:
    values["trunk"]["dtype"] = "int4"


def set_nan(values: dict, members: Members) -> None:
    values["metrics"]["accuracy"] = float("nan")


def set_other_trunk(values: dict, members: Members) -> None:
    values["trunk"]["sha256"] = "cd" * 32


def add_bytes(values: dict, members: Members) -> None:
    contents = bytes(2**24)
    members[f"{RTE}/params/more"] = contents
    values["files"]["more"] = hashlib.sha256(contents).hexdigest()


def set_chunks(values: dict, members: Members) -> None:
    """Makes a leaf declare chunks of 32 TiB."""
    path = f"{RTE}/params/output.kernel/.zarray"
    metadata = json.loads(members[path])
    metadata["shape"] = metadata["chunks"] = [2**40, 8]
    members[path] = json.dumps(metadata).encode()
    values["files"]["output.kernel/.zarray"] = hashlib.sha256(members[path]).hexdigest()


@pytest.mark.parametrize(
    ("edit", "facts"),
    [
        (set_version, ("format_version is 99", "1")),
        (set_name, ("adapters/mnli", "not to adapters/rte")),
        (set_escaping_path, ("- missing", "+ unexpected", "-params/../../../evil")),
        (set_shape, ("manifests", "bytes of parameters", "rejected")),
        (set_dtype, ('leaf "output/kernel" ', "shape, dtype and sha256")),
        (set_nested_leaf, ("leaf",)),
        (set_adapters, ("adapters ", "'rte'")),
        (set_trunk, ("trunk.name is 3",)),
        (set_trunk_dtype, ("trunk.dtype is 'int4'",)),
        (set_nan, ("NaN ", "JSON number")),
        (set_other_trunk, ("different trunks",)),
        (set_digest, ('"output/kernel" has sha256',)),
        (add_bytes, ("manifest", "40 bytes of parameters")),
        (set_chunks, ("adapters/rte: ", 'leaf "output/kernel" ', f"[{2**40}, 8]", "[4, 2]")),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_forged_manifests_are_refused(
    archive: Path, tmp_path: Path, refused: Refused, edit: Callable, facts: tuple[str, ...]
) -> None:
    forge(archive, edit)
    with refused(*facts):
        share.unpack(archive, tmp_path / "new")


@pytest.mark.parametrize(
    "contents", [b"\xff", b"[" * 100_000, b"1" * 10_000, b"{}", b"null", b" " * (2**24 + 1)], ids=range(6)
)
def test_invalid_manifests_are_refused(archive: Path, tmp_path: Path, refused: Refused, contents: bytes) -> None:
    write(archive, {**members_of(archive), f"{RTE}/manifest.json": contents})
    with refused("manifest", "again"):
        share.unpack(archive, tmp_path / "new")


def test_messages_name_the_archive_not_temporary_folders(archive: Path, tmp_path: Path) -> None:
    members = members_of(archive)
    members[f"{RTE}/params/output.bias/0"] = b"damaged"
    write(archive, members)
    with pytest.raises(UserError) as raised:
        share.unpack(archive, tmp_path / "new")
    assert has_facts(str(raised.value), f"{archive}/adapters/rte: ", '"output/bias"', "changed")
    assert ".afjax-" not in str(raised.value)


def test_unusable_heads_are_refused(source: Path, tmp_path: Path, refused: Refused) -> None:
    save(source, "heads", "rte", overwrite=True, config={"max_length": 32})
    share.pack(source, "rte", tmp_path / "x.tar")
    with refused("heads/rte", "values", "afjax", "again"):
        share.unpack(tmp_path / "x.tar", tmp_path / "new")


def test_long_and_non_ascii_names_round_trip(tmp_path: Path) -> None:
    for name in ("ü" * 60, "x" * 200, "a b'c\"[d]`"):
        saved = save(tmp_path / "source", "adapters", name)
        share.pack(tmp_path / "source", name, tmp_path / "x.tar")
        (found,) = share.unpack(tmp_path / "x.tar", tmp_path / "new")
        assert found == shareable(saved)
        assert np.array_equal(
            store.load(tmp_path / "new", "adapters", name).params["output"]["kernel"],
            store.load(tmp_path / "source", "adapters", name).params["output"]["kernel"],
        )
