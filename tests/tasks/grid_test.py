"""Key and door: walks known by hand."""

from __future__ import annotations

import numpy as np
import pytest

from grpo_jax.tasks import grid, make_task
from grpo_jax.tasks import vocabulary as vocab
from tests.tasks import environment_test, episodes

TASK = environment_test.make("grid")
TABLE = environment_test.make("grid-table")


def cell(column: int, row: int) -> int:
  return row * 5 + column


# A . # . .     Agent, key and door, and walls.
# . . # . .
# K . . . D
# . . . . .
# . # . . .
ROOM = {
  "agent": np.array(cell(0, 0), np.int32),
  "key": np.array(cell(0, 2), np.int32),
  "door": np.array(cell(4, 2), np.int32),
  "walls": np.array([cell(2, 0), cell(2, 1), cell(1, 4)], np.int32),
}


def test_a_walk_to_the_door_by_hand():
  seen, rewards, done, scores = episodes.judge(TASK, ROOM, [*"ddgrrrrl"])
  places = ["01", "02", "02", "12", "22", "32"]
  has_key = [0, 0, 1, 1, 1, 1]
  assert seen == [
    f"<obs>{place},02,42:{h}</obs>"
    for place, h in zip(places, has_key, strict=True)
  ] + ["", ""]
  assert rewards == [0] * 6 + [1, 0]
  assert done == [False] * 6 + [True, True]
  assert scores == {"accuracy": 1, "key": 1}


@pytest.mark.parametrize(
  ("actions", "places", "key"),
  [
    # Out of the room.
    ("u", "00", 0),
    ("l", "00", 0),
    ("rdddddd", "10 11 12 13 13 13 13", 0),  # A wall at (1, 4).
    ("rrr", "10 10 10", 0),  # A wall at (2, 0).
    # The key is elsewhere, then here; without it the door stays shut.
    ("gd", "00 01", 0),
    ("ddrrrrl", "01 02 12 22 32 42 32", 0),
    ("ddgg", "01 02 02 02", 1),
    ("x0", "00 00", 0),
  ],
)
def test_known_moves(actions, places, key):
  seen, rewards, _, scores = episodes.judge(TASK, ROOM, [*actions])
  assert [text[5:7] for text in seen] == places.split()
  assert rewards == [0] * len(actions)
  assert scores["key"] == key
  assert scores["accuracy"] == 0


def test_ids_outside_the_vocabulary_do_nothing():
  actions = [[vocab.VOCAB_SIZE], [151_935], [vocab.EOS], [grid.DOWN]]
  played = episodes.play(TASK, [ROOM], [actions])
  episodes.check_twin(TASK, [ROOM], [actions], played)
  assert played.end.agent == cell(0, 1)


def test_states_are_numbered_by_what_is_seen():
  _, _, played = environment_test.cases("grid")
  before = played.turns.observation[:, :-1]  # Of the state before an action.
  open_ = ~played.turns.done[:, :-1]
  column, row = before[..., 1] - vocab.DIGIT_0, before[..., 2] - vocab.DIGIT_0
  wanted = (row * 5 + column) * 2 + before[..., 10] - vocab.DIGIT_0
  got = played.state_id[:, 1:]
  np.testing.assert_array_equal(got[open_], wanted[open_])
  assert got.max() < 2 * grid.NUM_CELLS
  assert len(np.unique(got)) == 2 * grid.NUM_CELLS


def test_rooms_are_solved_by_the_shortest_walk_in_time():
  rng = np.random.default_rng(0)
  lengths = []
  for i in range(300):
    example = TASK.example(rng, "train" if i % 2 else "test")
    places = [int(example.extras[n]) for n in ("agent", "key", "door")]
    assert len({*places, *example.extras["walls"].tolist()}) == 6
    actions = episodes.split_actions(example)
    scores = TASK.replay_numpy(example.extras, None, actions)[1]
    assert scores["accuracy"] == 1
    lengths.append(len(actions))
    # No walk around walls is shorter than one through the open room.
    (ax, ay), (kx, ky), (dx, dy) = (divmod(place, 5) for place in places)
    apart = abs(ax - kx) + abs(ay - ky) + abs(kx - dx) + abs(ky - dy)
    assert len(actions) >= apart + 1
  assert max(lengths) == grid.MAX_TURNS


def test_walls_make_detours():
  walls = [cell(2, 0), cell(2, 1), cell(2, 2)]
  distances = grid._distances(cell(4, 0), walls)
  assert distances[cell(0, 0)] == 4 + 2 * 3
  # A corner behind two walls is out of reach.
  assert cell(0, 0) not in grid._distances(cell(4, 4), [1, 5, 12])


@pytest.mark.slow
def test_teachers_err_as_often_as_asked():
  rng = np.random.default_rng(0)
  scores = {}
  for error in (0.3, 1.0):
    made = make_task("grid", teacher_error=error)
    won = []
    for _ in range(300):
      example = made.example(rng, "train")
      actions = episodes.split_actions(example)
      assert len(actions) <= grid.MAX_TURNS
      won.append(
        made.replay_numpy(example.extras, None, actions)[1]["accuracy"]
      )
    scores[error] = np.mean(won)
  assert 0.5 < scores[0.3] < 0.95
  assert scores[1.0] < 0.1


def test_the_prompt_is_the_first_observation():
  example = TASK.example(np.random.default_rng(0), "train")
  places = [divmod(int(example.extras[n]), 5) for n in ("agent", "key", "door")]
  text = ",".join(f"{column}{row}" for row, column in places)
  assert vocab.decode(example.prompt) == f"<bos><obs>{text}:0</obs>"


# . . K . .     The one room, entered at its corner.
# . . . . .
# . . . . .
# . . # . .
# # . D . #
ONE_ROOM = {
  "agent": np.array(cell(0, 0), np.int32),
  "key": np.array(cell(2, 0), np.int32),
  "door": np.array(cell(2, 4), np.int32),
  "walls": np.array([cell(2, 3), cell(0, 4), cell(4, 4)], np.int32),
}


def test_a_walk_through_a_table_by_hand():
  seen, rewards, done, scores = episodes.judge(
    TABLE, ONE_ROOM, [*"rrgdddlddrl"]
  )
  cells = "10:0 20:0 20:1 21:1 22:1 22:1 12:1 13:1 14:1"
  assert seen == [f"<{x}>" for x in cells.split()] + ["", ""]
  assert rewards == [0] * 9 + [1, 0]
  assert done == [False] * 9 + [True, True]
  assert scores == {"accuracy": 1, "key": 1}


def test_tables_have_a_token_for_each_state_of_the_room():
  assert TABLE.vocab_size == 64 + 50
  _, _, played = environment_test.cases("grid-table")
  going = ~played.turns.done[:, :-1]
  tokens = played.turns.observation[:, :-1, 0]
  np.testing.assert_array_equal(
    tokens[going], 64 + played.state_id[:, 1:][going]
  )
  rng = np.random.default_rng(0)
  begins = set()
  for _ in range(200):
    prompt = TABLE.example(rng, "train").prompt
    assert TABLE.encode(TABLE.decode(prompt)) == prompt.tolist()
    begins.add(int(prompt[-1]))
  # 25 cells but for walls, key and door, and the three of the other split.
  assert len(begins) == 25 - 3 - 2 - 3
  assert TABLE.decode([64 + 2 * cell(3, 1), 0]) == "<31:0>"
