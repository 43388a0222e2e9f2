"""Rollouts that are cut where a step ends, and go on in the next one.

    step 7    a b c d            4 tokens, drawn by the weights of step 7
    step 8            e f </s>   3 more, by those of step 8

A row that goes on reads its prompt and its tokens again, with the weights of
now, as a prompt of its own; keys and values of older weights are not kept. The
key of a draw has the place of a token in its completion and the step in which
the completion began, so with weights that have not changed the tokens are those
of a rollout that was never cut. What is recorded of a token stays as it was
when it was drawn.

Source: Kimi Team, "Kimi k1.5: Scaling Reinforcement Learning with LLMs",
arXiv:2501.12599, Section 2.6.2 (partial rollouts). The paper keeps tokens of
earlier steps out of the loss. Here they are trained, with the log-probs of the
weights that drew them, and corrected like all old tokens.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from grpo_jax.rollout import contexts, sampling, turns
from grpo_jax.types import Environment, Policy, Prompts, PyTree, Rollout

# What tokens that are not there hold, by name, as in `sampling`; others: 0.
_FILLS = {"kept_ids": -1}


def nothing(like: Rollout, pad_id: int) -> Rollout:
  """Rows of which nothing is written yet.

  Args:
    like: A rollout with them, or its shapes.
    pad_id: In empty slots.
  """
  num_rows = like.tokens.shape[0]
  rows = jnp.arange(num_rows, dtype=jnp.int32) // (num_rows // like.num_groups)
  fills = _FILLS | {"tokens": pad_id}
  fields: dict[str, Any] = {
    field.name: jnp.full(x.shape, fills.get(field.name, 0), x.dtype)
    for field in dataclasses.fields(like)
    if isinstance(
      x := getattr(like, field.name), jax.Array | jax.ShapeDtypeStruct
    )
  }
  if like.scores is not None:
    fields["scores"] = {
      name: jnp.zeros(x.shape, x.dtype) for name, x in like.scores.items()
    }
  fields["version"] = jnp.zeros(like.tokens.shape, jnp.int32)
  # Two arrays: where they are donated, each is given away once.
  fields["prompt_index"], fields["group_id"] = rows, jnp.copy(rows)
  return dataclasses.replace(like, **fields)


def cleared(
  rollout: Rollout,
  rows: jax.Array,  # [B] bool
  pad_id: int,
) -> Rollout:
  """The rollout, with nothing written in these rows."""
  empty = nothing(rollout, pad_id)
  return jax.tree.map(
    lambda x, y: jnp.where(rows.reshape(-1, *[1] * (x.ndim - 1)), x, y),
    empty,
    rollout,
  )


def goes_on(
  policy: Policy,
  params: PyTree,
  prompts: Prompts,
  keys: jax.Array,  # [B] keys
  rollout: Rollout,
  limits: jax.Array,  # [B] int32
  step: jax.Array,  # [] int32
  *,
  config: sampling.SamplingConfig,
  most: int,
  environment: Environment | None = None,
  episodes: turns.Episodes | None = None,
) -> tuple[Rollout, turns.Episodes | None]:
  """A rollout with up to so many tokens more in each row that has not ended.

  All rows that go on do so at once. With an environment a row is an episode,
  which may be cut anywhere, in an action or in an observation, and goes on from
  the state in which its environment was.

  Args:
    policy: What to sample from.
    params: Its parameters.
    prompts: P prompts.
    keys: Of the rows, from the step in which each one began.
    rollout: What is written, maybe nothing, the G of each prompt adjacent.
    limits: Tokens of each row after which it is cut, at most T.
    step: The version of the tokens that are drawn.
    config: How to draw. Static.
    most: Tokens that a row can lack of its limit at most. Static.
    environment: What answers, or None. Static.
    episodes: Those of the rows after the step before; of rows that have no
      tokens nothing is read. None without an environment.

  Returns:
    The rollout, and the episodes as far as they have come.
  """
  size = rollout.completion_mask.sum(axis=1, dtype=jnp.int32)
  if environment is not None:
    episodes = _begun(environment, prompts, keys, episodes, size == 0)
  longer, exists, episodes = contexts.gone_on(
    *(policy, params, prompts, rollout.tokens, rollout, keys, size),
    limits - size,
    ~rollout.terminated & (size < limits),
    dataclasses.replace(config, max_new_tokens=most),
    environment,
    episodes,
  )
  assert rollout.version is not None
  version = contexts.put(
    rollout.version, size, exists, jnp.broadcast_to(step, exists.shape)
  )
  return dataclasses.replace(longer, version=version), episodes


def _begun(
  environment: Environment,
  prompts: Prompts,
  keys: jax.Array,  # [B] keys
  episodes: turns.Episodes | None,
  rows: jax.Array,  # [B] bool
) -> turns.Episodes:
  """The episodes, with new ones in these rows."""
  fresh = begin(environment, prompts, keys)
  return jax.tree.map(
    lambda x, y: jnp.where(rows.reshape(-1, *[1] * (x.ndim - 1)), x, y),
    *(fresh, fresh if episodes is None else episodes),
  )


def begin(
  environment: Environment,
  prompts: Prompts,
  keys: jax.Array,  # [B] keys
) -> turns.Episodes:
  """Episodes of P prompts, before the first token."""
  group_size = len(keys) // len(prompts.ids)
  extras = jax.tree.map(
    lambda x: jnp.repeat(x, group_size, axis=0), prompts.extras
  )
  return turns.begin(environment, keys, extras)
