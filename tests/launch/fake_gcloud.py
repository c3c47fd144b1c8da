"""A fake gcloud with one slice.

The state of the slice is a file, and its workers are local folders. ``FAKE_CLOUD`` is a folder with these entries:

- ``cloud.json``: the state of the cloud, and planned errors and answers.
- ``calls.jsonl``: the arguments of all calls.
- ``worker-N``: the home folder of a worker.
- ``bin``: the commands of the workers.
"""

# Other modules are imported in the functions that need them, so that most calls start faster.
import json
import os
import sys

FOLDER = os.environ["FAKE_CLOUD"]


def main(arguments: list[str]) -> int:
    with open(f"{FOLDER}/calls.jsonl", "a") as file:
        file.write(json.dumps(arguments) + "\n")
    with open(f"{FOLDER}/cloud.json") as file:
        cloud = json.load(file)
    try:
        if arguments[:2] == ["config", "list"]:
            print(cloud["answers"].get("config list", json.dumps(cloud["settings"])))
            return 0
        assert arguments[:2] == ["compute", "tpus"], arguments
        assert arguments[-1] == "--quiet", "without --quiet, gcloud may wait for an answer"
        group, verb, name, *flags = arguments[2:]
        planned = cloud["errors"].get(f"{group} {verb}", [])
        if planned and (error := planned.pop(0)):
            return api_error(f"(gcloud.compute.tpus.{group}.{verb}) {error}")
        if f"{group} {verb}" in cloud["answers"]:
            print(cloud["answers"][f"{group} {verb}"])
            return 0
        if verb in ("ssh", "scp"):
            return ssh_or_scp(cloud, verb, [name, *flags])
        return {"create": create, "describe": describe, "delete": delete}[verb](cloud, group, name, flags)
    finally:
        # Write atomically, because a test may kill this process.
        with open(f"{FOLDER}/cloud.json.part", "w") as file:
            json.dump(cloud, file)
        os.replace(f"{FOLDER}/cloud.json.part", f"{FOLDER}/cloud.json")


def create(cloud: dict, group: str, name: str, flags: list[str]) -> int:
    assert group == "queued-resources"
    assert f"--node-id={name}" in flags
    if cloud["request"]:
        return api_error("(gcloud.x) ALREADY_EXISTS: Resource already exists")
    cloud["request"] = cloud["grants"].pop(0) if len(cloud["grants"]) > 1 else cloud["grants"][0]
    if cloud["request"][-1] == "ACTIVE":
        cloud["node"] = "READY"
    return 0


def describe(cloud: dict, group: str, name: str, flags: list[str]) -> int:
    if group == "queued-resources":
        if not cloud["request"]:
            return not_found(group, name)
        states = cloud["request"]
        state = states.pop(0) if len(states) > 1 else states[0]
        failed = {"failedData": {"error": {"message": "Internal\nstockout"}}} if state == "FAILED" else {}
        print(json.dumps({"name": name, "state": {"state": state, **failed}}))
        return 0
    # The node does not exist until its request is active.
    if not cloud["node"] or (cloud["request"] and len(cloud["request"]) > 1):
        return not_found("nodes", name)
    endpoints = [{"ipAddress": f"10.0.0.{worker}"} for worker in range(cloud["workers"])]
    print(json.dumps({"name": name, "state": cloud["node"], "networkEndpoints": endpoints}))
    return 0


def delete(cloud: dict, group: str, name: str, flags: list[str]) -> int:
    if group == "queued-resources":
        assert "--force" in flags
        cloud["request"] = []
    cloud["node"] = ""
    delete_workers(cloud)
    return 0


def ssh_or_scp(cloud: dict, verb: str, arguments: list[str]) -> int:
    """Runs the command of ssh on the selected workers, or copies the file of scp."""
    import shlex
    import shutil
    import subprocess

    flags = dict(argument[2:].split("=", 1) for argument in arguments if argument.startswith("--") and "=" in argument)
    # The command is: bash -c SCRIPT worker FUNCTION ...
    function = "".join(shlex.split(flags.get("command", ""))[4:5])
    busy = all(os.path.exists(f"{FOLDER}/worker-{worker}/waiting") for worker in range(cloud["workers"]))
    if function == "status" and busy and cloud["preemptions"]:
        cloud.update(preemptions=cloud["preemptions"] - 1, request=["SUSPENDED"], node="PREEMPTED")
        delete_workers(cloud)
    if cloud["node"] != "READY":
        print("ERROR: (gcloud.x) the TPU is in a bad state", file=sys.stderr)
        return 255
    code = 0
    for worker in range(cloud["workers"]) if flags["worker"] == "all" else [int(flags["worker"])]:
        if worker in cloud["unreachable"].get(function, []):
            cloud["unreachable"][function].remove(worker)
            print(f"##### Command execution on worker {worker} failed with exit status 255.", file=sys.stderr)
            code = 255
            continue
        home = f"{FOLDER}/worker-{worker}"
        os.makedirs(home, exist_ok=True)
        if verb == "scp":
            shutil.copy(arguments[0], f"{home}/{arguments[1].split(':', 1)[1]}")
            continue
        environment = {
            "HOME": home,
            "PATH": f"{FOLDER}/bin:/usr/bin:/bin",
            "FAKE_CLOUD": FOLDER,
            "FAKE_WORKER": str(worker),
        }
        # gcloud splits the command at spaces, ssh joins the parts again, and a shell parses the result.
        command = " ".join(flags["command"].split(" "))
        code = subprocess.run(["bash", "-c", command], env=environment, cwd=home, check=False).returncode or code
    return code


def delete_workers(cloud: dict) -> None:
    import contextlib
    import shutil
    import signal
    from pathlib import Path

    for home in Path(FOLDER).glob("worker-*"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            os.killpg(int((home / "afjax-job" / "pid").read_text()), signal.SIGKILL)
        shutil.rmtree(home, ignore_errors=True)


def not_found(kind: str, name: str) -> int:
    return api_error(f"(gcloud.x) NOT_FOUND: Resource 'projects/p/locations/z/{kind}/{name}' was not found")


def api_error(message: str) -> int:
    print(
        f"ERROR: {message} This command is authenticated as me@example.com which is the active account specified by "
        "the [core/account] property.",
        file=sys.stderr,
    )
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
