"""Contexts of rollouts whose environment is on the host, by hand.

`tests/training/phases/sampler_test.py` compares whole rollouts.
"""

import jax
import numpy as np

from grpo_jax.rollout import host_state, resumed
from grpo_jax.types import Prompts

PROMPTS = Prompts(
  tokens=np.array([[9, 2, 3], [4, 5, 6]]),
  mask=np.array([[False, True, True], [True, True, True]]),
  ids=np.arange(2),
  extras={},
)
TOKENS = np.array([[0, 0, 0, 0], [7, 8, 0, 0], [7, 0, 0, 0], [7, 8, 9, 7]])
SIZE = np.array([0, 2, 1, 4])

# Each operation outside a program would be a program of its own.
_joined = jax.jit(resumed.joined, static_argnums=3)
_with_answers = jax.jit(host_state.with_answers)


def test_a_context_is_a_prompt_and_what_was_written_to_the_last_slot():
  tokens, mask = _joined(PROMPTS, TOKENS, SIZE, 0)
  np.testing.assert_array_equal(
    tokens,
    [
      [0, 0, 0, 0, 0, 2, 3],
      [0, 0, 0, 2, 3, 7, 8],
      [0, 0, 0, 4, 5, 6, 7],
      [4, 5, 6, 7, 8, 9, 7],
    ],
  )
  np.testing.assert_array_equal(mask, np.asarray(tokens) > 0)


def test_observations_come_after_actions_as_far_as_there_is_room():
  zero = np.zeros(5, np.int32)
  tokens = np.concatenate([TOKENS, TOKENS[1:2]])
  size = np.append(SIZE, 2)
  episodes = host_state.HostEpisodes(
    buffers={
      "tokens": tokens,
      "completion_mask": np.arange(4) < size[:, None],
      "observed": np.zeros((5, 4), bool),
      "turn": np.zeros((5, 4), np.int32),
      "turn_rewards": np.zeros((5, 4), np.float32),
    },
    size=size,
    start=zero,
    turn=zero,
    state=zero,
    doing=np.array([0, 1, 2, 1, 1]),
    row=np.arange(5),
    read=zero,
    next_row=np.int32(5),
    cache=None,
  )
  answers = host_state.HostAnswers(
    observation=np.full((5, 3), 5),
    size=np.array([0, 3, 2, 3, 3]),
    reward=np.float32([0, 1, 2, 3, 4]),
    continues=np.array([False, True, True, False, True]),
    came=np.array([False, True, True, True, False]),
  )
  read = _with_answers(episodes, answers)
  np.testing.assert_array_equal(read.size, [0, 4, 3, 4, 2])
  np.testing.assert_array_equal(
    read.buffers["tokens"],
    [[0, 0, 0, 0], [7, 8, 5, 5], [7, 5, 5, 0], [7, 8, 9, 7], [7, 8, 0, 0]],
  )
  observed = np.array(read.buffers["tokens"]) == 5
  np.testing.assert_array_equal(read.buffers["observed"], observed)
  np.testing.assert_array_equal(read.buffers["turn"], observed)
  np.testing.assert_array_equal(
    read.buffers["turn_rewards"],
    [[0, 0, 0, 0], [0, 1, 0, 0], [2, 0, 0, 0], [0, 0, 0, 3], [0, 0, 0, 0]],
  )
  # It writes still; no slot is left; it goes on; it is over; it waits.
  np.testing.assert_array_equal(read.doing, [0, 3, 0, 3, 2])
  np.testing.assert_array_equal(read.start, [0, 4, 3, 4, 0])
  np.testing.assert_array_equal(read.turn, [0, 1, 1, 1, 0])
  assert (np.array(read.state) != 0).tolist() == [0, 1, 1, 1, 0]
