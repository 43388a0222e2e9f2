"""Flags of `experiments.compare` that are lists of pairs."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Sequence

from grpo_jax.training.monitor import style


def names(values: Sequence[str]) -> dict[str, str]:
  """Printed names by internal ones.

  Raises:
    ValueError: A value is neither a pair nor a file.
  """
  found: dict[str, str] = {}
  for value in values:
    if value.endswith(".json"):
      read = json.loads(pathlib.Path(value).read_text("utf-8"))
      found |= {str(k): str(v) for k, v in read.items()}
      continue
    # Names of settings have "=", printed ones need not.
    internal, equals, printed = value.rpartition("=")
    if not equals:
      raise ValueError(
        f"--names={value}: needs INTERNAL=PRINTED, as in dr_grpo=Dr. GRPO,"
        " or the path of a .json file of such pairs."
      )
    found[internal] = printed
  return found


def ranges(values: Sequence[str]) -> dict[str, tuple[float, float]]:
  """Parses ranges: (low, high) by task.

  Raises:
    ValueError: A value is not a range.
  """
  found = {}
  for value in values:
    task, _, both = value.rpartition("=")
    low, _, high = both.partition(":")
    try:
      found[task] = float(low), float(high)
    except ValueError as error:
      raise ValueError(
        f"--ranges={value}: needs TASK=LOW:HIGH with two numbers, as in"
        " sort=0:1."
      ) from error
    if not task or found[task][0] == found[task][1]:
      raise ValueError(
        f"--ranges={value}: needs a task, and two numbers that differ."
      )
  return found


def formats(values: Sequence[str]) -> list[str]:
  """Formats of figures.

  Raises:
    ValueError: One is unknown.
  """
  for value in values:
    if value not in style.FORMATS:
      raise ValueError(
        f"--format={value}: needs one of {', '.join(style.FORMATS)}."
      )
  return list(values)
