"""A room of five by five cells, where a key opens a door.

The prompt is `BOS` and the first observation, and every observation is

    <obs> c r , c r , c r : h </obs>

column and row of agent, key and door, from the upper left, and 1 if the agent
has the key, else 0; the key's place stays in the observation after the key is
taken. An action is one token: u, d, l or r moves by a cell, g takes the key of
this cell, and any other token does nothing. To reach the door with the key is
worth 1 and ends the episode.

Three cells are walls, and moves into them or out of the room do nothing. The
walls are not in the observation: the policy must find them by moving. Problems
that need more than the twelve turns, or that walls make unsolvable, are not
drawn.

With `tabular` there is one room, in which episodes begin anywhere,

    . . K . .
    . . . . .
    . . . . .
    . . # . .
    # . D . #

and each cell, without and with the key, has an observation of a single token:
`<31:0>` is column 3, row 1, no key. The best action depends on it alone, so a
policy is a table of 50 rows. A model of one layer whose `sliding_window` is 1
can be such a table: it sees only the last token. The first 64 tokens, and so
the actions, are those of all tasks.
"""

from __future__ import annotations

import collections
import functools
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from grpo_jax.tasks import task as task_lib
from grpo_jax.tasks import vocabulary as vocab
from grpo_jax.tasks.task import Example, PlainTurn, Task
from grpo_jax.types import Environment, Extras, Turn

SIZE = 5
NUM_CELLS = SIZE * SIZE  # Cell = row * SIZE + column.
NUM_WALLS = 3
MAX_TURNS = 12
OBSERVATION_LEN = 12
UP, DOWN, LEFT, RIGHT, GRAB = vocab.encode("udlrg")
ACTIONS = (UP, DOWN, LEFT, RIGHT, GRAB)
# Letter -> change of column and row.
MOVES = {"u": (0, -1), "d": (0, 1), "l": (-1, 0), "r": (1, 0)}
# Observations of `tabular`, by `state_id`.
STATES = tuple(
  f"<{cell % SIZE}{cell // SIZE}:{h}>"
  for cell in range(NUM_CELLS)
  for h in (0, 1)
)
# Key, door and walls of the only room of `tabular`.
_KEY, _DOOR, _WALLS = 2, 22, [17, 20, 24]


def make(teacher_error: float = 0.0, tabular: bool = False) -> Task:
  """Makes the grid task.

  The reward is 1 at the door with the key. Scores: "accuracy"; "key", 1 if the
  key was taken.

  Args:
    teacher_error: Probability, at each turn, with which the teacher takes a
      random action instead of the next step of a shortest path.
    tabular: Whether there is one room, and one token for each of its states.

  Raises:
    ValueError: `teacher_error` is not in [0, 1].
  """
  options = dict(locals())
  task_lib.check_ranges(
    "grid.make",
    options,
    teacher_error=(0.0, 1.0),
  )
  states = STATES if tabular else ()
  size = 1 if tabular else OBSERVATION_LEN
  return Task(
    name="grid",
    **vocab.of_task(states),
    max_prompt_len=1 + size,
    max_completion_len=MAX_TURNS + (MAX_TURNS - 1) * size,
    example=task_lib.bound(example, options),
    verify=None,
    verify_numpy=None,
    environment=Environment(
      max_turns=MAX_TURNS,
      max_action_len=1,
      max_observation_len=size,
      action_ends=(),
      reset=reset,
      step=task_lib.bound(step, options),
      scores=scores,
      state_id=state_id,
    ),
    replay_numpy=functools.partial(
      task_lib.replay, twin=task_lib.bound(PlainRoom, options)
    ),
  )


# The generator and the teacher.


def example(
  rng: np.random.Generator, split: str, *, teacher_error: float, tabular: bool
) -> Example:
  """Draws one problem; see `Task.example`.

  Extras: agent, key, door [], walls [3]; all are cells. Rooms that differ only
  in the walls, which the prompt does not show, share a split.
  """
  sample = _sample_start if tabular else _sample
  agent, key, door, walls = task_lib.draw(
    rng, split, sample, identity=lambda room: room[:3]
  )
  extras = {
    "agent": np.array(agent, np.int32),
    "key": np.array(key, np.int32),
    "door": np.array(door, np.int32),
    "walls": np.array(walls, np.int32),
  }
  room = PlainRoom(extras, tabular)
  prompt = [vocab.BOS, *vocab.encode(room.observation(), STATES)]
  paths = {goal: _distances(goal, walls) for goal in (key, door)}
  completion, observed = [], []
  done = False
  while not done:
    action = int(rng.choice(ACTIONS))
    if rng.random() >= teacher_error:
      column, row = room.agent
      path = paths[door if room.has_key else key]
      action = _next_action(row * SIZE + column, path)
    reply, _, done = room.act([action])
    completion += [action, *reply]
    observed += [False, *[True] * len(reply)]
  return Example.of(prompt, completion, extras, observed)


def _sample(rng: np.random.Generator) -> tuple[int, int, int, list[int]]:
  """Draws agent, key, door and walls of a room that can be solved in time."""
  while True:
    cells = rng.permutation(NUM_CELLS).tolist()
    agent, key, door, *others = cells
    walls = sorted(others[:NUM_WALLS])
    far = MAX_TURNS + 1
    to_key = _distances(key, walls).get(agent, far)
    to_door = _distances(door, walls).get(key, far)
    if to_key + 1 + to_door <= MAX_TURNS:  # One turn takes the key.
      return agent, key, door, walls


def _sample_start(
  rng: np.random.Generator,
) -> tuple[int, int, int, list[int]]:
  """Draws the first cell in the only room; it can be solved from every cell."""
  others = {_KEY, _DOOR, *_WALLS}
  agent = int(rng.choice([x for x in range(NUM_CELLS) if x not in others]))
  return agent, _KEY, _DOOR, _WALLS


def _neighbours(cell: int) -> dict[str, int]:
  """Maps letters of moves to the cells that they reach inside the room."""
  row, column = divmod(cell, SIZE)
  return {
    letter: (row + dy) * SIZE + column + dx
    for letter, (dx, dy) in MOVES.items()
    if 0 <= row + dy < SIZE and 0 <= column + dx < SIZE
  }


_NEIGHBOURS = [_neighbours(cell) for cell in range(NUM_CELLS)]


def _distances(goal: int, walls: Sequence[int]) -> dict[int, int]:
  """Number of moves from each cell to the goal; only cells that reach it."""
  distances = {goal: 0}
  queue = collections.deque([goal])
  while queue:
    cell = queue.popleft()
    for other in _NEIGHBOURS[cell].values():
      if other not in walls and other not in distances:
        distances[other] = distances[cell] + 1
        queue.append(other)
  return distances


def _next_action(cell: int, distances: Mapping[int, int]) -> int:
  """The next move of a shortest path, or taking the key at its end."""
  if not distances[cell]:
    return GRAB
  nearer = (
    letter
    for letter, other in _NEIGHBOURS[cell].items()
    if distances.get(other) == distances[cell] - 1
  )
  return vocab.encode(next(nearer))[0]


# The environment.


class GridState(NamedTuple):
  """The state of an episode; places are cells."""

  agent: jax.Array  # [] int32
  key: jax.Array  # [] int32
  door: jax.Array  # [] int32
  walls: jax.Array  # [3] int32
  has_key: jax.Array  # [] bool
  turn: jax.Array  # [] int32
  over: jax.Array  # [] bool
  won: jax.Array  # [] bool


def reset(key: jax.Array, extras: Extras) -> GridState:
  """Begins an episode; nothing in it is random."""
  del key
  no = jnp.zeros((), bool)
  return GridState(
    agent=jnp.asarray(extras["agent"], jnp.int32),
    key=jnp.asarray(extras["key"], jnp.int32),
    door=jnp.asarray(extras["door"], jnp.int32),
    walls=jnp.asarray(extras["walls"], jnp.int32),
    has_key=no,
    turn=jnp.zeros((), jnp.int32),
    over=no,
    won=no,
  )


def step(
  state: GridState,
  tokens: jax.Array,  # [1] int32
  mask: jax.Array,  # [1] bool
  *,
  tabular: bool,
) -> tuple[GridState, Turn]:
  """Does one action; see `Environment.step`."""
  action = jnp.where(mask[0], tokens[0], vocab.PAD)
  row, column = state.agent // SIZE, state.agent % SIZE
  row = row + (action == DOWN) - (action == UP)
  column = column + (action == RIGHT) - (action == LEFT)
  inside = (row >= 0) & (row < SIZE) & (column >= 0) & (column < SIZE)
  cell = row * SIZE + column
  free = inside & (cell != state.walls).all()
  agent = jnp.where(free, cell, state.agent)
  has_key = state.has_key | ((action == GRAB) & (agent == state.key))
  won = has_key & (agent == state.door)
  turn = state.turn + 1
  done = won | (turn == MAX_TURNS)
  new = state._replace(
    agent=agent, has_key=has_key, turn=turn, over=done, won=won
  )
  if tabular:
    observation = vocab.VOCAB_SIZE + state_id(new)[None]
  else:
    observation = _observation(new)
  return task_lib.mask_after_end(
    state.over,
    state,
    new,
    Turn(
      observation,
      jnp.ones(len(observation), bool),
      won.astype(jnp.float32),
      done,
    ),
  )


def _observation(state: GridState) -> jax.Array:  # [12] int32
  """The observation of a state, as token ids."""

  def place(cell: jax.Array) -> list[jax.Array]:
    return [vocab.DIGIT_0 + cell % SIZE, vocab.DIGIT_0 + cell // SIZE]

  return jnp.stack(
    [
      jnp.int32(vocab.OBS),
      *place(state.agent),
      jnp.int32(vocab.COMMA),
      *place(state.key),
      jnp.int32(vocab.COMMA),
      *place(state.door),
      jnp.int32(vocab.COLON),
      vocab.DIGIT_0 + state.has_key.astype(jnp.int32),
      jnp.int32(vocab.OBS_END),
    ]
  )


def scores(state: GridState) -> dict[str, jax.Array]:
  """Judges an episode; see `make` for the names."""
  return {
    "accuracy": state.won.astype(jnp.float32),
    "key": state.has_key.astype(jnp.float32),
  }


def state_id(state: GridState) -> jax.Array:  # [] int32
  """Number of a state: cell * 2 + h, below 2 * NUM_CELLS.

  It is exact within one problem.
  """
  return state.agent * 2 + state.has_key


# The twin.


class PlainRoom:
  """Twin of the environment, on words; places are (column, row)."""

  def __init__(self, extras: Mapping[str, np.ndarray], tabular: bool):
    def place(cell: int) -> tuple[int, int]:
      return cell % SIZE, cell // SIZE

    self.agent = place(int(extras["agent"]))
    self.has_key = False
    self._key = place(int(extras["key"]))
    self._door = place(int(extras["door"]))
    cells = {(x, y) for x in range(SIZE) for y in range(SIZE)}
    self._free = cells - {place(int(cell)) for cell in extras["walls"]}
    self._tabular = tabular
    self._turns = 0
    self._won = False

  def observation(self) -> str:
    """The observation."""
    if self._tabular:
      column, row = self.agent
      return f"<{column}{row}:{int(self.has_key)}>"
    places = (self.agent, self._key, self._door)
    text = ",".join(f"{x}{y}" for x, y in places)
    return f"<obs>{text}:{int(self.has_key)}</obs>"

  def act(self, action: Sequence[int]) -> PlainTurn:
    """Does one action."""
    if self._over():
      return PlainTurn([], 0.0, True)
    self._turns += 1
    word = vocab.decode(action)
    if word in MOVES:
      cell = tuple(np.add(self.agent, MOVES[word]).tolist())
      self.agent = cell if cell in self._free else self.agent
    elif word == "g" and self.agent == self._key:
      self.has_key = True
    self._won = self.has_key and self.agent == self._door
    reply = [] if self._over() else vocab.encode(self.observation(), STATES)
    return PlainTurn(reply, float(self._won), self._over())

  def scores(self) -> dict[str, float]:
    """Twin of `scores`."""
    return {
      "accuracy": float(self._won),
      "key": float(self.has_key),
    }

  def _over(self) -> bool:
    return self._won or self._turns == MAX_TURNS
