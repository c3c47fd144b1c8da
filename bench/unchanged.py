"""Checks that two checkouts of afjax give the same results.

    python bench/unchanged.py --before=../before --after=. --folder=/tmp/unchanged

Use this script to verify a change that should not affect results. BEFORE and AFTER are the checkouts ``--before`` and
``--after``, and results are written to ``--folder``. To resume, repeat the command. To compare a later AFTER with the
same runs of BEFORE, delete ``FOLDER/after`` first. The script checks four parts:

1. ``train``: Both run ``configs/quickstart.py`` with seed 0. The scores and the digests of all stored arrays must be
   equal.
2. ``resume``: BEFORE is killed in the middle of that run, and AFTER resumes it. The result must be bit-identical.
3. ``store``: Both predict with the store written by BEFORE. The prediction files must be identical.
4. ``tpu``: The costs of compiled TPU programs, such as FLOPs and memory traffic, may differ by at most 0.5%. Compile
   times are not compared.

To compare step times, run ``afjax bench`` alternately in both checkouts.
"""

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

TPU_METHODS = ("full", "head", "pfeiffer", "houlsby", "pals", "fusion")
TOLERANCE = 0.005
TEXTS = ["A man plays the guitar.\tSomebody makes music.", "The cat sleeps.\tThe dog runs in the park."]


class Checkout:
    """A checkout of afjax, and the folder for its results."""

    def __init__(self, source: Path, folder: Path) -> None:
        self.source, self.folder = source.resolve(), folder.resolve()
        self.folder.mkdir(parents=True, exist_ok=True)

    def start(self, *arguments: str, **options: Any) -> "subprocess.Popen[str]":
        environment = {**os.environ, "PYTHONPATH": str(self.source), "JAX_PLATFORMS": "cpu"}
        command = [sys.executable, "-m", "afjax", *arguments]
        return subprocess.Popen(command, cwd=self.source, env=environment, text=True, **options)

    def run(self, *arguments: str) -> str:
        with self.start(*arguments, stdout=subprocess.PIPE) as process:
            output = process.communicate()[0]
        if process.returncode:
            raise SystemExit(
                f"afjax {' '.join(arguments)} in {self.source} failed with exit code {process.returncode}."
            )
        return output

    def train(self, workdir: Path) -> None:
        if not (workdir / "target" / "result.json").exists():
            self.run("train", "--config=configs/quickstart.py", f"--workdir={workdir}")

    @property
    def quickstart(self) -> Path:
        return self.folder / "quickstart"


def results(workdir: Path) -> dict[str, Any]:
    """Collects all scores and the digests of all artifacts from a finished workdir."""
    scores = {str(path.relative_to(workdir)): json.loads(path.read_text()) for path in workdir.rglob("result.json")}
    manifests = [json.loads(path.read_text()) for path in (workdir / "store").rglob("manifest.json")]
    digests = {f"{manifest['kind']}/{manifest['name']}": manifest["leaves"] for manifest in manifests}
    return {"scores": scores, "digests": digests}


def report(part: str, problems: list[str]) -> bool:
    print(f"{part}: {'; '.join(problems) or 'unchanged'}", flush=True)
    return not problems


def differences(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    names = [(kind, name) for kind in before for name in sorted({*before[kind], *after[kind]})]
    return [f"{name} differs" for kind, name in names if before[kind].get(name) != after[kind].get(name)]


def check_train(before: Checkout, after: Checkout) -> bool:
    for checkout in (before, after):
        checkout.train(checkout.quickstart)
    expected = results(before.quickstart)
    for entries in expected["scores"].values():
        for entry in entries:
            print(f"  {entry['name']}: {entry['metrics'][entry['main_metric']]:.4f}")
    return report("train", differences(expected, results(after.quickstart)))


def check_resume(before: Checkout, after: Checkout) -> bool:
    before.train(before.quickstart)
    unfinished, resumed = before.folder / "unfinished", after.folder / "resumed"
    if not unfinished.exists():
        workdir = before.folder / "killed"
        shutil.rmtree(workdir, ignore_errors=True)
        process = before.start("train", "--config=configs/quickstart.py", f"--workdir={workdir}")
        # Kill it once the second source has started, so that the folder contains a finished and an unfinished run.
        while len(list(workdir.glob("sources/*/checkpoints/*"))) < 4:
            assert process.poll() is None, "the run finished before it was killed"
            time.sleep(0.05)
        process.send_signal(signal.SIGKILL)
        process.wait()
        workdir.rename(unfinished)
    if not resumed.exists():
        shutil.copytree(unfinished, resumed)
    after.train(resumed)
    return report("resume", differences(results(before.quickstart), results(resumed)))


def check_store(before: Checkout, after: Checkout) -> bool:
    before.train(before.quickstart)
    texts = before.folder / "texts.tsv"
    texts.write_text("\n".join(["text_a\ttext_b", *TEXTS]) + "\n")
    store, problems = before.quickstart / "store", []
    for option in ("--fusion=target-fusion", "--adapter=entail"):
        predictions = []
        for checkout in (before, after):
            output = checkout.folder / "predictions.jsonl"
            checkout.run("predict", f"--store={store}", option, f"--input={texts}", f"--output={output}")
            predictions.append(output.read_bytes())
        if predictions[0] != predictions[1]:
            problems.append(f"predictions with {option} differ")
    return report("store", problems)


def check_tpu(before: Checkout, after: Checkout) -> bool:
    problems = []
    for method in TPU_METHODS:
        numbers = []
        for checkout in (before, after):
            path = checkout.folder / f"tpu_{method}.json"
            if not path.exists():
                step = ["--topology=v5e:2x2", "--trunk=bert-base", f"--method={method}", "--batch_size=64"]
                path.write_text(checkout.run("tpu", *step, "--no_fit", "--json").splitlines()[-1])
            numbers.append(json.loads(path.read_text()))
        problems += [f"{method}: {problem}" for problem in unequal_numbers(*numbers)]
    return report("tpu", problems)


def unequal_numbers(before: Any, after: Any, name: str = "") -> list[str]:
    """Compares two JSON values, and lists the numbers that differ too much.

    Compile times are ignored.
    """
    if isinstance(before, dict):
        return [
            problem
            for key, value in before.items()
            if "compile" not in key
            for problem in unequal_numbers(value, after.get(key), f"{name}/{key}")
        ]
    if isinstance(before, list):
        pairs = enumerate(zip(before, after, strict=True))
        return [problem for number, pair in pairs for problem in unequal_numbers(*pair, f"{name}/{number}")]
    if isinstance(before, float | int) and isinstance(after, float | int):
        return [] if abs(after - before) <= TOLERANCE * abs(before) else [f"{name} {before} -> {after}"]
    return [] if before == after else [f"{name} {before!r} -> {after!r}"]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", required=True, type=Path, help="checkout without the change")
    parser.add_argument("--after", default=".", type=Path, help="checkout with the change (.)")
    parser.add_argument("--folder", required=True, type=Path, help="folder for runs and outputs")
    checks = {"train": check_train, "resume": check_resume, "store": check_store, "tpu": check_tpu}
    parser.add_argument("--parts", default=",".join(checks), help=f"parts to check ({','.join(checks)})")
    arguments = parser.parse_args()
    parts = arguments.parts.split(",")
    if unknown := [part for part in parts if part not in checks]:
        parser.error(f"unknown --parts: {', '.join(unknown)} (has: {', '.join(checks)})")
    checkouts = [Checkout(getattr(arguments, name), arguments.folder / name) for name in ("before", "after")]
    results = [checks[part](*checkouts) for part in parts]
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
