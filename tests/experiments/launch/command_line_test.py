"""Command lines of the launchers: what they print, and what they refuse.

golden/NAME.txt is what a dry run printed, with COMMIT for the commit.
"""

import pathlib

import pytest

from experiments.launch import skypilot, tpu_vm, xpk
from tests.experiments.launch import conftest

_GOLDEN = pathlib.Path(__file__).parent / "golden"
_PLACE = ["--project=my-project", "--zone=us-central1-a"]
_CLUSTER = ["--cluster=my-cluster", *_PLACE]
_WHAT = [
  "--accelerator=v5litepod-16",
  "--workdir=gs://bucket/sort",
  "--config=configs/quickstart.py:gspo",
]
_REST = ["--", "--config.rl.steps=5", "--config.phases=('rl',)"]
_LAUNCHERS = {"tpu_vm": tpu_vm, "xpk": xpk, "skypilot": skypilot}
_CASES = {
  "tpu_vm_run": [*_PLACE, *_WHAT, "--spot", *_REST],
  "tpu_vm_create": [
    *_PLACE,
    "--accelerator=v6e-256",
    "--slices=4",
    "--internal_ip",
    "--service_account=trainer@my-project.iam.gserviceaccount.com",
  ],
  "tpu_vm_status": [*_PLACE, "--slices=2"],
  "tpu_vm_logs": [*_PLACE, "--worker=3", "--follow"],
  "tpu_vm_stop": _PLACE,
  "tpu_vm_delete": _PLACE,
  "xpk_create": [*_CLUSTER, "--accelerator=v5p-16", "--slices=2", "--spot"],
  "xpk_run": [*_CLUSTER, *_WHAT, "--slices=2", *_REST],
  "xpk_status": _CLUSTER,
  "xpk_logs": ["--follow"],
  "xpk_stop": _CLUSTER,
  "xpk_delete": _CLUSTER,
  "skypilot_run": [*_WHAT, "--spot", *_REST],
  "skypilot_status": [],
  "skypilot_logs": ["--follow"],
  "skypilot_stop": [],
}


def _launch(name: str, *arguments: str) -> int:
  launcher, action = name.rsplit("_", 1)
  return _LAUNCHERS[launcher].main([launcher, action, *arguments])


@pytest.mark.parametrize("name", _CASES)
def test_dry_run_prints_the_commands(name, repository, capsys):
  assert _launch(name, "--name=sort", "--dry_run", *_CASES[name]) == 0
  commit = conftest.git("rev-parse", "HEAD").strip()
  printed = capsys.readouterr().out.replace(commit, "COMMIT")
  printed = printed.replace(commit[:12], "COMMIT")
  assert printed == (_GOLDEN / f"{name}.txt").read_text("utf-8")
  assert not (repository / ".cache").exists()


@pytest.mark.parametrize("launcher", _LAUNCHERS.values())
def test_help_shows_the_actions_and_the_flags(launcher, capsys):
  assert launcher.main(["", "--help"]) == 0
  out = capsys.readouterr().out
  assert "`status`" in out
  assert "--accelerator: Type and size, such as v5litepod-16." in out


@pytest.mark.parametrize(
  ("name", "arguments", "message"),
  [
    ("tpu_vm_run", ["--name=Sort"], "--name=Sort: needed are up to 28 lower"),
    ("tpu_vm_run", ["--name=sort-"], "--name=sort-: needed are"),
    ("tpu_vm_run", ["--name=" + "a" * 29], "needed are up to 28"),
    ("tpu_vm_run", ["--name="], "--name is missing, and run needs it"),
    ("tpu_vm_run", ["--zone="], "--zone is missing, and run needs it: Zone"),
    ("tpu_vm_run", ["--project="], "--project is missing"),
    ("tpu_vm_run", ["--workdir=runs/a"], "needed is gs://BUCKET/PATH"),
    ("tpu_vm_run", ["--workdir=gs:/bucket/a"], "needed is gs://BUCKET/PATH"),
    (
      "tpu_vm_run",
      ["--workdir=runs/a", "--accelerator=v5litepod-8"],
      "needed is gs://BUCKET/PATH, or a path on the VM from its root",
    ),
    (
      "tpu_vm_run",
      ["--workdir=/runs/a", "--accelerator=v5litepod-8", "--slices=2"],
      "needed is gs://BUCKET/PATH",
    ),
    (
      "tpu_vm_run",
      ["--workdir=/runs/a", "--accelerator=v5litepod-8", "--spot"],
      "needed is gs://BUCKET/PATH",
    ),
    ("tpu_vm_run", ["--accelerator=v5e-16"], "types: v6e, v5p, v5litepod"),
    ("tpu_vm_run", ["--accelerator=tpu"], "needed is TYPE-SIZE"),
    ("tpu_vm_run", ["--config=a.py"], "there is no file a.py here"),
    ("tpu_vm_run", ["--slices=0"], "--slices=0"),
    ("tpu_vm_run", ["--steps=5"], "experiments.train comes after `--`"),
    ("tpu_vm_run", ["--", "a\nb"], "received a line break"),
    ("tpu_vm_go", [], "received the action 'go'; needed is one of create, run"),
    ("tpu_vm_run", ["stop"], "received the action 'run stop'"),
    ("tpu_vm_logs", ["--slices=2", "--follow"], "--follow reads one slice"),
    ("xpk_run", ["--workdir=/runs/a"], "needed is gs://BUCKET/PATH"),
    ("xpk_status", ["--cluster="], "--cluster is missing"),
    ("skypilot_run", ["--workdir=/runs/a"], "needed is gs://BUCKET/PATH"),
    ("skypilot_run", ["--slices=2"], "Unknown command line flag 'slices'"),
  ],
)
@pytest.mark.usefixtures("repository")
def test_mistake_is_explained(name, arguments, message, capsys):
  place = {"tpu_vm": _PLACE, "xpk": _CLUSTER}.get(name.rsplit("_", 1)[0], [])
  given = ["--name=sort", *place, *_WHAT, *arguments]
  assert _launch(name, *given) == 2
  out, err = capsys.readouterr()
  assert err.startswith("error: ")
  assert message in err
  assert out == ""


def test_workdir_of_one_vm_that_stays_may_be_on_it(repository, capsys):
  del repository
  given = ["--accelerator=v5litepod-8", "--workdir=/runs/a"]
  assert (
    _launch(
      "tpu_vm_run",
      *_CASES["tpu_vm_run"][:2],
      "--name=sort",
      "--config=configs/quickstart.py",
      *given,
      "--dry_run",
    )
    == 0
  )
  assert "--workdir=/runs/a" in capsys.readouterr().out


def test_changes_are_sent_only_if_that_is_allowed(repository, capsys):
  path = repository / "configs/quickstart.py"
  path.write_text("changed\n")
  given = ["--name=sort", *_CASES["skypilot_run"]]
  assert _launch("skypilot_run", "--dry_run", *given) == 2
  err = capsys.readouterr().err
  assert "changes that are not committed" in err
  assert "configs/quickstart.py" in err
  assert _launch("skypilot_run", "--dry_run", "--allow_dirty", *given) == 0
  git_archive = capsys.readouterr().out.splitlines()[1].split()
  commit = git_archive[-1]
  assert commit != conftest.git("rev-parse", "HEAD").strip()
  assert conftest.git("show", f"{commit}:configs/quickstart.py") == "changed\n"
  assert path.read_text() == "changed\n"
