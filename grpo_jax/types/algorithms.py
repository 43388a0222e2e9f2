"""The interface of an algorithm."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import jax

from grpo_jax.types.batches import (
  Maximum,
  PolicyOutputs,
  Term,
  TrainBatch,
  Weighted,
)
from grpo_jax.types.common import PyTree


def _no_state(config: Any) -> tuple[PyTree, PyTree]:
  del config
  return {}, {}


def _same_state(
  config: Any, state: PyTree, metrics: Mapping, batch: TrainBatch
) -> PyTree:
  del config, metrics, batch
  return state


def _unprepared(config: Any, batch: TrainBatch) -> TrainBatch:
  del config
  return batch


def _no_terms(config: Any) -> dict[str, Term]:
  del config
  return {}


@dataclasses.dataclass(frozen=True)
class Algorithm:
  """A published objective: functions of arrays and a frozen config.

  Attributes:
    name: Key in `ALGORITHMS`.
    config_class: Frozen dataclass with the paper's defaults; derives from
      `options.CommonConfig`.
    advantages: (config, batch) -> [B] or [B, T], from rewards, valid,
      group_id, lengths, entropy, values, state. Constants of the loss.
    policy_loss: (config, policy: PolicyOutputs, batch) -> [B] or [B, T], not
      aggregated; lower is better. None if the critic alone is trained.
    aggregate: (values, mask) -> `Weighted`, of `ops/aggregation.py`. A function
      that averages over completions also takes `count_empty`.
    init: (config) -> (trainable, state); both may be empty.
    returns: (config, batch) -> [B, T], the targets of the critic; once per
      batch, beside the advantages. None without a critic that predicts.
    prepare: (config, batch) -> batch; other quantities that couple rows (pairs,
      ranks), once per batch, after advantages and rejection.
    terms: (config) -> loss terms beside the policy's and the common ones.
    critic_loss: (config, values [B, T], batch) -> [B] or [B, T], the loss of a
      critic that is trained beside the policy; None without a critic.
      `batch.critic.values`, if needed, are those at the start of the update.
    critic_metrics: (config, values [B, T], batch) -> {name: Weighted or
      Maximum}, metrics of that critic at the start of each of its steps; the
      type, and not the name, says how those of several parts are combined. A
      total [K] holds K bins, and the absolute values of the bins are added up.
      None: no metrics.
    update_state: (config, state, metrics, batch) -> state, inside the step,
      from the step's metrics and its prepared rows.
    needs: Optional inputs that the functions read, of `options.NEEDS`. The
      field of the batch with that input is the one of `needs_of(TrainBatch)`.
    couples_group: True if the gradient of one row depends on the current
      log-probs of other rows of its group: whole groups then stay together.
      Their rows must be adjacent, as the sampler makes them.
    whole_completions: True if advantages are computed from all tokens of a
      completion (places, lengths, entropies), or a ratio is a product or a mean
      over all tokens. All tokens must then be in one row, so compacted contexts
      cannot be trained.
    token_advantages: False if the loss takes one advantage for the whole
      completion, or none. Then a teacher's signal cannot be added to advantages
      of single tokens (`opd_coef`).
    min_group_size: Fewest completions per prompt that it can learn from.
    max_group_size: Most completions per prompt that it is defined for, or None.
  """

  name: str
  config_class: type
  advantages: Callable[[Any, TrainBatch], jax.Array]
  policy_loss: Callable[[Any, PolicyOutputs, TrainBatch], jax.Array] | None
  aggregate: Callable[..., Weighted]
  init: Callable[[Any], tuple[PyTree, PyTree]] = _no_state
  returns: Callable[[Any, TrainBatch], jax.Array] | None = None
  prepare: Callable[[Any, TrainBatch], TrainBatch] = _unprepared
  terms: Callable[[Any], dict[str, Term]] = _no_terms
  critic_loss: Callable[[Any, jax.Array, TrainBatch], jax.Array] | None = None
  critic_metrics: (
    Callable[[Any, jax.Array, TrainBatch], Mapping[str, Weighted | Maximum]]
    | None
  ) = None
  update_state: Callable[[Any, PyTree, Mapping, TrainBatch], PyTree] = (
    _same_state
  )
  needs: tuple[str, ...] = ()
  couples_group: bool = False
  whole_completions: bool = False
  token_advantages: bool = True
  min_group_size: int = 1
  max_group_size: int | None = None

  @property
  def has_critic(self) -> bool:
    """True if a critic is trained beside the policy."""
    return self.critic_loss is not None and self.policy_loss is not None
