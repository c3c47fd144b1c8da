"""Tests output to devices and pipes, heads that do not match the loaded model, and empty flags."""

import dataclasses
import json
import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import pytest
from facts import has_facts

from afjax import store
from afjax.bench import step_time as bench
from afjax.cli.main import main
from afjax.distributed import host_memory
from afjax.tpu.program import count_work
from tests.cli.conftest import Refused

pytestmark = pytest.mark.slow

needs_full = pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")


@pytest.fixture
def model(trained: Path, tiny_trunk_folder: Path) -> list[str]:
    return [f"--store={trained / 'run' / 'store'}", f"--trunk={tiny_trunk_folder}"]


@pytest.fixture
def fused(model: list[str]) -> list[str]:
    return [*model, "--fusion=target-fusion", "--head=target-fusion"]


# Outputs.


@needs_full
def test_full_device_is_reported_and_not_replaced(
    trained: Path, fused: list[str], model: list[str], data: Path, refused: Refused, capsys: pytest.CaptureFixture[str]
) -> None:
    output = "--output=/dev/full"
    for words in (
        ["predict", *fused, f"--input={data / 'dev.jsonl'}", output],
        ["table", "houlsby", f"--runs={trained / 'run'}", output],
    ):
        assert has_facts(refused(*words), "/dev/full ", "No space left on device")
    # These commands print before they write, or write several files, so they print more than one line.
    for words in (
        ["adapterdrop", *fused, f"--source={data}", output],
        ["report", f"--workdir={trained / 'run'}", output],
        ["export", "stablehlo", *fused, output, "--max_length=16", "--platforms=cpu"],
        ["plot", "spans", *model, "--adapter=first", "--head=first", f"--source={data}", output],
        ["store", "pack", "first", model[0], output],
    ):
        capsys.readouterr()
        assert main(words) == 2
        assert "/dev/full" in capsys.readouterr().err
        assert stat.S_ISCHR(os.stat("/dev/full").st_mode)
    assert not list(Path("/dev").glob("full?*"))


def test_predictions_can_be_written_to_standard_output(fused: list[str], data: Path, tmp_path: Path) -> None:
    words = ["predict", *fused, f"--input={data / 'dev.jsonl'}"]
    command = [sys.executable, "-m", "afjax", *words, "--output=/dev/stdout"]
    piped = subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout
    assert main([*words, f"--output={tmp_path / 'file.jsonl'}"]) == 0
    assert piped == (tmp_path / "file.jsonl").read_bytes()
    assert len(piped.splitlines()) == 8


def test_archive_is_written_through_a_symlink(model: list[str], tmp_path: Path) -> None:
    (tmp_path / "link.tar").symlink_to("archive.tar")
    assert main(["store", "pack", "first", model[0], f"--output={tmp_path / 'link.tar'}"]) == 0
    assert (tmp_path / "link.tar").is_symlink()
    assert (tmp_path / "archive.tar").stat().st_size > 0


# Heads.


def test_mismatched_head_is_refused(model: list[str], data: Path, refused: Refused, tmp_path: Path) -> None:
    rows, source = f"--input={data / 'dev.jsonl'}", f"--source={data}"
    mixed = [*model, "--adapter=second", "--head=first"]
    for words in (
        ["predict", *mixed, rows, f"--output={tmp_path / 'out'}"],
        ["eval", *mixed, source],
        ["adapterdrop", *mixed, source],
        ["prune", *model, "--fusion=target-fusion", "--head=first", source],
        ["eval", *model, "--head=first", source],
        ["plot", "spans", *mixed, source, f"--output={tmp_path / 'spans'}"],
        ["plot", "activations", *model, "--fusion=target-fusion", "--head=first", f"--output={tmp_path / 'x'}"],
        ["export", "stablehlo", *mixed, f"--output={tmp_path / 'x'}"],
        ["compare", "adapter:second:first", "adapter:first", *model, source],
    ):
        sentence = refused(*words)
        assert has_facts(sentence, 'head "first"', 'adapter "first"', "--allow_mismatch")
    assert main(["eval", *mixed, source, "--allow_mismatch"]) == 0


def test_submit_names_a_head_trained_with_another_adapter(
    trained: Path, store: Path, tiny_trunk_folder: Path, tmp_path: Path
) -> None:
    from afjax import UserError, load_trunk
    from afjax import store as artifacts
    from afjax.cli.submission import submitted_model

    trunk, loaded = load_trunk(str(tiny_trunk_folder)), artifacts.load(store, "adapters", "second")
    manifest = loaded.manifest
    artifacts.save(
        store,
        artifacts.Draft("adapters", "first", loaded.params, config=manifest.config, trunk=manifest.trunk),
        overwrite=True,
    )
    with pytest.raises(UserError, match=r'head "first".*allow_mismatch=True'):
        submitted_model(str(store), trunk, "first")
    assert submitted_model(str(store), trunk, "first", allow_mismatch=True).head_record


@pytest.mark.parametrize("flag", ["adapter", "fusion", "head", "without", "output"])
@pytest.mark.parametrize("words", [["--{}="], ["--{}", ""]])
def test_empty_flag_is_refused(model: list[str], data: Path, refused: Refused, flag: str, words: list[str]) -> None:
    given = [word.format(flag) for word in words]
    sentence = refused("predict", *model, "--head=first", *given, f"--input={data / 'dev.jsonl'}", "--output=x")
    assert f"--{flag} is empty" in sentence


def test_store_show_prints_the_adapter_of_a_head(model: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["store", "show", "first", model[0]]) == 0
    digest = store.read_manifest(model[0].partition("=")[2], "adapters", "first").digest
    assert has_facts(capsys.readouterr().out, "trained", f"adapters/first {digest[:12]}")


# Damaged workdirs.


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("target/result.json", "{"),
        ("target/result.json", "[{}]"),
        ("target/result.json", "[" * 3000),
        ("config.json", "null"),
        ("config.json", "[" * 3000),
        ("inputs.json", "3"),
    ],
)
def test_damaged_workdir_is_refused_and_the_file_named(
    trained: Path, tmp_path: Path, refused: Refused, file: str, text: str
) -> None:
    import shutil

    shutil.copytree(trained / "run", tmp_path / "run")
    (tmp_path / "run" / file).write_text(text)
    for words in (["report", f"--workdir={tmp_path / 'run'}"], ["table", "houlsby", f"--runs={tmp_path / 'run'}"]):
        assert file in refused(*words, f"--output={tmp_path / 'out.html'}")


@pytest.mark.parametrize("line", ["[]", "null", "3", "[" * 3000, '{"step": {}}', "{"])
def test_non_scalar_log_lines_are_skipped(trained: Path, tmp_path: Path, line: str) -> None:
    import shutil

    shutil.copytree(trained / "run", tmp_path / "run")
    for name, contents in (("metrics.jsonl", line + "\n"), ("usage.json", line)):
        (tmp_path / "run" / "target" / name).write_text(contents)
    assert main(["report", f"--workdir={tmp_path / 'run'}", f"--output={tmp_path / 'out.html'}"]) == 0


# Other checks.


@pytest.mark.parametrize(("platform", "scale"), [("darwin", 1), ("linux", 1024)])
def test_peak_memory_is_in_bytes_on_every_platform(monkeypatch: pytest.MonkeyPatch, platform: str, scale: int) -> None:
    import resource

    class Usage:
        ru_maxrss = 10**6

    monkeypatch.setattr(resource, "getrusage", lambda who: Usage())
    monkeypatch.setattr(host_memory.sys, "platform", platform)
    assert host_memory.peak_host_memory() == 10**6 * scale
    assert bench.peak_memory_bytes() == 10**6 * scale


@pytest.mark.parametrize("method", ["adapter", "fusion"])
@pytest.mark.parametrize("mode", ["train", "eval"])
def test_operations_of_a_loop_over_layers_are_counted_for_every_layer(
    method: bench.Method, mode: bench.Mode, tiny_trunk_folder: Path, tmp_path: Path
) -> None:
    values = json.loads((tiny_trunk_folder / "config.json").read_text())
    # The loop has three iterations, because it excludes the last layer.
    (tmp_path / "config.json").write_text(json.dumps({**values, "num_hidden_layers": 4}))
    sizes: dict[str, Any] = {"num_adapters": 2, "batch_size": 2, "max_length": 8}
    case = bench.Case(trunk=str(tmp_path), method=method, mode=mode, **sizes)
    programs = [bench.prepare(dataclasses.replace(case, scan_layers=scan)).compiled for scan in (False, True)]
    straight, loop = (count_work(program.as_text() or "").matmul_flops for program in programs)
    assert loop == pytest.approx(straight, rel=0.01)


@pytest.mark.parametrize(("method", "trunk_dtype"), [("full", "float32"), ("adapter", "bfloat16")])
def test_only_frozen_trunks_are_timed_in_bfloat16(
    method: bench.Method, trunk_dtype: str, tiny_trunk_folder: Path
) -> None:
    sizes: dict[str, Any] = {"num_adapters": 1, "batch_size": 2, "max_length": 8}
    case = bench.Case(trunk=str(tiny_trunk_folder), method=method, mode="train", trunk_dtype="bfloat16", **sizes)
    (state, frozen, *_), _ = bench.prepare(case).compiled.args_info
    kernels = [leaf for leaf in jax.tree.leaves((state, frozen)) if leaf.shape == (32, 64)]
    assert {str(leaf.dtype) for leaf in kernels} == {trunk_dtype}


def test_nothing_is_printed_about_pytorch(tiny_trunk_folder: Path) -> None:
    code = f"import afjax; afjax.load_trunk({str(tiny_trunk_folder)!r}).tokenizer()"
    environment = {name: value for name, value in os.environ.items() if name != "TRANSFORMERS_NO_ADVISORY_WARNINGS"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert "PyTorch" not in done.stdout + done.stderr
