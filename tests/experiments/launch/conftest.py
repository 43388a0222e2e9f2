"""A small repository to launch from, and a cloud to launch into."""

import json
import os
import pathlib
import shutil
import subprocess
import sys

import pytest

from tests.experiments import command
from tests.experiments.launch import fake_gcloud

_SENT = (
  ".gitignore",
  "experiments/launch/worker.sh",
  "configs/quickstart.py",
)


def git(*arguments: str) -> str:
  return subprocess.run(
    ["git", *arguments], check=True, capture_output=True, text=True
  ).stdout


@pytest.fixture
def repository(tmp_path, monkeypatch) -> pathlib.Path:
  """A git repository with one commit, as the working folder."""
  root = tmp_path / "repository"
  for name in _SENT:
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(command.ROOT / name, root / name)
  monkeypatch.chdir(root)
  credentials = tmp_path / "gcloud/application_default_credentials.json"
  credentials.parent.mkdir()
  credentials.touch()
  monkeypatch.setenv("CLOUDSDK_CONFIG", str(credentials.parent))
  for name in ("GOOGLE_APPLICATION_CREDENTIALS", "HF_TOKEN"):
    monkeypatch.delenv(name, raising=False)
  for role in ("AUTHOR", "COMMITTER"):
    monkeypatch.setenv(f"GIT_{role}_NAME", "Test")
    monkeypatch.setenv(f"GIT_{role}_EMAIL", "test@example.com")
  git("init", "--quiet")
  git("add", ".")
  git("commit", "--quiet", "--message=One")
  return root


class Cloud:
  """Folder of fake_gcloud, whose docstring describes the files."""

  def __init__(self, folder: pathlib.Path):
    self.folder = folder

  def set(self, plan: list, lives: list[list[str]], **plans: list) -> None:
    (self.folder / "lives.json").write_text(json.dumps(lives))
    for name, lines in {"plan": plan, **plans}.items():
      text = "".join(f"{line}\n" for line in lines)
      (self.folder / name.replace("_", "-")).write_text(text)

  def calls(self) -> list[list[str]]:
    lines = (self.folder / "calls.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]

  def verbs(self, *wanted: str) -> list[str]:
    """The verbs of the calls, in order; those of `wanted` only."""
    return [call[4] for call in self.calls() if call[4] in wanted]

  def starts(self, worker: int = 0) -> list[str]:
    path = self.folder / f"starts-{worker}"
    return path.read_text().splitlines() if path.exists() else []


@pytest.fixture
def cloud(tmp_path, monkeypatch):
  folder = tmp_path / "cloud"
  (folder / "bin").mkdir(parents=True)
  gcloud = folder / "bin/gcloud"
  # -I -S: it starts often, and needs the standard library only.
  gcloud.write_text(
    f'#!/bin/sh\nexec {sys.executable} -I -S {fake_gcloud.__file__} "$@"\n'
  )
  gcloud.chmod(0o755)
  monkeypatch.setenv("FAKE_CLOUD", str(folder))
  monkeypatch.setenv("PATH", f"{folder / 'bin'}:{os.environ['PATH']}")
  yield Cloud(folder)
  fake_gcloud.end_vms(folder)
