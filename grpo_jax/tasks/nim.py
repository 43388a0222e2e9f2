"""Nim: two players take stones from heaps; who takes the last stone wins.

The prompt is `BOS` and the first observation, and every observation is

    <obs> n_1 n_2 .. n_h </obs>

the numbers of stones of the heaps. An action is two tokens, heap and number:
`b2` takes two stones from the second heap. A player whose action is not such a
move, or takes more stones than there are, loses.

Seat 0 is the policy that is trained, and seat 1 the opponent. Either may begin.
The player to move can win if the bitwise sum (XOR) of the heaps is not 0: then
a move makes the sum 0, and from a position with sum 0 every move makes it
nonzero.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from grpo_jax.tasks import task as task_lib
from grpo_jax.tasks import vocabulary as vocab
from grpo_jax.tasks.task import Example, PlainTurn, Task
from grpo_jax.types import Environment, Extras, Turn

ACTION_LEN = 2


def make(
  num_heaps: int = 3, max_stones: int = 4, teacher_error: float = 0.0
) -> Task:
  """Makes the game.

  The reward is 1 for a game that the policy wins. Scores: "accuracy", 1 if the
  policy played without a fault: it moved, only by legal moves, and never left a
  position that it could win to the opponent; "won"; "legal", 1 if all its
  actions were legal moves. Faults do not depend on the opponent; "won" depends
  on the opponent's strength.

  Args:
    num_heaps: h, 2 to 4.
    max_stones: Most stones of a heap at the beginning, 4 to 9.
    teacher_error: Probability, at each turn, with which the teacher, who plays
      both seats, makes a random move instead of a winning move.
  """
  options = dict(locals())
  task_lib.check_ranges(
    "nim.make",
    options,
    num_heaps=(2, 4),
    max_stones=(4, 9),
    teacher_error=(0.0, 1.0),
  )
  max_turns = num_heaps * max_stones
  observation_len = num_heaps + 2
  return Task(
    name="nim",
    **vocab.of_task(),
    max_prompt_len=1 + observation_len,
    max_completion_len=(
      max_turns * ACTION_LEN + (max_turns - 1) * observation_len
    ),
    example=task_lib.bound(example, options),
    verify=None,
    verify_numpy=None,
    environment=Environment(
      max_turns=max_turns,
      max_action_len=ACTION_LEN,
      max_observation_len=observation_len,
      action_ends=(),
      reset=reset,
      step=step,
      scores=scores,
      state_id=functools.partial(state_id, base=max_stones + 1),
      seat=seat,
    ),
    replay_numpy=functools.partial(task_lib.replay, twin=PlainGame),
  )


# The generator and the teacher.


def example(
  rng: np.random.Generator,
  split: str,
  *,
  num_heaps: int,
  max_stones: int,
  teacher_error: float,
) -> Example:
  """Draws one problem; see `Task.example`.

  Extras: heaps [num_heaps]; seat [], the first player. Games that differ only
  in the first player, or in the order of the heaps, share a split.
  """
  *heaps, seat = task_lib.draw(
    rng,
    split,
    functools.partial(_sample, num_heaps=num_heaps, max_stones=max_stones),
    identity=lambda game: sorted(game[:-1]),
  )
  extras = {
    "heaps": np.array(heaps, np.int32),
    "seat": np.array(seat, np.int32),
  }
  game = PlainGame(extras)
  prompt = [vocab.BOS, *vocab.encode(game.observation())]
  completion, observed = [], []
  done = False
  while not done:
    move = _winning_move(game.heaps)
    # Always drawn, so that teachers of all probabilities see the same games.
    errs, other = rng.random() < teacher_error, _any_move(rng, game.heaps)
    action = other if errs or move is None else move
    reply, _, done = game.act(vocab.encode(action))
    completion += [*vocab.encode(action), *reply]
    observed += [*[False] * ACTION_LEN, *[True] * len(reply)]
  return Example.of(prompt, completion, extras, observed)


def _sample(
  rng: np.random.Generator, num_heaps: int, max_stones: int
) -> list[int]:
  """Draws heaps, at least two of them with stones, and the first player."""
  while True:
    heaps = rng.integers(max_stones + 1, size=num_heaps).tolist()
    seat = int(rng.integers(2))
    if sum(size > 0 for size in heaps) > 1:
      return [*heaps, seat]


def _any_move(rng: np.random.Generator, heaps: Sequence[int]) -> str:
  """Draws a legal move; all legal moves are equally likely."""
  moves = [
    f"{chr(ord('a') + heap)}{count}"
    for heap, size in enumerate(heaps)
    for count in range(1, size + 1)
  ]
  return str(rng.choice(moves))


def _winning_move(heaps: Sequence[int]) -> str | None:
  """The first move that makes the bitwise sum 0; None if no move does."""
  total = functools.reduce(operator.xor, heaps)
  for heap, size in enumerate(heaps):
    if (rest := size ^ total) < size:
      return f"{chr(ord('a') + heap)}{size - rest}"
  return None


# The environment.


class NimState(NamedTuple):
  """The state of a game."""

  heaps: jax.Array  # [num_heaps] int32
  mover: jax.Array  # [] int32, the seat that is to move
  turn: jax.Array  # [] int32
  moved: jax.Array  # [] bool, the policy has moved
  legal: jax.Array  # [] bool, all actions of the policy were legal
  faulty: jax.Array  # [] bool, an action of the policy was a fault
  over: jax.Array  # [] bool
  won: jax.Array  # [] bool


def reset(key: jax.Array, extras: Extras) -> NimState:
  """Begins a game; nothing in it is random."""
  del key
  no = jnp.zeros((), bool)
  return NimState(
    heaps=jnp.asarray(extras["heaps"], jnp.int32),
    mover=jnp.asarray(extras["seat"], jnp.int32),
    turn=jnp.zeros((), jnp.int32),
    moved=no,
    legal=~no,
    faulty=no,
    over=no,
    won=no,
  )


def _is_won(heaps: jax.Array) -> jax.Array:  # [h] -> [] bool
  """Returns True if the player who is to move can win."""
  return functools.reduce(jnp.bitwise_xor, list(heaps)) != 0


def step(
  state: NimState,
  tokens: jax.Array,  # [2] int32
  mask: jax.Array,  # [2] bool
) -> tuple[NimState, Turn]:
  """Does one action; see `Environment.step`."""
  heap, count = tokens[0] - vocab.LETTER_A, tokens[1] - vocab.DIGIT_0
  stones = jnp.where(jnp.arange(len(state.heaps)) == heap, count, 0)
  is_move = mask.all() & (stones.sum() == count) & (count >= 1) & (count <= 9)
  is_move &= (stones <= state.heaps).all()
  heaps = jnp.where(is_move, state.heaps - stones, state.heaps)
  is_mine = state.mover == 0
  fault = ~is_move | (_is_won(state.heaps) & _is_won(heaps))
  done = ~is_move | (heaps == 0).all()
  won = done & (is_mine == is_move)
  new = NimState(
    heaps=heaps,
    mover=1 - state.mover,
    turn=state.turn + 1,
    moved=state.moved | (is_mine & is_move),
    legal=state.legal & (is_move | ~is_mine),
    faulty=state.faulty | (is_mine & fault),
    over=done,
    won=won,
  )
  reply = jnp.concatenate(
    [jnp.array([vocab.OBS]), vocab.DIGIT_0 + heaps, jnp.array([vocab.OBS_END])]
  ).astype(jnp.int32)
  turn = Turn(reply, jnp.ones(reply.shape, bool), won.astype(jnp.float32), done)
  return task_lib.mask_after_end(state.over, state, new, turn)


def scores(state: NimState) -> dict[str, jax.Array]:
  """Judges a game; see `make` for the names."""
  flags = {
    "accuracy": state.moved & ~state.faulty,
    "won": state.won,
    "legal": state.moved & state.legal,
  }
  return {name: x.astype(jnp.float32) for name, x in flags.items()}


def seat(state: NimState) -> jax.Array:  # [] int32
  """The seat that is to move; see `Environment.seat`."""
  return state.mover


def state_id(state: NimState, *, base: int) -> jax.Array:  # [] int32
  """Number of a state: heaps as digits, and the seat to move; exact."""
  number = state.mover
  for size in list(state.heaps):
    number = number * base + size
  return number


# The twin.


class PlainGame:
  """Twin of the environment, on words."""

  def __init__(self, extras: Mapping[str, np.ndarray]):
    self.heaps = extras["heaps"].tolist()
    self._names = "abcd"[: len(self.heaps)]
    self._is_mine = int(extras["seat"]) == 0
    self._mine: list[str] = []  # Each "move", "fault" or "end".
    self._winner = ""

  def observation(self) -> str:
    """The observation."""
    return f"<obs>{''.join(map(str, self.heaps))}</obs>"

  def act(self, action: Sequence[int]) -> PlainTurn:
    """Does one action."""
    if self._winner:
      return PlainTurn([], 0.0, True)
    me, other = ("policy", "other") if self._is_mine else ("other", "policy")
    could_win = _winning_move(self.heaps) is not None
    kind = "move"
    if not self._moves(vocab.decode(action)):
      kind, self._winner = "end", other
    elif not any(self.heaps):
      self._winner = me
    elif could_win and _winning_move(self.heaps) is not None:
      kind = "fault"
    if self._is_mine:
      self._mine.append(kind)
    self._is_mine = not self._is_mine
    reply = [] if self._winner else vocab.encode(self.observation())
    won = float(self._winner == "policy")
    return PlainTurn(reply, won, bool(self._winner))

  def _moves(self, word: str) -> bool:
    """Takes stones, if the word is a move."""
    if len(word) != 2 or word[0] not in self._names:
      return False
    heap, count = self._names.index(word[0]), "0123456789".find(word[1])
    if not 1 <= count <= self.heaps[heap]:
      return False
    self.heaps[heap] -= count
    return True

  def scores(self) -> dict[str, float]:
    """Twin of `scores`."""
    kinds = set(self._mine)
    return {
      "accuracy": float(kinds == {"move"}),
      "won": float(self._winner == "policy"),
      "legal": float(bool(kinds) and "end" not in kinds),
    }
