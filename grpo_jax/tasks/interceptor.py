"""A guard between a policy and its tools, for environments in the graph.

Every action is checked in two stages: rules with a high recall flag it, and a
judge confirms which flagged actions are bad. A confirmed call is not executed:
the environment receives an empty action, the policy reads a dummy observation,
and the episode continues. The tokens of the blocked call remain the policy's
own and are trained.

`rewards/agents/interceptor.py` is the same for tools that are Python functions.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from grpo_jax.tasks import task as task_lib
from grpo_jax.types import Environment, Extras, PyTree, Turn

Predicate = Callable[[jax.Array, jax.Array], jax.Array]

EVENTS = ("flagged", "judged", "blocked")
OUTCOMES = (
  "true_positives",
  "false_positives",
  "false_negatives",
  "true_negatives",
)


@dataclasses.dataclass(frozen=True)
class InterceptorTask:
  """An interceptor of actions: rules, a judge, and the effect of a block.

  Attributes:
    rules: Functions (tokens [A], mask [A]) -> [] bool; a rule that returns True
      flags the action. Empty actions are never flagged, and without rules no
      action is.
    judge: (tokens [A], mask [A], state) -> [] bool, True if a flagged action is
      bad; `state` is the environment's. None confirms all flagged actions.
    dummy: Ids that the policy reads instead of an observation.
    abort: Whether a block ends the episode.
    penalty: λ >= 0, subtracted from the reward of a blocked action.
    label: None, or (tokens [A], mask [A]) -> [] bool, the true label of an
      action; right and wrong decisions are counted by it.

  Raises:
    ValueError: The penalty is negative.

  Source: GLM-5.2's recipe. It publishes no rates and no reward of blocked
  calls, so the penalty is ours.
  """

  rules: tuple[Predicate, ...]
  judge: Callable[[jax.Array, jax.Array, PyTree], jax.Array] | None
  dummy: tuple[int, ...]
  abort: bool = False
  penalty: float = 0.0
  label: Predicate | None = None

  def __post_init__(self):
    if self.penalty < 0:
      raise ValueError(
        f"Interceptor: penalty is {self.penalty}; it is taken from the reward"
        " and must be at least 0."
      )


class Guarded(NamedTuple):
  """The state of a guarded environment, with counts of the episode's events."""

  inner: PyTree
  over: jax.Array  # [] bool
  counts: dict[str, jax.Array]  # each [] int32


def guard(
  environment: Environment, interceptor: InterceptorTask
) -> Environment:
  """Guards an environment with an interceptor.

  The scores also have the numbers of the episode's actions that were flagged,
  judged (flagged, and there is a judge) and blocked; with labels also the
  numbers of right and wrong decisions, where a block is a positive. Rates,
  precision and recall are quotients of their sums over episodes. The judge is
  computed for every row in the graph, but used only for flagged actions.
  """
  dummy = np.zeros(
    max(environment.max_observation_len, len(interceptor.dummy)), np.int32
  )
  dummy[: len(interceptor.dummy)] = interceptor.dummy
  in_dummy = np.arange(len(dummy)) < len(interceptor.dummy)  # [O]
  names = (*EVENTS, *(OUTCOMES if interceptor.label is not None else ()))

  def reset(key: jax.Array, extras: Extras) -> Guarded:
    return Guarded(
      environment.reset(key, extras),
      jnp.zeros((), bool),
      {name: jnp.zeros((), jnp.int32) for name in names},
    )

  def step(
    state: Guarded, tokens: jax.Array, mask: jax.Array
  ) -> tuple[Guarded, Turn]:
    exists = mask.any()
    flagged = jnp.zeros((), bool)
    for rule in interceptor.rules:
      flagged = flagged | (exists & rule(tokens, mask))
    events = {"flagged": flagged, "judged": jnp.zeros((), bool)}
    blocked = flagged
    if interceptor.judge is not None:
      events["judged"] = flagged
      blocked = flagged & interceptor.judge(tokens, mask, state.inner)
    events["blocked"] = blocked
    if interceptor.label is not None:
      bad = interceptor.label(tokens, mask)
      events |= {
        "true_positives": blocked & bad,
        "false_positives": blocked & ~bad,
        "false_negatives": exists & ~blocked & bad,
        "true_negatives": exists & ~blocked & ~bad,
      }
    inner, turn = environment.step(state.inner, tokens, mask & ~blocked)
    room = (0, len(dummy) - len(turn.mask))
    turn = Turn(
      jnp.where(blocked, dummy, jnp.pad(turn.observation, room)),
      jnp.where(blocked, in_dummy, jnp.pad(turn.mask, room)),
      jnp.where(blocked, turn.reward - interceptor.penalty, turn.reward),
      turn.done | (blocked & interceptor.abort),
    )
    counts = {name: state.counts[name] + events[name] for name in names}
    new = Guarded(inner, turn.done, counts)
    return task_lib.mask_after_end(state.over, state, new, turn)

  def scores(state: Guarded) -> dict[str, jax.Array]:
    counts = {
      name: count.astype(jnp.float32) for name, count in state.counts.items()
    }
    return {**environment.scores(state.inner), **counts}

  def of_inner(function: Callable | None) -> Callable | None:
    return None if function is None else lambda state: function(state.inner)

  return dataclasses.replace(
    environment,
    max_observation_len=len(dummy),
    reset=reset,
    step=step,
    scores=scores,
    action_len=of_inner(environment.action_len),
    state_id=of_inner(environment.state_id),
    dummy=tuple(interceptor.dummy),
  )
