"""An environment of 7 ids that a person can follow.

An action ends with token 3, or after two tokens. The observation is 5, 6 as
often as there were turns. Actions of one token pay 1. The third turn is the
last; for prompts with the extra "short" the second.
"""

import jax.numpy as jnp

from grpo_jax.types import Environment, Turn

MAX_TURNS, ACTION_LEN, OBSERVATION_LEN = 3, 2, 4


def _step(state, tokens, mask):
  del tokens
  turn = state["turn"] + 1
  done = turn >= state["limit"]
  slots = jnp.arange(OBSERVATION_LEN)
  return {**state, "turn": turn}, Turn(
    observation=5 + slots % 2,
    mask=(slots < 2 * turn) & ~done,
    reward=(mask.sum() == 1).astype(jnp.float32),
    done=done,
  )


ENVIRONMENT = Environment(
  max_turns=MAX_TURNS,
  max_action_len=ACTION_LEN,
  max_observation_len=OBSERVATION_LEN,
  action_ends=(3,),
  reset=lambda key, extras: {
    "turn": jnp.int32(0),
    "limit": MAX_TURNS - extras["short"],
  },
  step=_step,
  state_id=lambda state: state["turn"],
  scores=lambda state: {
    "accuracy": (state["turn"] == state["limit"]).astype(jnp.float32)
  },
)
