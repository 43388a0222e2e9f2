"""The guard in the graph, before an environment that remembers its actions."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from grpo_jax.tasks import calc_tool, interceptor
from grpo_jax.tasks import vocabulary as vocab
from grpo_jax.types import Environment, Turn
from tests.tasks import environment_test, episodes, strings

RISKY, BAD = 5, 6  # A rule flags both, the judge confirms the second.


def _spy() -> Environment:
  """Two tokens an action, nine turns; the state lists what was executed."""

  def reset(key, extras):
    del key, extras
    return {"turn": jnp.int32(0), "executed": jnp.zeros(9, jnp.int32)}

  def step(state, tokens, mask):
    executed = jnp.where(mask.any(), tokens[0], -1)
    turn = state["turn"]
    state = {
      "turn": turn + 1,
      "executed": state["executed"].at[turn].set(executed),
    }
    seen = jnp.array([executed])
    done = turn == 8
    return state, Turn(seen, jnp.array([True]), jnp.float32(1), done)

  return Environment(
    max_turns=9,
    max_action_len=2,
    max_observation_len=1,
    action_ends=(),
    reset=reset,
    step=step,
    scores=lambda state: {"accuracy": (state["turn"] > 3).astype(jnp.float32)},
    action_len=lambda state: state["turn"] + 1,
    state_id=lambda state: state["turn"] * 2,
  )


def _guarded(**options) -> Environment:
  return interceptor.guard(
    _spy(),
    interceptor.InterceptorTask(
      **{
        "rules": (
          lambda tokens, mask: tokens[0] == RISKY,
          lambda tokens, mask: tokens[0] == BAD,
        ),
        "judge": lambda tokens, mask, state: (
          (tokens[0] == BAD) & (state["turn"] >= 1)
        ),
        "dummy": (7, 8, 9),
        "label": lambda tokens, mask: tokens[1] == 1,
        **options,
      }
    ),
  )


def play(environment: Environment, actions):
  tokens = jnp.array(actions, jnp.int32)
  mask = jnp.ones(tokens.shape, bool)
  return jax.device_get(
    episodes.play_one(environment, jax.random.key(0), {}, tokens, mask)
  )


# The judge reads the context: on the first turn it lets BAD pass.
ACTIONS = [[BAD, 1], [BAD, 1], [RISKY, 0], [3, 1], [BAD, 0]]


def test_a_blocked_call_never_reaches_the_environment():
  played = play(_guarded(), ACTIONS)
  assert played.end.inner["executed"][:5].tolist() == [BAD, -1, RISKY, 3, -1]
  # Turns go on, and the dummy is read instead of the answer.
  assert played.end.inner["turn"] == 5
  observations = [
    tokens[mask].tolist()
    for tokens, mask in zip(
      played.turns.observation, played.turns.mask, strict=True
    )
  ]
  assert observations == [[BAD], [7, 8, 9], [RISKY], [3], [7, 8, 9]]
  assert played.turns.reward.tolist() == [1] * 5
  assert not played.turns.done.any()
  assert played.action_len.tolist() == [1, 2, 3, 4, 5]
  assert played.state_id.tolist() == [0, 2, 4, 6, 8]
  assert played.scores == {
    "accuracy": 1,
    "flagged": 4,
    "judged": 4,
    "blocked": 2,
    "true_positives": 1,
    "false_positives": 1,
    "false_negatives": 2,
    "true_negatives": 1,
  }


def test_rules_alone_block_all_that_is_flagged():
  played = play(_guarded(judge=None, label=None), ACTIONS)
  assert played.end.inner["executed"][:5].tolist() == [-1, -1, -1, 3, -1]
  assert played.scores == {
    "accuracy": 1,
    "flagged": 4,
    "judged": 0,
    "blocked": 4,
  }


def test_a_block_costs_the_penalty():
  played = play(_guarded(penalty=0.25), ACTIONS)
  assert played.turns.reward.tolist() == [1, 0.75, 1, 1, 0.75]


def test_a_block_that_aborts_ends_the_episode():
  played = play(_guarded(abort=True, penalty=0.25), ACTIONS)
  assert played.turns.done.tolist() == [False, True, True, True, True]
  assert played.turns.reward.tolist() == [1, 0.75, 0, 0, 0]
  assert not played.turns.mask[1:].any()
  # Nothing that comes later is executed or counted.
  assert played.end.inner["executed"][:5].tolist() == [BAD, -1, 0, 0, 0]
  assert played.scores["flagged"] == 2


@pytest.mark.slow
def test_without_rules_it_is_bitwise_the_environment():
  variant = "calc_tool"
  extras, actions, played = environment_test.cases(variant)
  plain = environment_test.make(variant).environment
  guarded = interceptor.guard(
    plain, interceptor.InterceptorTask((), calc_tool.is_bare_hash, (vocab.OBS,))
  )
  tokens, mask = episodes.pack(plain, actions, plain.max_turns + 1)
  other = jax.device_get(
    episodes.player(guarded)(
      episodes.keys(), strings.stack_extras(extras), tokens, mask
    )
  )
  jax.tree.map(np.testing.assert_array_equal, other.turns, played.turns)
  jax.tree.map(np.testing.assert_array_equal, other.end.inner, played.end)
  for name, score in played.scores.items():
    np.testing.assert_array_equal(other.scores[name], score)
  assert not any(other.scores[name].any() for name in interceptor.EVENTS)


def test_negative_penalties_are_refused():
  with pytest.raises(ValueError, match="penalty is -1"):
    interceptor.InterceptorTask((), None, (), penalty=-1)
