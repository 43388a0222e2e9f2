"""A small repository to launch from."""

import pathlib
import shutil
import subprocess

import pytest

from tests.experiments import command

_SENT = (".gitignore", "configs/quickstart.py")


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
