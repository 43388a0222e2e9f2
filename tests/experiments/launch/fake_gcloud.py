"""Stands in for gcloud: a queued resource, and VMs that are folders.

A folder, named by FAKE_CLOUD, holds everything:

    lives.json   for each time the resource is created, what `describe` finds,
                 look by look; the last one stays. A state is that of the queued
                 resource, or STATE/STATE with that of its VMs; of one that
                 is SILENT, nothing is known but that ssh does not reach it.
    plan         what experiments.train does, start by start: an exit status,
                 or `wait` until there is a file `go` (0) or SIGTERM (143).
    plan-N       the same, for worker N alone.
    calls.jsonl  the command lines that were received.
    vms/NODE/N/  the home folder of a worker, while it exists.

Commands that come over ssh are run, in the home folder of each worker.
"""

import contextlib
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys

CLOUD = pathlib.Path(os.environ.get("FAKE_CLOUD", ""))
WORKERS = 2  # Of a slice.
# Then everything is gone, so that a test that waits in vain comes to an end.
MAX_LOOKS = 60

# In place of python3 on a VM, and of the Python that uv installs.
PYTHON = """\
#!/bin/bash
case "$2 $3" in
  "pip install") ;;
  "uv venv")
    [[ -e $FAKE_CLOUD/no-network ]] && exit 1
    folder=${@: -1}
    mkdir -p "$folder/bin" && cp "$0" "$folder/bin/python" ;;
  "uv pip") ;;
  "experiments.launch.with_secrets "*)
    echo "secrets: $3"
    exec "${@:4}" ;;
  "experiments.train "*)
    trap 'echo saved; exit 143' TERM
    worker=$(basename "$HOME")
    starts=$FAKE_CLOUD/starts-$worker
    printf '%s\\n' "${*:3}" >> "$starts"
    plan=$FAKE_CLOUD/plan-$worker
    [[ -e $plan ]] || plan=$FAKE_CLOUD/plan
    what=$(sed -n "$(wc -l < "$starts")p" "$plan")
    echo "training: $what"
    [[ $what == wait ]] || exit "$what"
    until [[ -e $FAKE_CLOUD/go ]]; do sleep 0.02; done ;;
  *) echo "unexpected: $*" >&2; exit 1 ;;
esac
"""


def fail(message: str) -> None:
  print(f"ERROR: (gcloud) {message}", file=sys.stderr)
  sys.exit(1)


def read(name: str, default):
  path = CLOUD / name
  return json.loads(path.read_text()) if path.exists() else default


def keep(now: dict) -> None:
  """Writes now.json, whole even if this process is killed meanwhile."""
  path = CLOUD / f"now-{os.getpid()}.json"
  path.write_text(json.dumps(now))
  path.replace(CLOUD / "now.json")


def end_vms(cloud: pathlib.Path = CLOUD) -> None:
  """Ends VMs, with all that is on them."""
  for pid in (cloud / "vms").glob("*/*/grpo_jax_runs/*/pid"):
    with contextlib.suppress(ProcessLookupError):
      os.killpg(int(pid.read_text()), signal.SIGKILL)
  shutil.rmtree(cloud / "vms", ignore_errors=True)


def states() -> tuple[str, str] | None:
  """States of the resource and of its VMs, or None if it is not there."""
  now = read("now.json", {"life": -1, "exists": False, "looks": 0})
  if not now["exists"]:
    return None
  life = read("lives.json", [])[now["life"]]
  state = life[min(max(now["looks"] - 1, 0), len(life) - 1)]
  resource, _, vm = state.partition("/")
  return resource, vm or "READY"


def main(arguments: list[str]) -> None:
  with (CLOUD / "calls.jsonl").open("a") as file:
    print(json.dumps(["gcloud", *arguments]), file=file)
  flags = dict(
    word.lstrip("-").partition("=")[::2]
    for word in arguments
    if word.startswith("--")
  )
  words = [word for word in arguments if not word.startswith("--")]
  now = read("now.json", {"life": -1, "exists": False, "looks": 0})
  match words:
    case ["secrets", "describe", name]:
      if not (CLOUD / "secrets" / name).exists():
        fail(f"NOT_FOUND: Secret [{name}] not found")
    case ["secrets", "create", name]:
      (CLOUD / "secrets").mkdir(exist_ok=True)
      (CLOUD / "secrets" / name).write_text(sys.stdin.read())
    case ["compute", "tpus", "queued-resources", "create", name]:
      if now["exists"]:
        fail(f"ALREADY_EXISTS: {name}")
      now = {"life": now["life"] + 1, "exists": True, "looks": 0}
      keep(now)
      nodes = [name]
      if "node-count" in flags:
        nodes = [f"{name}-{n}" for n in range(int(flags["node-count"]))]
      for index, node in enumerate(nodes):
        for worker in range(WORKERS):
          home = CLOUD / "vms" / node / str(index * WORKERS + worker)
          (home / "bin").mkdir(parents=True)
          (home / "bin/python3").write_text(PYTHON)
          (home / "bin/python3").chmod(0o755)
    case ["compute", "tpus", "queued-resources", "describe", name]:
      now["looks"] += 1
      keep(now)
      found = states()
      if found and (found[0] == "GONE" or now["looks"] > MAX_LOOKS):
        now["exists"] = False
        keep(now)
        end_vms()
        found = None
      if found is None:
        fail(f"NOT_FOUND: Resource '{name}' was not found")
      if found[0] not in ("ACTIVE", "WAITING_FOR_RESOURCES", "PROVISIONING"):
        end_vms()
      state = {"state": found[0]}
      if found[0] == "FAILED":
        state["failedData"] = {"error": {"code": 8, "message": "no capacity"}}
      print(json.dumps({"name": name, "state": state}))
    case ["compute", "tpus", "queued-resources", "delete", name]:
      if not now["exists"]:
        fail(f"NOT_FOUND: {name}")
      end_vms()
      now["exists"] = False
      keep(now)
    case ["compute", "tpus", "tpu-vm", "describe", node]:
      found = states()
      if found is None:
        fail(f"NOT_FOUND: {node}")
      print("READY" if found[1] == "SILENT" else found[1])
    case ["compute", "tpus", "tpu-vm", "scp", source, target]:
      for home in homes(target.removesuffix(":"), flags["worker"]):
        shutil.copy(source, home)
    case ["compute", "tpus", "tpu-vm", "ssh", node]:
      statuses = []
      for home in homes(node, flags["worker"]):
        environment = os.environ | {
          "HOME": str(home),
          "PATH": f"{home}/bin:/usr/bin:/bin",
        }
        done = subprocess.run(
          ["bash", "-c", flags["command"]],
          cwd=home,
          env=environment,
          check=False,
        )
        statuses.append(done.returncode)
      sys.exit(max(statuses))
    case _:
      fail(f"unexpected: {arguments}")


def homes(node: str, worker: str) -> list[pathlib.Path]:
  found = states()
  if found != ("ACTIVE", "READY"):
    fail(f"{node} is not reachable: {found}")
  all_homes = sorted((CLOUD / "vms" / node).iterdir())
  return all_homes if worker == "all" else [all_homes[int(worker)]]


if __name__ == "__main__":
  main(sys.argv[1:])
