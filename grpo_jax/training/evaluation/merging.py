"""Merged policies: averages of the parameters of several runs.

    θ = Σ_i w_i θ_i,    Σ_i w_i = 1                   (linear)
    θ = θ_0 + Σ_i w_i (θ_i − θ_0)                     (task arithmetic)

The second adds up the changes of runs since they parted from a base θ_0.

Sources: Wortsman et al., "Model soups", arXiv:2203.05482; Ilharco et al.,
"Editing models with task arithmetic", arXiv:2212.04089.
"""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from grpo_jax import imports, ranges
from grpo_jax.data import demonstrations
from grpo_jax.training.phases import checkpointed, workdir
from grpo_jax.training.phases import policy as policy_lib
from grpo_jax.training.runtime import checkpoints, files, hosts, log
from grpo_jax.types import PyTree

# The phase in a checkpoint of a merged policy: no run has begun.
NO_PHASE = -1
MERGE = "merge.json"


def coefficients(
  count: int, weights: Sequence[float], has_base: bool
) -> list[float]:
  """Returns a coefficient for each policy, and for the base as the last.

  Args:
    count: Policies beside the base.
    weights: A weight for each policy; empty: equal ones, whose sum is 1.
    has_base: True if differences are added to a base.

  Raises:
    ValueError: No run is named, there are not as many weights as runs, a weight
      is not finite, or the weights without a base do not add up to 1.
  """
  if not count:
    raise ValueError("no runs are named; needs one or more.")
  weights = [float(x) for x in weights] or [1 / count] * count
  if len(weights) != count:
    raise ValueError(
      f"{ranges.counted(len(weights), 'weight')} for"
      f" {ranges.counted(count, 'run')}; give one for each."
    )
  if not all(map(math.isfinite, weights)):
    raise ValueError(f"weights={weights}; needs finite numbers.")
  total = math.fsum(weights)
  if has_base:
    return [*weights, 1 - total]
  if abs(total - 1) > 1e-6:
    raise ValueError(
      f"the sum of weights={weights} is {total:g}; needs 1, or a base to"
      " which differences are added."
    )
  return weights


def merge(
  names: Sequence[str], out: str, weights: Sequence[float] = (), base: str = ""
) -> int:
  """Writes a folder that opens like a run; returns its number of parameters.

  Its settings are those of the first run. It can be evaluated and sampled from,
  and `config.start_workdir` begins with it.

  Args:
    names: Folders of runs, local or gs://, whose last checkpoints are merged;
      averaged parameters if a run keeps an average.
    out: New folder, local or gs://.
    weights, base: See above; the base is a run too.

  Raises:
    FileNotFoundError: There is no such run.
    ValueError: A policy has other arrays or tokens than the first, adapters, or
      a packed base; or `out` exists.
  """
  runs = [*names, *([base] if base else [])]
  shares = coefficients(len(names), weights, bool(base))
  folder = files.parse(out)
  if (folder / log.CONFIG).exists() or (folder / "checkpoints").exists():
    raise ValueError(f"{folder} holds a run; name a new folder.")
  if folder.exists() and not folder.is_dir():
    raise ValueError(f"{folder} is a file; name a new folder.")
  configs = [workdir.settings(files.parse(name)) for name in runs]
  for name, config in zip(runs, configs, strict=True):
    if config.model.adapters() is not None:
      raise ValueError(
        f"the run in {name} trains adapters, and an average of their factors is"
        " none of what they add; write it out with grpo-export, which merges"
        " them into the weights, and start runs from there."
      )
  total: PyTree = None
  first: checkpointed.Loaded | None = None
  steps = []
  for name, share in zip(runs, shares, strict=True):
    with contextlib.ExitStack() as stack:
      loaded = checkpointed.opened(stack, files.parse(name))
      first = first or loaded
      _check_tokens(loaded, first, name, runs[0])
      params = jax.device_get(loaded.params)
      steps.append(loaded.step)
    total = _add(total, params, share, name, runs[0])
  assert first is not None
  policy = jax.tree.map(
    lambda x, like: x.astype(like.dtype), total, first.params
  )
  text = (files.parse(names[0]) / log.CONFIG).read_text("utf-8")
  if hosts.is_main():
    folder.mkdir(parents=True, exist_ok=True)
    imports.keep(text, folder)
    record = {
      "runs": [
        {"workdir": name, "step": step, "coefficient": share}
        for name, step, share in zip(runs, steps, shares, strict=True)
      ],
      "base": base,
    }
    files.write(folder / MERGE, (json.dumps(record, indent=2) + "\n").encode())
    files.write(folder / log.CONFIG, text.encode())
  store = checkpoints.Checkpoints(folder / "checkpoints", keep=1)
  try:
    state = policy_lib.state_of(policy, first.policy, configs[0].seed)
    store.save(0, state, {"phase": NO_PHASE})
    store.wait()
  finally:
    store.close()
  return sum(int(np.size(x)) for x in jax.tree.leaves(total))


def _check_tokens(
  loaded: checkpointed.Loaded,
  first: checkpointed.Loaded,
  name: str,
  first_name: str,
) -> None:
  """Raises ValueError unless two policies read and write the same tokens."""
  tokenizers = loaded.problem.tokenizer, first.problem.tokenizer
  if len({*map(demonstrations.digest, tokenizers)}) > 1:
    raise ValueError(
      f"{name} has other tokens than {first_name}; needs runs with the"
      " same tokenizer."
    )


def _add(
  total: PyTree, params: PyTree, share: float, name: str, first_name: str
) -> PyTree:
  """Adds a policy times its coefficient to the sum so far, in float32."""
  if total is None:
    total = jax.tree.map(lambda x: np.zeros(x.shape, np.float32), params)
  expected, actual = (
    {
      jax.tree_util.keystr(path): (
        x.shape,
        jnp.issubdtype(x.dtype, np.floating),
      )
      for path, x in jax.tree_util.tree_leaves_with_path(tree)
    }
    for tree in (total, params)
  )
  names = sorted(
    leaf
    for leaf in expected.keys() | actual.keys()
    if expected.get(leaf) != actual.get(leaf)
  )
  if names:
    leaf = names[0]
    raise ValueError(
      f"{len(names)} arrays of {name} differ from those of {first_name};"
      f" {leaf} is {actual.get(leaf, ('absent',))[0]}, needs"
      f" {expected.get(leaf, ('absent',))[0]} of floats. Needed are runs of one"
      " architecture."
    )
  return jax.tree.map(
    lambda sum_, x: sum_ + np.float32(share) * x.astype(np.float32),
    total,
    params,
  )
