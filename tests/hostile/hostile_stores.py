"""Hostile stores: damaged manifests, arrays and archives, mismatched adapters and heads, and bad names."""

import gzip
import io
import tarfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from hostile_case import (
    DEEP,
    DIGITS,
    EVAL,
    LONG,
    NOT_AN_OBJECT,
    OUTSIDE,
    PREDICT,
    TRAIN,
    Case,
    Damage,
    Drop,
    Raw,
    append,
    changed,
    cut,
    edit_json,
    flip,
    link,
    link_loop,
    make_folder,
    plain,
    remove,
    write,
)

ADAPTER, HEAD, FUSION = "store/adapters/first", "store/heads/first", "store/fusion/target-fusion"
MANIFEST = f"{ADAPTER}/manifest.json"
VERIFY = ("store", "verify", "--store=store")
SHOW = ("store", "show", "first", "--store=store")
LIST = ("store", "ls", "--store=store")
PACK = ("store", "pack", "first", "--store=store", "--output=new.tar")
FUSED = changed(PREDICT, "--adapter", "--fusion=target-fusion", "--head=target-fusion")
KEYS = {
    "format_version": ("1", None, 99, True),
    "kind": ("heads", 3, None),
    "name": ("second", 3, None),
    "config": ([], "bottleneck", None),
    "task": ([], 3, None),
    "labels": ("few", [1], None),
    "trunk": ([], "trunk", None),
    "leaves": ([], 3, None),
    "files": ([], 3, None),
    "metrics": ([], 3, None),
    "seed": ("0", 0.5, None),
    "versions": ([], 3, None),
    "adapters": ({}, "first", None),
    "created": (3, [], None),
    "manifest_sha256": ("0" * 64, 3, None),
}


def manifests() -> Iterator[Case]:
    readers = {"predict": PREDICT, "verify": VERIFY, "pack": PACK}
    for index, (key, wrong) in enumerate(KEYS.items()):
        for number, value in enumerate((Drop, *wrong)):
            # To save time, each change is tested with only one of the commands.
            command = tuple(readers)[(index + number) % len(readers)]
            damage = edit_json(MANIFEST, {key: value})
            yield Case(f"manifest/{command}-{key}-{plain(value)}", readers[command], (damage,))
    for name, contents in NOT_AN_OBJECT.items():
        yield Case(f"manifest/predict-{name}", PREDICT, (write(MANIFEST, contents),))
        yield Case(f"manifest/verify-{name}", VERIFY, (write(MANIFEST, contents),))
    for name in ("null", "list", "deep-object", "many-digits", "latin-1"):
        damage = (write(MANIFEST, NOT_AN_OBJECT[name]),)
        yield Case(f"manifest/show-{name}", SHOW, damage)
        yield Case(f"manifest/pack-{name}", PACK, damage)
        yield Case(f"manifest/list-{name}", LIST, damage, wanted="clean")
        yield Case(f"manifest/head-{name}", PREDICT, (write(f"{HEAD}/manifest.json", NOT_AN_OBJECT[name]),))
        yield Case(f"manifest/fusion-{name}", FUSED, (write(f"{FUSION}/manifest.json", NOT_AN_OBJECT[name]),))
    for name, damage in (
        ("missing", remove(MANIFEST)),
        ("folder", make_folder(MANIFEST)),
        ("link-to-itself", link_loop(MANIFEST)),
        ("cut-off", cut(MANIFEST, 0.5)),
        ("last-line-missing", cut(MANIFEST, 0.99)),
        ("unknown-key", edit_json(MANIFEST, {"extra": 1})),
        ("deep-config", edit_json(MANIFEST, {"config": Raw(DEEP)})),
        ("deep-metrics", edit_json(MANIFEST, {"metrics": Raw('{"a":' * 5000 + "1" + "}" * 5000)})),
        ("seed-of-many-digits", edit_json(MANIFEST, {"seed": Raw(DIGITS)})),
        ("seed-nan", edit_json(MANIFEST, {"seed": Raw("NaN")})),
        *((f"flipped-at-{share}", flip(MANIFEST, share)) for share in (0.01, 0.1, 0.3, 0.5, 0.7, 0.9, 0.98)),
    ):
        yield Case(f"manifest/predict-{name}", PREDICT, (damage,))
        yield Case(f"manifest/verify-{name}", VERIFY, (damage,))


# Forged manifests, with a wrong value but a correct checksum.
SEALED: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "config-kind-misspelled": (ADAPTER, {"config.kind": "bottelneck"}),
    "config-kind-missing": (ADAPTER, {"config.kind": Drop}),
    "config-kind-list": (ADAPTER, {"config.kind": []}),
    "config-of-another-kind": (ADAPTER, {"config": {"kind": "pal"}}),
    "config-empty": (ADAPTER, {"config": {}}),
    "config-unknown-key": (ADAPTER, {"config.foo": 1}),
    "config-size-text": (ADAPTER, {"config.size": "64"}),
    "config-size-huge": (ADAPTER, {"config.size": 10**11}),
    "config-size-other": (ADAPTER, {"config.size": 7}),
    "config-scaling-nan": (ADAPTER, {"config.scaling": Raw("NaN")}),
    "config-scaling-infinity": (ADAPTER, {"config.scaling": Raw("1e999")}),
    "config-layers-beyond": (ADAPTER, {"config.layers": [5]}),
    "config-activation-null": (ADAPTER, {"config.activation": None}),
    "trunk-empty": (ADAPTER, {"trunk": {}}),
    "trunk-sha256-number": (ADAPTER, {"trunk.sha256": 3}),
    "trunk-sha256-list": (ADAPTER, {"trunk.sha256": []}),
    "trunk-sha256-other": (ADAPTER, {"trunk.sha256": "0" * 64}),
    "leaves-empty": (ADAPTER, {"leaves": {}}),
    "leaf-null": (ADAPTER, {"leaves.ffn/down/kernel": None}),
    "leaf-too-many": (ADAPTER, {"leaves.extra": {"shape": [1], "dtype": "float32", "sha256": "0" * 64}}),
    "files-empty": (ADAPTER, {"files": {}}),
    "files-lead-out": (ADAPTER, {"files": {"../../../rows.jsonl": "0" * 64}}),
    "files-numbers": (ADAPTER, {"files": {"_METADATA": 3}}),
    "name-leads-out": (ADAPTER, {"name": "../second"}),
    "head-config-empty": (HEAD, {"config": {}}),
    "head-outputs-negative": (HEAD, {"config.num_outputs": -1}),
    "head-outputs-huge": (HEAD, {"config.num_outputs": 10**10}),
    "head-outputs-text": (HEAD, {"config.num_outputs": "2"}),
    "head-outputs-other": (HEAD, {"config.num_outputs": 3}),
    "head-max_length-negative": (HEAD, {"config.max_length": -1}),
    "head-max_length-text": (HEAD, {"config.max_length": "16"}),
    "head-max_length-huge": (HEAD, {"config.max_length": 10**12}),
    "head-task-kind-misspelled": (HEAD, {"task.kind": "clasification"}),
    "head-task-kind-list": (HEAD, {"task.kind": []}),
    "head-task-name-number": (HEAD, {"task.name": 3}),
    "head-task-unknown-key": (HEAD, {"task.foo": 1}),
    "head-task-metric-misspelled": (HEAD, {"task.metric": "acuracy"}),
    "head-task-scale-zero": (HEAD, {"task.scale": 0}),
    "head-labels-empty": (HEAD, {"labels": []}),
    "head-labels-too-few": (HEAD, {"labels": ["few"]}),
    "head-labels-too-many": (HEAD, {"labels": ["few", "many", "none"]}),
    "head-labels-twice": (HEAD, {"labels": ["few", "few"]}),
    "head-labels-empty-name": (HEAD, {"labels": ["few", ""]}),
    "head-labels-lists": (HEAD, {"labels": [["few"], ["many"]]}),
    "fusion-no-adapters": (FUSION, {"adapters": []}),
    "fusion-adapters-text": (FUSION, {"adapters": ["first", "second"]}),
    "fusion-adapter-without-a-digest": (FUSION, {"adapters.0.sha256": Drop}),
    "fusion-adapter-of-another-digest": (FUSION, {"adapters.0.sha256": "0" * 64}),
    "fusion-adapter-missing": (FUSION, {"adapters.0.name": "third"}),
    "fusion-adapter-twice": (FUSION, {"adapters.1.name": "first"}),
    "fusion-adapter-leads-out": (FUSION, {"adapters.0.name": "../../adapters/first"}),
    "fusion-adapter-name-number": (FUSION, {"adapters.0.name": 3}),
    "fusion-config-temperature-zero": (FUSION, {"config.temperature": 0}),
    "fusion-config-temperature-text": (FUSION, {"config.temperature": "1"}),
    "fusion-config-kept-beyond": (FUSION, {"config.kept": [[[5], [5]]]}),
    "fusion-config-subset-huge": (FUSION, {"config.subset": 99}),
}


# Changes that do not affect predictions: missing default values, and settings that prediction does not use.
CHANGES_NOTHING = ("config-kind-missing", "config-empty", "fusion-config-subset-huge", "head-task-metric-misspelled")


def sealed_manifests() -> Iterator[Case]:
    for name, (folder, change) in SEALED.items():
        argv = FUSED if name.startswith("fusion-") else PREDICT
        damage = edit_json(f"{folder}/manifest.json", change, seal=True)
        huge = name in ("config-size-huge", "head-outputs-huge", "head-max_length-huge")
        wanted = "clean" if name in CHANGES_NOTHING else "refused"
        yield Case(f"sealed-manifest/{name}", argv, (damage,), separate=huge, wanted=wanted)


# Hostile arrays. Orbax gives data files random names, so damage the largest file in a folder.


def _data_file(sandbox: Path, folder: str) -> str:
    files = [path for path in (sandbox / folder).rglob("*") if path.is_file()]
    largest = max(files, key=lambda path: (path.stat().st_size, path.name))
    return largest.relative_to(sandbox).as_posix()


def of_data(folder: str, damage: Callable[[str], Damage]) -> Damage:
    """Returns a change that damages a folder's largest file, which contains the largest array's data."""
    return lambda sandbox: damage(_data_file(sandbox, folder))(sandbox)


def arrays() -> Iterator[Case]:
    for place, folder, argv in (
        ("adapter", f"{ADAPTER}/params", PREDICT),
        ("head", f"{HEAD}/params", PREDICT),
        ("fusion", f"{FUSION}/params", FUSED),
    ):
        kinds: dict[str, Damage] = {
            "folder-missing": remove(folder),
            "folder-empty": make_folder(folder),
            "folder-is-a-file": write(folder, b""),
            "folder-links-to-itself": link_loop(folder),
            "file-too-many": write(f"{folder}/extra", b"1"),
            "metadata-missing": remove(f"{folder}/_METADATA"),
            "metadata-null": write(f"{folder}/_METADATA", b"null"),
            "metadata-deep": write(f"{folder}/_METADATA", NOT_AN_OBJECT["deep-object"]),
            "metadata-flipped": flip(f"{folder}/_METADATA", 0.5),
            "data-missing": of_data(folder, remove),
            "data-empty": of_data(folder, lambda path: write(path, b"")),
            "data-half": of_data(folder, lambda path: cut(path, 0.5)),
            "data-flipped": of_data(folder, lambda path: flip(path, 0.6)),
            "data-longer": of_data(folder, lambda path: append(path, b"0")),
            "data-folder": of_data(folder, make_folder),
            "data-links-to-itself": of_data(folder, link_loop),
        }
        for name, damage in kinds.items():
            yield Case(f"arrays/{place}-{name}", argv, (damage,))
    yield Case("arrays/verify-data-flipped", VERIFY, (of_data(ADAPTER, lambda path: flip(path, 0.6)),))
    yield Case("arrays/pack-data-flipped", PACK, (of_data(ADAPTER, lambda path: flip(path, 0.6)),))


# Mismatched adapters, fusions and heads, and names that are not in the store.
PAIRINGS: Mapping[str, tuple[str, ...]] = {
    "head-of-another-adapter": ("--adapter=second",),
    "head-of-an-adapter-with-a-fusion": ("--adapter", "--fusion=target-fusion"),
    "head-of-a-fusion-with-an-adapter": ("--head=target-fusion",),
    "only-the-head-of-an-adapter": ("--adapter",),
    "only-the-head-of-a-fusion": ("--adapter", "--head=target-fusion"),
    "empty-adapter": ("--adapter=",),
    "empty-fusion": ("--adapter", "--fusion="),
    "blank-adapter": ("--adapter= ",),
    "empty-head": ("--head=",),
    "adapter-and-fusion": ("--fusion=target-fusion",),
    "unknown-adapter": ("--adapter=frist",),
    "unknown-head": ("--head=frist",),
    "unknown-fusion": ("--adapter", "--fusion=target"),
    "adapter-by-path": ("--adapter=../adapters/first",),
    "adapter-with-a-slash": ("--adapter=first/",),
    "adapter-dot": ("--adapter=.",),
    "adapter-dots": ("--adapter=..",),
    "adapter-of-300-characters": (f"--adapter={LONG}",),
    "adapter-half-a-surrogate": ("--adapter=\udcff",),
    "fusion-as-an-adapter": ("--adapter=target-fusion",),
    "adapter-as-a-fusion": ("--adapter", "--fusion=first"),
    "drop-a-layer-beyond": ("--drop_layers=9",),
    "drop-a-negative-layer": ("--drop_layers=-1",),
    "drop-an-empty-list": ("--drop_layers=",),
    "drop-a-word": ("--drop_layers=first",),
    "drop-many-digits": (f"--drop_layers={DIGITS}",),
    "drop-a-superscript": ("--drop_layers=²",),
    "drop-nothing-between-commas": ("--drop_layers=0,,1",),
    "without-but-no-fusion": ("--without=first",),
    "with-but-no-fusion": ("--with=second",),
    "without-unknown": ("--adapter", "--fusion=target-fusion", "--head=target-fusion", "--without=third"),
    "without-all": ("--adapter", "--fusion=target-fusion", "--head=target-fusion", "--without=first,second"),
    "with-unknown": ("--adapter", "--fusion=target-fusion", "--head=target-fusion", "--with=third"),
    "with-twice": ("--adapter", "--fusion=target-fusion", "--head=target-fusion", "--with=first"),
    "store-missing": ("--store=nowhere",),
    "store-empty": ("--store=",),
    "store-file": ("--store=rows.jsonl",),
    "store-loop": ("--store=loop",),
    "store-300-characters": (f"--store={LONG}",),
    "store-http": ("--store=http://x/y",),
}
STABLEHLO = ("export", "stablehlo", *PREDICT[1:5], "--output=new.stablehlo", "--platforms=cpu")
DROP = ("adapterdrop", *PREDICT[1:5], "--source=data")
PRUNE = ("prune", *PREDICT[1:5], "--source=data")


def pairings() -> Iterator[Case]:
    commands = {"predict": PREDICT, "eval": EVAL, "stablehlo": STABLEHLO, "adapterdrop": DROP, "prune": PRUNE}
    for index, (name, flags) in enumerate(PAIRINGS.items()):
        for number, (command, argv) in enumerate(commands.items()):
            if command == "predict" or index < 6 or index % 4 == number - 1:
                yield Case(f"pairing/{command}-{name}", changed(argv, *flags), (link_loop("loop"),))


# Hostile archives.


def archive(change: Callable[[list[tuple[tarfile.TarInfo, bytes]]], object], tail: bytes | None = None) -> Damage:
    """Returns a change that repacks ``packed.tar`` with changed members and appends ``tail``."""

    def damage(sandbox: Path) -> None:
        with tarfile.open(sandbox / "packed.tar") as tar:
            members = [(member, tar.extractfile(member).read()) for member in tar]  # type: ignore[union-attr]
        change(members)
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT, errors="surrogateescape") as tar:
            for member, contents in members:
                if member.isreg():
                    member.size = len(contents)
                tar.addfile(member, io.BytesIO(contents))
        (sandbox / "packed.tar").write_bytes(buffer.getvalue() + (tail or b""))

    return damage


def added(name: str, kind: bytes = tarfile.REGTYPE, *, target: str = "", contents: bytes = b"evil") -> Damage:
    """Returns a change that adds a member to the archive."""

    def change(members: list[tuple[tarfile.TarInfo, bytes]]) -> None:
        member = tarfile.TarInfo(name)
        member.type, member.linkname = kind, target
        if kind in (tarfile.CHRTYPE, tarfile.BLKTYPE):
            member.devmajor, member.devminor = 1, 7
        members.append((member, contents if kind == tarfile.REGTYPE else b""))

    return archive(change)


def renamed(old: str, new: str) -> Damage:
    """Returns a change that replaces ``old`` in the names of all archive members."""

    def change(members: list[tuple[tarfile.TarInfo, bytes]]) -> None:
        for member, _ in members:
            member.name = member.name.replace(old, new)

    return archive(change)


def _with_manifest(contents: bytes) -> Damage:
    def change(members: list[tuple[tarfile.TarInfo, bytes]]) -> None:
        members[:] = [
            (member, contents if member.name == "adapters/first/manifest.json" else old) for member, old in members
        ]

    return archive(change)


def _only(keep: Callable[[str], bool]) -> Damage:
    def change(members: list[tuple[tarfile.TarInfo, bytes]]) -> None:
        members[:] = [(member, contents) for member, contents in members if keep(member.name)]

    return archive(change)


def _repeat(members: list[tuple[tarfile.TarInfo, bytes]]) -> None:
    members.append(members[-1])


def _as_links(kind: bytes, target: str) -> Damage:
    """Returns a change that replaces every file in a ``params`` folder of the archive with a link."""

    def change(members: list[tuple[tarfile.TarInfo, bytes]]) -> None:
        for member, _ in members:
            if "/params/" in member.name:
                member.type, member.linkname = kind, target

    return archive(change)


MEMBER_NAMES = {
    "parent": "../evil",
    "grandparents": "/".join([".."] * 30) + OUTSIDE,
    "absolute": OUTSIDE,
    "through-a-kind": "adapters/../evil",
    "through-an-artifact": "adapters/first/../../../evil",
    "through-params": "adapters/first/params/../../../../evil",
    "dot": "adapters/./first/params/evil",
    "leading-dot": "./evil",
    "double-slash": "adapters//first/params/evil",
    "trailing-slash": "adapters/first/params/",
    "backslash": "adapters\\first\\params\\evil",
    "backslash-parent": "..\\evil",
    "drive": "C:/evil",
    "line-break": "adapters/first/params/a\nb",
    "escape": "adapters/first/params/\x1b[31m",
    "right-to-left": "adapters/first/params/\u202eevil",
    "not-utf-8": "adapters/first/params/\udcff",
    "space": " ",
    "300-characters": f"adapters/first/params/{LONG}",
    "300-characters-as-a-name": f"adapters/{LONG}/params/x",
    "5000-characters": "adapters/first/params/" + "a/" * 2500 + "b",
    "hidden-artifact": "adapters/.hidden/params/evil",
    "other-kind": "models/first/params/evil",
    "file-at-the-top": "evil.py",
    "config-of-the-store": ".lock",
    "file-next-to-params": "adapters/first/evil",
    "artifact-without-a-manifest": "adapters/third/params/evil",
    "file-too-many": "adapters/first/params/evil",
    "colon": "adapters/a:b/params/evil",
    "folder-and-file": "adapters/first/manifest.json/evil",
}
MEMBER_KINDS = {
    "symbolic-link": (tarfile.SYMTYPE, "/etc/passwd"),
    "symbolic-link-out": (tarfile.SYMTYPE, "../../../.."),
    "hard-link": (tarfile.LNKTYPE, "/etc/passwd"),
    "hard-link-within": (tarfile.LNKTYPE, "adapters/first/manifest.json"),
    "device": (tarfile.CHRTYPE, ""),
    "block-device": (tarfile.BLKTYPE, ""),
    "pipe": (tarfile.FIFOTYPE, ""),
    "folder": (tarfile.DIRTYPE, ""),
    "sparse": (tarfile.GNUTYPE_SPARSE, ""),
    "contiguous": (tarfile.CONTTYPE, ""),
    "unknown": (b"Z", ""),
}


def _cut_in_the_last_member(sandbox: Path) -> None:
    with tarfile.open(sandbox / "packed.tar") as tar:
        end = tar.getmembers()[-1].offset_data + 1
    contents = (sandbox / "packed.tar").read_bytes()
    (sandbox / "packed.tar").write_bytes(contents[:end])


def _forged_size(sandbox: Path) -> None:
    """Adds a header that claims an 8 GiB file."""
    member = tarfile.TarInfo("adapters/first/params/evil")
    member.size = 2**33
    contents = (sandbox / "packed.tar").read_bytes()
    (sandbox / "packed.tar").write_bytes(member.tobuf() + contents)


ARCHIVES: Mapping[str, Damage] = {
    **{f"name-{name}": added(member) for name, member in MEMBER_NAMES.items()},
    **{
        f"kind-{name}": added("adapters/first/params/evil", kind, target=to)
        for name, (kind, to) in MEMBER_KINDS.items()
    },
    **{f"manifest-{name}": _with_manifest(contents) for name, contents in NOT_AN_OBJECT.items()},
    "arrays-are-symbolic-links": _as_links(tarfile.SYMTYPE, "../manifest.json"),
    "arrays-are-hard-links": _as_links(tarfile.LNKTYPE, "adapters/first/manifest.json"),
    "member-twice": archive(_repeat),
    "name-changed": renamed("adapters/first", "adapters/third"),
    "kind-changed": renamed("adapters/first", "heads/other"),
    "all-lead-out": renamed("adapters/", "../adapters/"),
    "no-manifest": _only(lambda name: not name.endswith("manifest.json")),
    "manifests-only": _only(lambda name: name.endswith("manifest.json")),
    "card-only": _only(lambda name: name == "README.md"),
    "no-members": _only(lambda name: False),
    "not-utf-8-manifest": _with_manifest(b"\xff\xfe"),
    "garbage-at-the-end": archive(lambda members: None, tail=b"garbage" * 1000),
    "another-archive-at-the-end": archive(lambda members: None, tail=bytes(20480) + b"x"),
    "forged-size": _forged_size,
    **{f"cut-at-{share}": cut("packed.tar", share) for share in (0.0, 0.001, 0.01, 0.1, 0.5)},
    **{f"flipped-at-{share}": flip("packed.tar", share) for share in (0.0, 0.2, 0.4, 0.6)},
    "cut-in-the-last-member": _cut_in_the_last_member,
    "text": write("packed.tar", b"not an archive\n"),
    "zeros": write("packed.tar", bytes(10240)),
    "zip": write("packed.tar", b"PK\x03\x04" + bytes(600)),
    "missing": remove("packed.tar"),
    "folder": make_folder("packed.tar"),
    "link-to-itself": link_loop("packed.tar"),
    "device": link("packed.tar", "/dev/null"),
    "gzipped": lambda sandbox: (sandbox / "packed.tar").write_bytes(
        gzip.compress((sandbox / "packed.tar").read_bytes(), mtime=0)
    ),
}
UNPACK = ("store", "unpack", "packed.tar", "--store=new")


def archives() -> Iterator[Case]:
    for index, (name, damage) in enumerate(ARCHIVES.items()):
        yield Case(f"archive/{name}", UNPACK, (damage,))
        if index % 5 == 0:
            yield Case(f"archive/overwrite-{name}", (*changed(UNPACK, "--store=store"), "--overwrite"), (damage,))
    yield Case("archive/name-is-taken", changed(UNPACK, "--store=store"))
    for name, store in (("file", "rows.jsonl"), ("below-a-file", "rows.jsonl/x"), ("long", LONG)):
        yield Case(f"archive/into-a-{name}", changed(UNPACK, f"--store={store}"))


# Hostile artifact names.
NAMES = {
    "dot": ".",
    "dots": "..",
    "hidden": ".hidden",
    "slash": "a/b",
    "leads-out": "../../x",
    "absolute": OUTSIDE,
    "backslash": "a\\b",
    "colon": "a:b",
    "comma": "a,b",
    "space-before": " a",
    "space-after": "a ",
    "only-spaces": "  ",
    "line-break": "a\nb",
    "nul": "a\0b",
    "escape": "\x1b[31ma",
    "right-to-left": "a\u202eb",
    "zero-width": "a\u200b",
    "half-a-surrogate": "\udcff",
    "256-characters": "a" * 256,
    "300-characters": LONG,
    "128-characters-of-three-bytes": "\u20ac" * 128,
    "5000-characters": "a" * 5000,
}


def names() -> Iterator[Case]:
    fused = ("prune", *FUSED[1:3], "--fusion=target-fusion", "--head=target-fusion", "--source=data", "--keep=1")
    for name, given in NAMES.items():
        yield Case(f"names/train-{name}", (*TRAIN, f"--config.name={given!r}"))
        yield Case(f"names/task-{name}", (*TRAIN, f"--config.task.name={given!r}"))
        if name == "nul":  # A command-line argument cannot contain NUL.
            continue
        yield Case(f"names/unpack-{name}", (*UNPACK, f"--name={given}"))
        yield Case(f"names/prune-{name}", (*fused, f"--name={given}"))
        yield Case(f"names/pack-{name}", ("store", "pack", given, "--store=store", "--output=new.tar"))
        yield Case(f"names/show-{name}", ("store", "show", given, "--store=store"))
    yield Case("names/task-empty", (*TRAIN, "--config.task.name=''"))
    yield Case("names/pack-empty", ("store", "pack", "", "--store=store", "--output=new.tar"))
    yield Case("names/show-empty", ("store", "show", "", "--store=store"))


def cases() -> Iterator[Case]:
    for family in (manifests, sealed_manifests, arrays, pairings, archives, names):
        yield from family()
