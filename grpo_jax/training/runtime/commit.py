"""The git commit of this library, for a person who repeats a run."""

from __future__ import annotations

import json
import pathlib
import subprocess
from typing import Any


def git() -> dict[str, Any] | None:
  """Commit of this package, `{"commit": …, "dirty": …}`; None if unknown.

  In a checkout it is the commit of the checkout; in an installed package, the
  commit that it was built from, as setup.py has noted it.
  """
  package = pathlib.Path(__file__).resolve().parents[2]
  root = package.parent
  if not (root / ".git").exists():
    file = package / "commit.json"
    return json.loads(file.read_text("utf-8")) if file.exists() else None
  try:
    commit, status = (
      subprocess.run(
        ["git", "-C", str(root), *arguments],
        capture_output=True,
        check=True,
        text=True,
      ).stdout.strip()
      for arguments in (("rev-parse", "HEAD"), ("status", "--porcelain"))
    )
  except (OSError, subprocess.CalledProcessError):
    return None  # No git, or a checkout of another user.
  return {"commit": commit, "dirty": bool(status)}
