"""The table of all algorithms: one paper, one file, one row."""

from __future__ import annotations

import dataclasses
import difflib
from typing import Any

from grpo_jax.algorithms.dapo import DAPO
from grpo_jax.algorithms.dr_grpo import DR_GRPO
from grpo_jax.algorithms.grpo import GRPO
from grpo_jax.algorithms.gspo import GSPO
from grpo_jax.algorithms.reinforce import REINFORCE
from grpo_jax.algorithms.sft import SFT
from grpo_jax.types import Algorithm

ALGORITHMS: dict[str, Algorithm] = {
  a.name: a for a in (GRPO, DR_GRPO, DAPO, GSPO, REINFORCE, SFT)
}


def get_algorithm(name: str) -> Algorithm:
  """Returns the algorithm called `name`; KeyError names the nearest one."""
  if name not in ALGORITHMS:
    near = difflib.get_close_matches(name, ALGORITHMS, n=1)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    raise KeyError(
      f"algorithms: no algorithm is called {name!r}.{hint} Known:"
      f" {', '.join(ALGORITHMS)}."
    )
  return ALGORITHMS[name]


def make_config(name: str, **fields: Any) -> Any:
  """The frozen config of an algorithm; unknown fields raise with the known."""
  config_class = get_algorithm(name).config_class
  known = {field.name for field in dataclasses.fields(config_class)}
  for field in fields:
    if field not in known:
      near = difflib.get_close_matches(field, known, n=1)
      hint = f" Did you mean {near[0]!r}?" if near else ""
      raise KeyError(
        f"algorithm {name!r} has no field {field!r}.{hint} Its fields:"
        f" {', '.join(sorted(known))}."
      )
  return config_class(**fields)
