"""Archives are read without unpacking, and no member can refer to a file outside the archive."""

import io
import stat
import tarfile
import zipfile
from pathlib import Path

import pytest

from afjax.data.sources import archives
from afjax.data.sources.archives import read_archive
from afjax.errors import UserError


def write_archive(path: Path, members: dict[str, bytes], links: dict[str, tuple[bytes, str]] | None = None) -> Path:
    with tarfile.open(path, "w:gz") as tar:
        for name, content in members.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
        for name, (kind, target) in (links or {}).items():
            entry = tarfile.TarInfo(name)
            entry.type, entry.linkname = kind, target
            tar.addfile(entry)
    return path


def write_zip(path: Path, members: dict[str, bytes], links: dict[str, str] | None = None) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as packed:
        for name, content in members.items():
            packed.writestr(name, content)
        for name, target in (links or {}).items():
            entry = zipfile.ZipInfo(name)
            entry.external_attr = (stat.S_IFLNK | 0o777) << 16
            packed.writestr(entry, target)
    return path


def everything(name: str) -> bool:
    return True


def refused(path: Path, *words: str) -> None:
    with pytest.raises(UserError) as caught:
        list(read_archive(path, everything))
    for word in (str(path), *words):
        assert word in str(caught.value)


def test_wanted_files_keep_the_order_of_the_archive(tmp_path: Path) -> None:
    path = write_archive(tmp_path / "a.tar.gz", {"./b/two": b"2", "a/one": b"1", "c": b"3"})
    assert list(read_archive(path, lambda name: name != "c")) == [("b/two", b"2"), ("a/one", b"1")]


@pytest.mark.parametrize("name", ["/etc/one", "../one", "a/../../one", "a/../one", "..\\one", "C:\\one"])
def test_members_outside_the_archive_are_refused(tmp_path: Path, name: str) -> None:
    refused(write_archive(tmp_path / "a.tar.gz", {"fine": b"", name: b"1"}), name, "leads out")


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE])
@pytest.mark.parametrize("target", ["/etc/passwd", "../../one", "../.."])
def test_links_out_of_the_archive_are_refused(tmp_path: Path, kind: bytes, target: str) -> None:
    refused(write_archive(tmp_path / "a.tar.gz", {}, {"a/link": (kind, target)}), "a/link", target)


def test_internal_links_are_not_followed(tmp_path: Path) -> None:
    links = {"a/soft": (tarfile.SYMTYPE, "../b"), "a/hard": (tarfile.LNKTYPE, "b")}
    assert list(read_archive(write_archive(tmp_path / "a.tgz", {"b": b"1"}, links), everything)) == [("b", b"1")]


@pytest.mark.parametrize("kept", [0.0, 0.02, 0.5, 0.95])
def test_truncated_archive_is_refused(tmp_path: Path, kept: float) -> None:
    contents = {f"{number}": bytes(str(number**50), "ascii") * 50 for number in range(50)}
    path = write_archive(tmp_path / "a.tar.gz", contents)
    raw = path.read_bytes()
    path.write_bytes(raw[: int(kept * len(raw))])
    refused(path, "truncated", "download it again")


def test_damaged_archive_is_refused(tmp_path: Path) -> None:
    path = write_archive(tmp_path / "a.tar.gz", {str(number): str(number**500).encode() for number in range(50)})
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 2] ^= 0xFF
    path.write_bytes(raw)
    refused(path, "download it again")


def test_file_that_is_not_an_archive_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.tar.gz").write_text("text")
    refused(tmp_path / "a.tar.gz", ".tar.gz archive")
    refused(tmp_path / "b.tar.gz", "cannot be read")


# Zip archives.


def test_zip_archive_and_tarball_give_the_same_files(tmp_path: Path) -> None:
    path = write_zip(tmp_path / "a.zip", {"b/": b"", "./b/two": b"2", "a/one": b"1", "c": b"3"}, {"a/link": "one"})
    assert list(read_archive(path, lambda name: name != "c")) == [("b/two", b"2"), ("a/one", b"1")]


@pytest.mark.parametrize("name", ["/etc/one", "../one", "a/../../one", "C:\\one"])
def test_zip_members_outside_the_archive_are_refused(tmp_path: Path, name: str) -> None:
    refused(write_zip(tmp_path / "a.zip", {"fine": b"", name: b"1"}), name.replace("\\", "/")[-3:], "leads out")


@pytest.mark.parametrize("target", ["/etc/passwd", "../../one"])
def test_zip_links_out_of_the_archive_are_refused(tmp_path: Path, target: str) -> None:
    refused(write_zip(tmp_path / "a.zip", {}, {"a/link": target}), "a/link", target)


@pytest.mark.parametrize("write", [write_archive, write_zip])
def test_too_large_members_are_refused(write: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archives, "MAX_MEMBER_BYTES", 1000)
    path = write(  # type: ignore[operator]
        tmp_path / f"a{'.zip' if write is write_zip else '.tgz'}", {"small": b"1", "big": bytes(1001)}
    )
    refused(path, "big", "1,001", "1,000")
    assert list(read_archive(path, lambda name: name == "small")) == [("small", b"1")]


@pytest.mark.parametrize("kept", [0.0, 0.5, 0.98])
def test_truncated_and_damaged_zip_archives_are_refused(tmp_path: Path, kept: float) -> None:
    path = write_zip(tmp_path / "a.zip", {str(number): str(number**500).encode() for number in range(50)})
    raw = bytearray(path.read_bytes())
    path.write_bytes(raw[: int(kept * len(raw))])
    refused(path, ".zip", "download it again")
    raw[len(raw) // 3] ^= 0xFF
    path.write_bytes(raw)
    refused(path, "download it again")


def test_encrypted_zip_archive_is_refused(tmp_path: Path) -> None:
    raw = bytearray(write_zip(tmp_path / "a.zip", {"one": b"1"}).read_bytes())
    # Set the encryption bit in the member's header and in the archive's directory.
    for signature, offset in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        raw[raw.index(signature) + offset] |= 1
    (tmp_path / "a.zip").write_bytes(raw)
    refused(tmp_path / "a.zip", "one", "encrypted")
