"""Commands that an installation has: `grpo-train` is `experiments.train`.

    grpo-train --config=quickstart --workdir=runs/quickstart

They take the flags of the modules, and work in any folder.
"""

from __future__ import annotations

import os
import runpy
import sys

import configs


def _run(module: str) -> None:
  """Runs `python -m experiments.MODULE`.

  Modules of the current folder are found too, so that a config may name a
  reward there; installed modules come first. A package `configs` there must not
  hide ours, whose modules import each other by that name.
  """
  assert configs.__path__
  sys.path.append(os.getcwd())
  # As __main__: --help shows the flags of that module, and processes that
  # score rewards import it again by its name.
  runpy.run_module(f"experiments.{module}", run_name="__main__", alter_sys=True)


def train() -> None:
  """Trains a policy with a config."""
  _run("train")


def evaluate() -> None:
  """Evaluates a policy."""
  _run("evaluate")


def sample() -> None:
  """Completes a prompt with a trained policy."""
  _run("sample")


def compare() -> None:
  """Compares algorithms, and writes tables and figures."""
  _run("compare")
