"""The table of all algorithms: one paper, one module, one row."""

from __future__ import annotations

import dataclasses
import difflib
import functools
from typing import TYPE_CHECKING, Any

from grpo_jax import imports

if TYPE_CHECKING:
  from grpo_jax.types import Algorithm

# Each is imported when it is first asked for.
ALGORITHMS: imports.LazyTable[Algorithm] = imports.LazyTable(
  __name__,
  {
    "grpo": "grpo:GRPO",
    "grpo_ps": "grpo_ps:GRPO_PS",
    "dr_grpo": "dr_grpo:DR_GRPO",
    "dapo": "dapo:DAPO",
    "gspo": "gspo:GSPO",
    "gspo_token": "gspo_token:GSPO_TOKEN",
    "luspo": "luspo:LUSPO",
    "gmpo": "gmpo:GMPO",
    "cispo": "cispo:CISPO",
    "sapo": "sapo:SAPO",
    "vespo": "vespo:VESPO",
    "tic_grpo": "tic_grpo:TIC_GRPO",
    "lambda_grpo": "lambda_grpo:LAMBDA_GRPO",
    "clip_cov": "clip_cov:CLIP_COV",
    "kl_cov": "kl_cov:KL_COV",
    "deepseek_v32": "deepseek_v32:DEEPSEEK_V32",
    "rredcot": "rredcot:RREDCOT",
    "edge_grpo": "edge_grpo:EDGE_GRPO",
    "gtpo": "gtpo:GTPO",
    "grpo_s": "grpo_s:GRPO_S",
    "mo_grpo": "mo_grpo:MO_GRPO",
    "gdpo": "gdpo:GDPO",
    "gfpo": "gfpo:GFPO",
    "two_grpo": "two_grpo:TWO_GRPO",
    "two_grpo_dpo": "two_grpo_dpo:TWO_GRPO_DPO",
    "dpo": "dpo:DPO",
    "passk": "passk:PASSK",
    "reinforce": "reinforce:REINFORCE",
    "rloo": "rloo:RLOO",
    "reinforce_pp": "reinforce_pp:REINFORCE_PP",
    "reinforce_pp_baseline": "reinforce_pp_baseline:REINFORCE_PP_BASELINE",
    "remax": "remax:REMAX",
    "spo": "spo:SPO",
    "opo": "opo:OPO",
    "gpg": "gpg:GPG",
    "otb": "otb:OTB",
    "ppo": "ppo:PPO",
    "vc_ppo": "vc_ppo:VC_PPO",
    "ppo_dpo": "ppo_dpo:PPO_DPO",
    "vapo": "vapo:VAPO",
    "sao": "sao:SAO",
    "compaction_rl": "compaction_rl:COMPACTION_RL",
    "gagpo": "gagpo:GAGPO",
    "gigpo": "gigpo:GIGPO",
    "opd_token": "opd_token:OPD_TOKEN",
    "opd_full": "opd_full:OPD_FULL",
    "opd_topk": "opd_topk:OPD_TOPK",
    "bradley_terry": "bradley_terry:BRADLEY_TERRY",
    "sft": "sft:SFT",
  },
)


def get_algorithm(name: str | Algorithm) -> Algorithm:
  """Returns an algorithm of the table, or one from elsewhere.

  Args:
    name: A key of `ALGORITHMS`, an import path, "my_pkg.foo:FOO", or an
      `Algorithm`. The path is also the `name` of an algorithm that is not in
      the table; an algorithm of a notebook is pickled (`imports.name_of`).

  Raises:
    KeyError: The table has no such name; the message has the nearest name.
    ValueError: The import fails, the object is not an `Algorithm`, or it has
      the name of an algorithm of the table.
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
def _from_outside(entry: Any, path: str) -> Algorithm:
  from grpo_jax.algorithms import options
  from grpo_jax.types import Algorithm

  if not isinstance(entry, Algorithm):
    raise ValueError(
      f"algorithm {path!r} is {entry!r:.200} ({type(entry).__name__}); needs"
      " an Algorithm, such as FOO = Algorithm(name='foo', config_class=…)."
    )
  if entry.name in ALGORITHMS and ALGORITHMS[entry.name] != entry:
    raise ValueError(
      f"algorithm {path!r} is called {entry.name!r}, and so is another one of"
      " the table; give it a name of its own."
    )
  if not (
    isinstance(entry.config_class, type)
    and issubclass(entry.config_class, options.CommonConfig)
    and dataclasses.is_dataclass(entry.config_class)
  ):
    raise ValueError(
      f"algorithm {path!r} has config_class={entry.config_class!r}; needs a"
      " frozen dataclass that derives from options.CommonConfig, or from"
      " options.ClipConfig if it clips."
    )
  bare = [
    field.name
    for field in dataclasses.fields(entry.config_class)
    if field.default is field.default_factory is dataclasses.MISSING
  ]
  if bare:
    raise ValueError(
      f"algorithm {path!r}: {entry.config_class.__name__} has no default for"
      f" {', '.join(bare)}; needs one for each setting, that of the paper."
    )
  return dataclasses.replace(entry, name=path)


def name_of(algorithm: str | Algorithm) -> str:
  """The name of an algorithm in a config: of the table, or its path."""
  if not isinstance(algorithm, str):
    from grpo_jax.types import Algorithm

    if isinstance(algorithm, Algorithm) and (
      ALGORITHMS.get(algorithm.name) is algorithm or ":" in algorithm.name
    ):
      return algorithm.name
  return imports.name_of(algorithm)


def group_size(name: str | Algorithm, most: int) -> int:
  """Completions per prompt: `most`, but at most the algorithm's maximum."""
  return min(most, get_algorithm(name).max_group_size or most)


def make_config(name: str | Algorithm, **fields: Any) -> Any:
  """Returns the frozen config of an algorithm; raises for unknown fields."""
  config_class = get_algorithm(name).config_class
  names = {field.name for field in dataclasses.fields(config_class)}
  for field in fields:
    if field not in names:
      near = difflib.get_close_matches(field, names, n=1)
      hint = f" Did you mean {near[0]!r}?" if near else ""
      raise KeyError(
        f"algorithm {name!r} has no field {field!r}.{hint} Its fields:"
        f" {', '.join(sorted(names))}."
      )
  return config_class(**fields)
