"""Contexts of rollouts whose environment is on the host, by hand.

`tests/training/players_test.py` compares whole rollouts.
"""

import jax.numpy as jnp
import numpy as np
import pytest

from grpo_jax.rollout import contexts, host_turns, sampling
from grpo_jax.types import HostEnvironment, Prompts
from tests.training import tiny


@pytest.fixture
def turns():
  return host_turns.HostTurns(
    tiny.tiny_policy(),
    sampling.SamplingConfig(max_new_tokens=4, end_ids=(), pad_id=0),
    2,
    HostEnvironment(3, 2, 3, (1,), "nowhere:make"),
  )


PROMPTS = Prompts(
  tokens=jnp.array([[9, 2, 3], [4, 5, 6]]),
  mask=jnp.array([[False, True, True], [True, True, True]]),
  ids=jnp.arange(2),
  extras={},
)
TOKENS = jnp.array([[0, 0, 0, 0], [7, 8, 0, 0], [7, 0, 0, 0], [7, 8, 9, 7]])
SIZE = jnp.array([0, 2, 1, 4])


def test_a_context_is_a_prompt_and_what_was_written_to_the_last_slot():
  tokens, mask = contexts.joined(PROMPTS, TOKENS, SIZE, pad_id=0)
  np.testing.assert_array_equal(
    tokens,
    [
      [0, 0, 0, 0, 0, 2, 3],
      [0, 0, 0, 2, 3, 7, 8],
      [0, 0, 0, 4, 5, 6, 7],
      [4, 5, 6, 7, 8, 9, 7],
    ],
  )
  np.testing.assert_array_equal(mask, tokens > 0)


def test_what_contexts_have_goes_back_to_prompts_and_rows(turns):
  tokens, _ = contexts.joined(PROMPTS, TOKENS, SIZE, pad_id=0)
  of_prompts, of_rows = turns._split(tokens[..., None], SIZE)
  np.testing.assert_array_equal(
    of_prompts[..., 0], [[0, 2, 3], [0, 2, 3], [4, 5, 6], [4, 5, 6]]
  )
  exists = np.arange(4) < np.array(SIZE)[:, None]
  np.testing.assert_array_equal(of_rows[..., 0][exists], TOKENS[exists])


def test_observations_come_after_actions_as_far_as_there_is_room():
  written = {
    "tokens": TOKENS,
    "completion_mask": jnp.arange(4) < SIZE[:, None],
    "observed": jnp.zeros((4, 4), bool),
    "turn": jnp.zeros((4, 4), jnp.int32),
    "turn_rewards": jnp.zeros((4, 4)),
  }
  answers = host_turns.Answers(
    observation=jnp.full((4, 3), 5),
    size=jnp.array([0, 3, 2, 3]),
    reward=jnp.array([0.0, 1.0, 2.0, 3.0]),
    goes_on=jnp.ones(4, bool),
  )
  read = host_turns._read(
    host_turns.Episodes(written, SIZE, None), answers, jnp.int32(1)
  )
  np.testing.assert_array_equal(read.size, [0, 4, 3, 4])
  np.testing.assert_array_equal(
    read.written["tokens"],
    [[0, 0, 0, 0], [7, 8, 5, 5], [7, 5, 5, 0], [7, 8, 9, 7]],
  )
  observed = np.array(read.written["tokens"]) == 5
  np.testing.assert_array_equal(read.written["observed"], observed)
  np.testing.assert_array_equal(read.written["turn"], observed)
  np.testing.assert_array_equal(
    read.written["turn_rewards"],
    [[0, 0, 0, 0], [0, 1, 0, 0], [2, 0, 0, 0], [0, 0, 0, 3]],
  )
