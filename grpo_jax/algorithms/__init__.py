"""The table of all algorithms: one paper, one file, one row."""

from __future__ import annotations

import dataclasses
import difflib
import functools
from typing import Any

from grpo_jax import imports
from grpo_jax.algorithms import options
from grpo_jax.algorithms.bradley_terry import BRADLEY_TERRY
from grpo_jax.algorithms.cispo import CISPO
from grpo_jax.algorithms.clip_cov import CLIP_COV
from grpo_jax.algorithms.compaction_rl import COMPACTION_RL
from grpo_jax.algorithms.dapo import DAPO
from grpo_jax.algorithms.deepseek_v32 import DEEPSEEK_V32
from grpo_jax.algorithms.dpo import DPO
from grpo_jax.algorithms.dr_grpo import DR_GRPO
from grpo_jax.algorithms.edge_grpo import EDGE_GRPO
from grpo_jax.algorithms.gagpo import GAGPO
from grpo_jax.algorithms.gdpo import GDPO
from grpo_jax.algorithms.gfpo import GFPO
from grpo_jax.algorithms.gigpo import GIGPO
from grpo_jax.algorithms.gmpo import GMPO
from grpo_jax.algorithms.gpg import GPG
from grpo_jax.algorithms.grpo import GRPO
from grpo_jax.algorithms.grpo_ps import GRPO_PS
from grpo_jax.algorithms.grpo_s import GRPO_S
from grpo_jax.algorithms.gspo import GSPO
from grpo_jax.algorithms.gspo_token import GSPO_TOKEN
from grpo_jax.algorithms.gtpo import GTPO
from grpo_jax.algorithms.kl_cov import KL_COV
from grpo_jax.algorithms.lambda_grpo import LAMBDA_GRPO
from grpo_jax.algorithms.luspo import LUSPO
from grpo_jax.algorithms.mo_grpo import MO_GRPO
from grpo_jax.algorithms.opd_full import OPD_FULL
from grpo_jax.algorithms.opd_token import OPD_TOKEN
from grpo_jax.algorithms.opd_topk import OPD_TOPK
from grpo_jax.algorithms.opo import OPO
from grpo_jax.algorithms.otb import OTB
from grpo_jax.algorithms.passk import PASSK
from grpo_jax.algorithms.ppo import PPO
from grpo_jax.algorithms.ppo_dpo import PPO_DPO
from grpo_jax.algorithms.reinforce import REINFORCE
from grpo_jax.algorithms.reinforce_pp import REINFORCE_PP
from grpo_jax.algorithms.reinforce_pp_baseline import REINFORCE_PP_BASELINE
from grpo_jax.algorithms.remax import REMAX
from grpo_jax.algorithms.rloo import RLOO
from grpo_jax.algorithms.rredcot import RREDCOT
from grpo_jax.algorithms.sao import SAO
from grpo_jax.algorithms.sapo import SAPO
from grpo_jax.algorithms.sft import SFT
from grpo_jax.algorithms.spo import SPO
from grpo_jax.algorithms.tic_grpo import TIC_GRPO
from grpo_jax.algorithms.two_grpo import TWO_GRPO
from grpo_jax.algorithms.two_grpo_dpo import TWO_GRPO_DPO
from grpo_jax.algorithms.vapo import VAPO
from grpo_jax.algorithms.vc_ppo import VC_PPO
from grpo_jax.algorithms.vespo import VESPO
from grpo_jax.types import Algorithm

ALGORITHMS: dict[str, Algorithm] = {
  a.name: a
  for a in (
    GRPO,
    GRPO_PS,
    DR_GRPO,
    DAPO,
    GSPO,
    GSPO_TOKEN,
    LUSPO,
    GMPO,
    CISPO,
    SAPO,
    VESPO,
    TIC_GRPO,
    LAMBDA_GRPO,
    CLIP_COV,
    KL_COV,
    DEEPSEEK_V32,
    RREDCOT,
    EDGE_GRPO,
    GTPO,
    GRPO_S,
    MO_GRPO,
    GDPO,
    GFPO,
    TWO_GRPO,
    TWO_GRPO_DPO,
    DPO,
    PASSK,
    REINFORCE,
    RLOO,
    REINFORCE_PP,
    REINFORCE_PP_BASELINE,
    REMAX,
    SPO,
    OPO,
    GPG,
    OTB,
    PPO,
    VC_PPO,
    PPO_DPO,
    VAPO,
    SAO,
    COMPACTION_RL,
    GAGPO,
    GIGPO,
    OPD_TOKEN,
    OPD_FULL,
    OPD_TOPK,
    BRADLEY_TERRY,
    SFT,
  )
}


def get_algorithm(name: str | Algorithm) -> Algorithm:
  """An algorithm of the table, or one that lives elsewhere.

  Args:
    name: A key of `ALGORITHMS`, an import path, "my_pkg.foo:FOO", or an
      `Algorithm`. Of those that are not in the table the path is also the
      `name`; one of a notebook is pickled (`objects.name_of`).

  Raises:
    KeyError: The table has no such name; the message has the nearest one.
    ValueError: Nothing can be imported from there, it is no `Algorithm`, or it
      is called as one of the table.
  """
  name = name_of(name)
  if ":" in name:
    return _from_outside(imports.load(name, "algorithm", "algorithm"), name)
  if name not in ALGORITHMS:
    near = difflib.get_close_matches(name, ALGORITHMS, n=1)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    raise KeyError(
      f"algorithms: no algorithm is called {name!r}.{hint} Known:"
      f" {', '.join(ALGORITHMS)}. One that lives elsewhere has an import path,"
      " my_pkg.foo:FOO."
    )
  return ALGORITHMS[name]


@functools.lru_cache
def _from_outside(found: Any, path: str) -> Algorithm:
  if not isinstance(found, Algorithm):
    raise ValueError(
      f"algorithm {path!r} is {found!r:.200} ({type(found).__name__}); needed"
      " is an Algorithm, such as FOO = Algorithm(name='foo', config_class=…)."
    )
  if found.name in ALGORITHMS and ALGORITHMS[found.name] != found:
    raise ValueError(
      f"algorithm {path!r} is called {found.name!r}, and so is another one of"
      " the table; give it a name of its own."
    )
  if not (
    isinstance(found.config_class, type)
    and issubclass(found.config_class, options.CommonConfig)
    and dataclasses.is_dataclass(found.config_class)
  ):
    raise ValueError(
      f"algorithm {path!r} has config_class={found.config_class!r}; needed is a"
      " frozen dataclass that derives from options.CommonConfig, or from"
      " options.ClipConfig if it clips."
    )
  bare = [
    field.name
    for field in dataclasses.fields(found.config_class)
    if field.default is field.default_factory is dataclasses.MISSING
  ]
  if bare:
    raise ValueError(
      f"algorithm {path!r}: {found.config_class.__name__} has no default for"
      f" {', '.join(bare)}; needed is one for each setting, that of the paper."
    )
  return dataclasses.replace(found, name=path)


def name_of(algorithm: str | Algorithm) -> str:
  """What a config calls an algorithm: its name in the table, or its path."""
  if isinstance(algorithm, Algorithm) and (
    ALGORITHMS.get(algorithm.name) is algorithm or ":" in algorithm.name
  ):
    return algorithm.name
  return imports.name_of(algorithm)


def group_size(name: str | Algorithm, most: int) -> int:
  """Completions of a prompt: `most`, or the most that `name` is defined for."""
  return min(most, get_algorithm(name).max_group_size or most)


def make_config(name: str | Algorithm, **fields: Any) -> Any:
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
