"""The losses of Tinker's API, and this library's algorithms beside them.

A loss is a sum over tokens and rows, never a mean, so gradients of several
requests add up. With log π of the targets, log q of the sampler, weights w and
advantages A, and the ratio r = π / q:

    cross_entropy         −w log π
    importance_sampling   −r A
    ppo                   −min(r A, clip(r, low, high) A)
    cispo                 −sg[clip(r, low, high)] A log π
    dro                   −A log π + (β / 2) (log π − log q)²
    gspo                  −min(s A, clip(s, low, high) A),
                          s_t = sg[exp(mean_M log r)] π_t / sg[π_t]

M are the tokens that `sequence_ratio_mask` marks, and bounds are those of the
ratio itself, as 0.8 and 1.2. A token without a finite log-prob has no loss.

"grpo_jax.NAME" is an algorithm of this library with its own defaults: the total
of each term of its loss, times its coefficient, without the division by the
number of completions or of tokens. `weights` marks the trained tokens, and the
client gives the advantages. So settings about rewards, about advantages and
about the sampler have no effect and are refused.

Source: Thinking Machines Lab, tinker-docs.thinkingmachines.ai, "Loss
Functions". No default for the bounds of `gspo` was found there: it needs both.
"""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from grpo_jax import algorithms
from grpo_jax.algorithms import objective, options
from grpo_jax.ops import masked
from grpo_jax.serving.requests import BadRequest
from grpo_jax.serving.tinker.wire import Row
from grpo_jax.types import (
  Algorithm,
  PolicyOutputs,
  PromptFields,
  SamplerFields,
  TrainBatch,
)

_OF_RL = ("target_tokens", "logprobs", "advantages")
# Loss -> (names of its inputs, its settings with their defaults).
LOSSES: dict[str, tuple[tuple[str, ...], dict[str, float | None]]] = {
  "cross_entropy": (("target_tokens", "weights"), {}),
  "importance_sampling": (_OF_RL, {}),
  "ppo": (_OF_RL, {"clip_low_threshold": 0.8, "clip_high_threshold": 1.2}),
  "cispo": (_OF_RL, {"clip_low_threshold": 0.0, "clip_high_threshold": 4.0}),
  "dro": (_OF_RL, {"beta": 0.05}),
  "gspo": (
    (*_OF_RL, "sequence_ratio_mask"),
    {"clip_low_threshold": None, "clip_high_threshold": None},
  ),
}
INPUTS = ("weights", "logprobs", "advantages", "sequence_ratio_mask")
NO_STABLE_REINFORCE = (
  "stable_reinforce, the default of some recipes, is not served: its formula is"
  " not published, and it reads what the service records as it draws"
  " (record_stability_info); choose another loss_fn, such as"
  " importance_sampling, ppo or cispo."
)
_OURS = "grpo_jax."
# Inputs that the client sends; algorithms that need others are refused.
_GIVEN = {"old_logp", "behavior_logp", "entropy"}
# Options of all algorithms that act on a loss whose advantages are given.
_USED = {"kl_coef", "entropy_coef", "off_policy_threshold"}
_MOST = 1e6  # The largest setting.


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class PaddedRows:
  """Rows of a pass, padded on the right.

  Attributes:
    ids: Tokens that the model reads.
    targets: The token to predict from each token and those before.
    exists: False in padding.
    inputs: Inputs of the loss by the names of `INPUTS`, 0 where a loss has no
      such input.
  """

  ids: jax.Array  # [B, T] int32
  targets: jax.Array  # [B, T] int32
  exists: jax.Array  # [B, T] bool
  inputs: dict[str, jax.Array]  # each [B, T] float32


class NamedLoss(NamedTuple):
  """The loss of a request.

  Attributes:
    number: Place of the loss in `LOSSES`; -1 for an algorithm.
    settings: Its settings, which are inputs of the program.
    algorithm: The algorithm and its config, which are part of the program.
  """

  number: int
  settings: dict[str, float]
  algorithm: tuple[Algorithm, Any] | None = None


def named(name: str, settings: Mapping[str, float | str]) -> NamedLoss:
  """Returns the loss with a name.

  Raises:
    BadRequest: There is no such loss, or it does not have such a setting.
  """
  for key, value in settings.items():
    if not isinstance(value, float) or not abs(value) <= _MOST:
      raise BadRequest(
        f"loss_fn_config[{key!r:.40}] is {value!r:.40}, but must be a number of"
        f" at most {_MOST:g}.",
        "loss_fn_config",
      )
  if name.startswith(_OURS):
    return _library_loss(name.removeprefix(_OURS), settings)
  if name == "stable_reinforce":
    raise BadRequest(NO_STABLE_REINFORCE, "loss_fn")
  if name not in LOSSES:
    raise BadRequest(
      f"there is no loss_fn {name!r:.80}; there are {', '.join(LOSSES)}, and"
      f" {_OURS}NAME for algorithms of this library.",
      "loss_fn",
    )
  _, defaults = LOSSES[name]
  if unknown := settings.keys() - defaults.keys():
    raise BadRequest(
      f"loss_fn {name} has no setting {min(unknown)!r:.40}; it has"
      f" {', '.join(defaults) or 'none'}.",
      "loss_fn_config",
    )
  values: dict[str, Any] = {**defaults, **settings}
  if missing := [key for key, value in values.items() if value is None]:
    raise BadRequest(
      f"loss_fn {name} needs {' and '.join(missing)} in loss_fn_config: bounds"
      " of the ratio, such as 0.8 and 1.2.",
      "loss_fn_config",
    )
  low = values.get("clip_low_threshold", 0.0)
  high = values.get("clip_high_threshold", _MOST)
  if low > high:
    raise BadRequest(
      f"clip_low_threshold={low} is above clip_high_threshold={high}; they"
      " bound the ratio, which is 1 if nothing has changed.",
      "loss_fn_config",
    )
  numbers = {"low": low, "high": high, "beta": values.get("beta", 0.0)}
  return NamedLoss([*LOSSES].index(name), numbers)


def _library_loss(name: str, settings: Mapping[str, Any]) -> NamedLoss:
  """Returns the loss of an algorithm of this library."""
  if name not in algorithms.ALGORITHMS:  # An import path is not for clients.
    close = difflib.get_close_matches(name, [*algorithms.ALGORITHMS], 3)
    raise BadRequest(
      f"there is no algorithm {name!r:.40}"
      + (f"; close are {', '.join(close)}." if close else "."),
      "loss_fn",
    )
  algorithm = algorithms.get_algorithm(name)
  fields = {x.name for x in dataclasses.fields(algorithm.config_class)}
  common = {x.name for x in dataclasses.fields(options.CommonConfig)}
  names = (fields - common) | _USED
  if unknown := settings.keys() - names:
    raise BadRequest(
      f"{_OURS}{name} has no setting {min(unknown)!r:.40} that acts on a loss"
      f" whose advantages are given; it has {', '.join(sorted(names))}.",
      "loss_fn_config",
    )
  try:
    config = algorithms.make_config(algorithm, **settings)
    needs = options.needs(algorithm, config)
  except (TypeError, ValueError) as error:
    raise BadRequest(str(error), "loss_fn_config") from None
  why = ""
  if missing := needs - _GIVEN:
    why = f"needs {', '.join(sorted(missing))}, which a request does not bring"
    if missing == {"ref_logp"} and "ref_logp" not in algorithm.needs:
      why += "; send loss_fn_config={'kl_coef': 0}"
  elif algorithm.couples_group or algorithm.policy_loss is None:
    why = "compares completions with each other, and rows have no groups here"
  elif algorithm.prepare is not Algorithm.prepare or any(
    jax.tree.leaves(algorithm.init(config))
  ):
    why = "has a state or weights that are made from the rewards of a batch"
  if why:
    raise BadRequest(f"{_OURS}{name} {why}.", "loss_fn")
  return NamedLoss(-1, {}, (algorithm, config))


def check(
  name: str, loss: NamedLoss, rows: Sequence[Row], vocab_size: int
) -> None:
  """Raises BadRequest unless rows have the inputs of a loss, and known ids."""
  names = (
    ("target_tokens", "weights", "logprobs", "advantages")
    if loss.algorithm
    else LOSSES[name][0]
  )
  for i, row in enumerate(rows):
    where = f"data[{i}].loss_fn_inputs"
    if missing := [key for key in names if key not in row.inputs]:
      raise BadRequest(
        f"{where} lacks {', '.join(missing)}, which {name} reads.", "data"
      )
    if unknown := row.inputs.keys() - {"target_tokens", *INPUTS}:
      raise BadRequest(
        f"{where} has {min(unknown)!r:.40}, which no loss reads; leave it out.",
        "data",
      )
    targets = row.inputs["target_tokens"]
    if targets.dtype.kind != "i":
      raise BadRequest(f"{where}['target_tokens'] must be int64.", "data")
    for ids, of in ((row.ids, "model_input"), (targets, "target_tokens")):
      if ids.min() < 0 or ids.max() >= vocab_size:
        bad_id = ids[(ids < 0) | (ids >= vocab_size)][0]
        raise BadRequest(
          f"data[{i}] has the id {bad_id} in {of}; ids are from 0 to"
          f" {vocab_size - 1}.",
          "data",
        )
    for key in INPUTS:
      largest = np.abs(row.inputs.get(key, np.zeros(1))).max()
      if largest > _MOST:
        raise BadRequest(
          f"{where}[{key!r}] has a number of size {largest:.3g}; at most"
          f" {_MOST:g} is allowed.",
          "data",
        )
    if name == "gspo" and not row.inputs["sequence_ratio_mask"].any():
      raise BadRequest(
        f"{where}['sequence_ratio_mask'] marks no token, so there is no mean.",
        "data",
      )
    if loss.algorithm and not loss.algorithm[0].token_advantages:
      own = row.inputs["advantages"][row.inputs["weights"] != 0]
      if own.size and own.min() != own.max():
        raise BadRequest(
          f"{where}['advantages'] differ within a row, and {name} has one for"
          " the whole completion.",
          "data",
        )


def value(
  algorithm: tuple[Algorithm, Any] | None,
  number: jax.Array,  # [] int32
  settings: Mapping[str, jax.Array],
  outputs: PolicyOutputs,
  rows: PaddedRows,
) -> jax.Array:  # []
  """The sum of a loss over rows.

  Args:
    algorithm, number, settings: Those of the loss; the last two are inputs of
      the program.
    outputs: Outputs of the policy; `logp` [B, T] is about the targets.
    rows: The rows.
  """
  if algorithm is not None:
    return _of_algorithm(*algorithm, outputs, rows)
  counts = rows.exists & jnp.isfinite(outputs.logp)
  logp = masked.select(outputs.logp, counts)
  x = rows.inputs
  weights, old_logp, advantages = x["weights"], x["logprobs"], x["advantages"]
  log_ratio = logp - masked.select(old_logp, counts)

  def exp(x):
    # Tokens without an advantage, as those of prompts, may have any log q.
    return jnp.exp(masked.select(x, advantages != 0))

  def clipped(ratio):
    bounded = jnp.clip(ratio, settings["low"], settings["high"])
    return -jnp.minimum(ratio * advantages, bounded * advantages)

  def cispo():
    ratio = exp(jax.lax.stop_gradient(log_ratio))
    bounded = jnp.clip(ratio, settings["low"], settings["high"])
    return -bounded * logp * advantages

  def gspo():
    constant = jax.lax.stop_gradient(logp)
    of_mean = counts & (x["sequence_ratio_mask"] != 0)
    mean = masked.mean(jax.lax.stop_gradient(log_ratio), of_mean, axis=-1)
    return clipped(exp(mean[:, None] + logp - constant))

  branches: dict[str, Callable[[], jax.Array]] = {
    "cross_entropy": lambda: -weights * logp,
    "importance_sampling": lambda: -exp(log_ratio) * advantages,
    "ppo": lambda: clipped(exp(log_ratio)),
    "cispo": cispo,
    "dro": lambda: -advantages * logp + settings["beta"] / 2 * log_ratio**2,
    "gspo": gspo,
  }
  assert [*branches] == [*LOSSES]
  of_tokens = jax.lax.switch(number, [*branches.values()])  # [B, T]
  return masked.select(of_tokens, counts).sum()


def _of_algorithm(
  algorithm: Algorithm, config: Any, outputs: PolicyOutputs, rows: PaddedRows
) -> jax.Array:  # []
  """The undivided loss of an algorithm of this library."""
  num_rows = len(rows.ids)
  trained = rows.exists & (rows.inputs["weights"] != 0)
  old_logp, advantages = rows.inputs["logprobs"], rows.inputs["advantages"]
  if not algorithm.token_advantages:  # They are equal within a row.
    advantages = masked.mean(advantages, trained, axis=-1)  # [B]
  every = jnp.arange(num_rows, dtype=jnp.int32)
  true = jnp.ones(num_rows, bool)
  batch = TrainBatch(
    prompts=PromptFields(rows.ids[:, :1], true[:, None]),
    prompt_index=every,
    group_id=every,
    tokens=rows.targets,
    completion_mask=rows.exists,
    mask=trained,
    rewards=jnp.zeros(num_rows),
    valid=true,
    terminated=true,
    correct=~true,
    old_logp=old_logp,
    advantages=advantages,
    sampler=SamplerFields(old_logp, old_logp),
    num_groups=num_rows,
  )
  terms = objective.loss(algorithm, config, outputs, batch).terms
  return sum(  # type: ignore[return-value]
    coefficient * term.total for coefficient, term in terms.values()
  )
