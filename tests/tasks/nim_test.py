"""Nim: games known by hand, and what perfect play is."""

from __future__ import annotations

import functools
import itertools

import numpy as np
import pytest

from grpo_jax.tasks import make_task, nim
from grpo_jax.tasks import vocabulary as vocab
from tests.tasks import environment_test, episodes

TASK = environment_test.make("nim")


def game(*heaps, seat=0):
  return {"heaps": np.array(heaps, np.int32), "seat": np.array(seat, np.int32)}


def test_a_game_by_hand():
  # 1 + 2: taking one stone from b leaves 1 + 1, which is lost.
  seen, rewards, done, scores = episodes.judge(
    TASK, game(1, 2), ["b1", "a1", "b1", "a1"]
  )
  assert seen == ["<obs>11</obs>", "<obs>01</obs>", "", ""]
  assert rewards == [0, 0, 1, 0]
  assert done == [False, False, True, True]
  assert scores == {"accuracy": 1, "won": 1, "legal": 1}


@pytest.mark.parametrize(
  ("seat", "actions", "accuracy", "won", "legal"),
  [
    (1, "b1 a1 b1", 1, 0, 1),  # The other one wins; there was nothing to do.
    (0, "a1 b2", 0, 0, 1),  # A mistake, and the other one makes none.
    (1, "a1 b2", 1, 1, 1),
    (0, "b2 a1", 0, 0, 1),
    # Who makes no move has lost.
    (0, "a2 b1", 0, 0, 0),
    (0, "b1 a0", 1, 1, 1),
    (0, "b1 a1 bb", 0, 0, 0),
    (0, "c1", 0, 0, 0),
    (1, "a", 0, 1, 0),  # I did nothing at all.
  ],
)
def test_known_games(seat, actions, accuracy, won, legal):
  *_, scores = episodes.judge(TASK, game(1, 2, seat=seat), actions.split())
  assert scores == {"accuracy": accuracy, "won": won, "legal": legal}


def test_ids_outside_the_vocabulary_are_no_moves():
  a, one = vocab.encode("a1")
  for action in ([a, 151_935], [vocab.VOCAB_SIZE, one], [a], []):
    played = episodes.play(TASK, [game(1, 2)], [[action]])
    episodes.check_twin(TASK, [game(1, 2)], [[action]], played)
    assert played.end.heaps[0].tolist() == [1, 2]
    assert played.turns.done[0, 0]


@functools.cache
def can_win(heaps) -> bool:
  """By trying all games."""
  return any(
    not can_win((*heaps[:i], size - taken, *heaps[i + 1 :]))
    for i, size in enumerate(heaps)
    for taken in range(1, size + 1)
  )


def test_the_winning_move_wins():
  for heaps in itertools.product(range(4), repeat=3):
    move = nim._winning_move(heaps)
    assert (move is not None) == can_win(heaps)
    if move is not None:
      left = list(heaps)
      left["abc".index(move[0])] -= int(move[1])
      assert min(left) >= 0
      assert not can_win(tuple(left))


def test_teachers_win_what_can_be_won():
  made = make_task("nim")
  rng = np.random.default_rng(0)
  begins = []
  for i in range(200):
    example = made.example(rng, "train" if i % 2 else "test")
    heaps, seat = example.extras["heaps"], int(example.extras["seat"])
    scores = made.replay_numpy(
      example.extras, None, episodes.split_actions(example)
    )[1]
    assert scores["won"] == (can_win(tuple(heaps.tolist())) == (seat == 0))
    assert scores["legal"] == 1
    begins.append(seat)
    text = "".join(map(str, heaps))
    assert vocab.decode(example.prompt) == f"<bos><obs>{text}</obs>"
  assert 0.4 < np.mean(begins) < 0.6


def test_states_are_numbered_by_heaps_and_who_is_to_move():
  extras, _, played = environment_test.cases("nim")
  open_ = ~played.turns.done[:, :-1]
  sizes = played.turns.observation[:, :-1, 1:3] - vocab.DIGIT_0
  # Stones and the number of turns do not say who it was: the numbers do.
  got = played.state_id[:, 1:]
  wanted = sizes[..., 0] * 5 + sizes[..., 1]
  np.testing.assert_array_equal(got[open_] % 25, wanted[open_])
  assert set(np.unique(got[open_] // 25)) == {0, 1}
  begins = np.array([int(x["seat"]) for x in extras])
  np.testing.assert_array_equal(played.state_id[:, 0] // 25, begins)
