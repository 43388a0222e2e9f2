"""Good, bad and mutated episodes for testing environments and their twins."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from grpo_jax.tasks import vocabulary as vocab
from grpo_jax.tasks.task import Example, Task
from grpo_jax.types import Environment, PyTree, Turn
from tests.tasks import strings

Actions = list[list[int]]

# Rows of every batch, so that each environment is compiled once.
NUM_ROWS = 1024


class Played(NamedTuple):
  """Results of environments; one row per episode, n actions each.

  Attributes:
    start, end: States before the first and after the last action.
    turns: Answers to the actions.
    action_len, state_id: Values of the state before each action.
    changed: Whether each action changed the state.
    scores: Scores at the end.
  """

  start: PyTree  # each [N, ...]
  end: PyTree  # each [N, ...]
  turns: Turn  # each [N, n, ...]
  action_len: np.ndarray  # [N, n]
  state_id: np.ndarray  # [N, n]
  changed: np.ndarray  # [N, n]
  scores: dict[str, np.ndarray]  # each [N]


@functools.cache
def player(environment: Environment) -> Callable:
  """Makes (keys, extras, tokens, mask) -> Played, over rows."""
  return jax.jit(jax.vmap(functools.partial(play_one, environment)))


def play_one(environment: Environment, key, extras, tokens, mask) -> Played:
  """Plays one episode; tokens and mask are [n, A]."""
  length = environment.action_len or (lambda s: environment.max_action_len)
  number = environment.state_id or (lambda s: 0)

  def step(state, action):
    new, turn = environment.step(state, *action)
    same = jax.tree.map(lambda x, y: (x == y).all(), state, new)
    changed = ~jnp.array(jax.tree.leaves(same)).all()
    return new, (turn, length(state), number(state), changed)

  start = environment.reset(key, extras)
  end, answers = jax.lax.scan(step, start, (tokens, mask))
  return Played(start, end, *answers, environment.scores(end))


def pack(
  environment: Environment, episodes: Sequence[Actions], num_turns: int
) -> tuple[np.ndarray, np.ndarray]:  # [N, n, A] int32, [N, n, A] bool
  """Packs actions in slots; missing ones are empty, empty slots arbitrary."""
  shape = (len(episodes), num_turns, environment.max_action_len)
  rng = np.random.default_rng(0)
  tokens = rng.integers(vocab.VOCAB_SIZE, size=shape)
  mask = np.zeros(shape, bool)
  for i, actions in enumerate(episodes):
    for j, action in enumerate(actions):
      tokens[i, j, : len(action)] = action
      mask[i, j, : len(action)] = True
  return tokens.astype(np.int32), mask


def keys(seed: int = 0) -> jax.Array:  # [NUM_ROWS]
  """Keys of the resets."""
  return jax.random.split(jax.random.key(seed), NUM_ROWS)


def play(
  task: Task,
  extras: Sequence[dict],
  episodes: Sequence[Actions],
  seed: int = 0,
) -> Played:
  """Plays up to NUM_ROWS episodes at once, one turn longer than they last."""
  environment = task.environment
  missing = NUM_ROWS - len(episodes)
  tokens, mask = pack(
    environment, [*episodes, *[[]] * missing], environment.max_turns + 1
  )
  padded = strings.stack_extras([*extras, *[extras[-1]] * missing])
  played = player(environment)(keys(seed), padded, tokens, mask)
  return jax.tree.map(lambda x: x[: len(episodes)], jax.device_get(played))


def check_twin(
  task: Task,
  extras: Sequence[dict],
  episodes: Sequence[Actions],
  played: Played,
) -> None:
  """Asserts that the twin answers every action in the same way."""
  num_turns = played.turns.done.shape[1]
  for i, actions in enumerate(episodes):
    actions = [*actions, *[[]] * (num_turns - len(actions))]
    start = jax.tree.map(lambda x, i=i: x[i], played.start)
    turns, scores = task.replay_numpy(extras[i], start, actions)
    for j, wanted in enumerate(turns):
      turn = Turn(*(x[i, j] for x in played.turns))
      said = (
        vocab.decode(turn.observation[turn.mask]),
        turn.reward,
        turn.done,
      )
      told = (vocab.decode(wanted.observation), wanted.reward, wanted.done)
      assert said == told, (i, j, _texts(actions), _texts([wanted[0]]))
    got = {name: float(x[i]) for name, x in played.scores.items()}
    # Not to the last bit: a program may multiply by the reciprocal.
    assert got == pytest.approx(scores, abs=1e-6), (i, _texts(actions))


def _texts(actions: Actions) -> list[str]:
  return [
    "".join(vocab.words(np.array(a, int), np.ones(len(a), bool)))
    for a in actions
  ]


def judge(
  task: Task, extras: dict, texts: Sequence[str]
) -> tuple[list[str], list[float], list[bool], dict[str, float]]:
  """Plays one episode of texts and checks that the twin agrees.

  Returns:
    The observations as text, the rewards, which turns were done, the scores.
  """
  episode = [vocab.encode(text) for text in texts]
  played = play(task, [extras], [episode])
  check_twin(task, [extras], [episode], played)
  size = len(texts)
  observations = [
    task.decode(tokens[mask])
    for tokens, mask in zip(
      played.turns.observation[0, :size],
      played.turns.mask[0, :size],
      strict=True,
    )
  ]
  return (
    observations,
    played.turns.reward[0, :size].tolist(),
    played.turns.done[0, :size].tolist(),
    {name: float(x[0]) for name, x in played.scores.items()},
  )


def split_actions(example: Example) -> Actions:
  """The actions of a completion that holds a whole episode."""
  actions: Actions = [[]]
  for token, observed in zip(
    example.completion.tolist(), example.observed, strict=True
  ):
    if not observed:
      actions[-1].append(token)
    elif actions[-1]:
      actions.append([])
  return [action for action in actions if action]


def mutate(
  actions: Actions,
  pool: Callable[[np.random.Generator], list[int]],
  max_action_len: int,
  rng: np.random.Generator,
) -> Actions:
  """Makes accidents in an episode: other, changed, empty, lost, random ones."""
  actions = [list(action) for action in actions]
  for _ in range(int(rng.integers(1, 4))):
    at = int(rng.integers(len(actions)))
    kind = rng.integers(7)
    if kind == 0:
      actions[at] = []
    elif kind == 1:
      actions.insert(at, pool(rng))
    elif kind == 2 and len(actions) > 1:
      actions.pop(at)
    elif kind == 3:
      size = int(rng.integers(1, max_action_len + 1))
      actions[at] = strings.random_ids(rng, size)
    elif kind == 4:
      actions[at] = strings.mutate(actions[at], rng)
    else:
      actions[at] = pool(rng)
  return [action[:max_action_len] for action in actions]
