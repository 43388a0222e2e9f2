"""Contract of every environment, over the table of all tasks."""

from __future__ import annotations

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from grpo_jax.tasks import TASKS, grid, make_task, nim
from grpo_jax.tasks import task as task_lib
from grpo_jax.tasks import vocabulary as vocab
from grpo_jax.tasks.task import Example, Task
from grpo_jax.types import Turn
from tests.tasks import episodes
from tests.training import tiny

VARIANTS = {
  "calc_tool": (
    "calc_tool",
    {"leak": True, "teacher_leak": 0.2, "teacher_comment": 0.2},
  ),
  "calc_tool-penalty": (
    "calc_tool",
    {
      "leak": True,
      "interceptor": "penalty",
      "penalty": 0.25,
      "teacher_leak": 0.3,
    },
  ),
  "grid": ("grid", {}),
  "grid-table": ("grid", {"tabular": True}),
  "memchain": ("memchain", {"num_steps": 12, "every": 4}),
  "memchain-tagged": (
    "memchain",
    {
      "num_steps": 9,
      "num_facts": 3,
      "num_digits": 2,
      "brief": False,
      "compaction": False,
    },
  ),
  "nim": ("nim", {"num_heaps": 2, "max_stones": 4, "teacher_error": 0.4}),
}
over_variants = pytest.mark.parametrize("variant", tiny.each(VARIANTS, {"nim"}))


@functools.cache
def make(variant: str) -> Task:
  name, options = VARIANTS[variant]
  return make_task(name, **options)


def _calculator_action(rng: np.random.Generator, example: Example) -> list[int]:
  """Calls, comments, leaks and answers, each nearly or quite right."""

  def number() -> str:
    return "".join(rng.choice([*"0123456789"], size=rng.integers(0, 7)))

  gold = int(example.extras["gold"])
  kind = rng.integers(6)
  if kind < 2:
    text = f"<tool>{number()}{rng.choice([*'+-*='])}{number()}</tool>"
  elif kind == 2:
    inner = "".join(rng.choice([*"#ab1"], size=rng.integers(0, 11)))
    text = f"<tool>{inner}</tool>"
  elif kind == 3:
    text = rng.choice(["<tool>#</tool>", "<tool>#abc</tool>"])
  else:
    answer = rng.choice([str(gold), f"0{gold}", f"{gold}0", number()])
    text = f"<answer>{answer}</answer><eos>"
  return vocab.encode(text)


def _grid_action(rng: np.random.Generator, example: Example) -> list[int]:
  del example
  return [int(rng.choice(grid.ACTIONS))]


def _chain_action(rng: np.random.Generator, example: Example) -> list[int]:
  digits = rng.choice([*example.extras["digits"], vocab.DIGIT_0 + 9])
  answer = [vocab.ANSWER, int(digits), vocab.ANSWER_END, vocab.EOS]
  return answer if rng.random() < 0.5 else [vocab.SEMICOLON]


def _stones(rng: np.random.Generator, example: Example) -> list[int]:
  heaps = example.extras["heaps"].tolist()
  if rng.random() < 0.7:
    return vocab.encode(nim._any_move(rng, heaps))
  return vocab.encode(rng.choice([*"abc3"]) + rng.choice([*"b0149"]))


# Task -> an action that is nearly right, or right at the wrong time.
POOLS: dict[str, Callable[[np.random.Generator, Example], list[int]]] = {
  "calc_tool": _calculator_action,
  "grid": _grid_action,
  "memchain": _chain_action,
  "nim": _stones,
}


def teacher_actions(made: Task, example: Example) -> episodes.Actions:
  """A whole episode of the teacher."""
  if made.name != "memchain":
    return episodes.split_actions(example)
  extras = example.extras
  answer = [int(extras["digits"][extras["query"]])]
  waits = [[vocab.SEMICOLON]] * (made.environment.max_turns - 1)
  return [*waits, vocab.wrapped(answer, tags=True)]


@functools.cache
def cases(variant: str, num_rows: int = episodes.NUM_ROWS):
  """Episodes of teachers (a quarter), mutated and random, as played."""
  made = make(variant)
  environment = made.environment
  rng = np.random.default_rng(0)
  extras, actions = [], []
  for i in range(num_rows):
    example = made.example(rng, "test" if i % 3 == 0 else "train")
    pool = functools.partial(POOLS[made.name], example=example)
    episode = teacher_actions(made, example)
    if i % 4 == 3:
      episode = [pool(rng) for _ in range(environment.max_turns + 1)]
    elif i % 4:
      episode = episodes.mutate(episode, pool, environment.max_action_len, rng)
    limit = environment.max_action_len
    extras.append(example.extras)
    actions.append([a[:limit] for a in episode][: environment.max_turns + 1])
  return extras, actions, episodes.play(made, extras, actions)


def test_every_environment_has_a_variant():
  with_environment = {n for n in TASKS if make_task(n).environment is not None}
  assert {name for name, _ in VARIANTS.values()} == with_environment
  assert set(POOLS) == with_environment


@over_variants
def test_environments_agree_with_their_twins(variant):
  extras, actions, played = cases(variant)
  episodes.check_twin(make(variant), extras, actions, played)
  # The comparison means something.
  assert 0.15 < played.scores["accuracy"].mean() < 0.85
  assert set(np.unique(played.scores["accuracy"])) == {0.0, 1.0}


@pytest.mark.slow
@over_variants
def test_turns_have_fixed_shapes_and_end_for_good(variant):
  environment = make(variant).environment
  _, actions, played = cases(variant)
  turns = played.turns
  num_turns = environment.max_turns + 1
  shape = (len(actions), num_turns)
  size = environment.max_observation_len
  assert turns.observation.shape == turns.mask.shape == (*shape, size)
  assert turns.reward.shape == turns.done.shape == shape
  dtypes = [x.dtype for x in turns]
  assert dtypes == [np.int32, bool, np.float32, bool]
  # Observations start at slot 0, without gaps; what is empty holds padding.
  assert (turns.mask[..., :-1] >= turns.mask[..., 1:]).all()
  assert (turns.observation[~turns.mask] == vocab.PAD).all()
  assert (turns.mask.any(axis=-1) == ~turns.done).all()
  # Once done, always done, and nothing happens any more.
  assert turns.done[:, environment.max_turns - 1].all()
  assert (turns.done[:, 1:] >= turns.done[:, :-1]).all()
  over = np.pad(turns.done[:, :-1], ((0, 0), (1, 0)))  # Before the action.
  assert (turns.reward[over] == 0).all()
  np.testing.assert_array_equal(played.changed, ~over)
  assert (played.action_len >= 1).all()
  assert (played.action_len <= environment.max_action_len).all()
  for name, score in played.scores.items():
    assert score.dtype == np.float32, name
  # Shapes of the state are those of the start.
  jax.tree.map(
    lambda x, y: np.testing.assert_equal(
      (x.shape, x.dtype), (y.shape, y.dtype)
    ),
    played.start,
    played.end,
  )


# A game may be lost with it; see `nim_test.py`.
@pytest.mark.slow
@pytest.mark.parametrize("variant", [x for x in VARIANTS if x != "nim"])
def test_an_empty_action_is_a_turn_in_which_nothing_is_done(variant):
  made = make(variant)
  environment = made.environment
  extras = [made.example(np.random.default_rng(0), "train").extras]
  played = episodes.play(made, extras, [[]])
  turns = environment.max_turns
  assert played.turns.done[0].tolist() == [False] * (turns - 1) + [True] * 2
  assert (played.turns.reward == 0).all()
  assert all((score == 0).all() for score in played.scores.values())
  if environment.state_id is not None:
    assert len(np.unique(played.state_id)) == 1


# Every operation of the calculator is a program of its own here.
@over_variants
def test_one_episode_without_jit_is_the_same(variant):
  made = make(variant)
  extras, actions, played = cases(variant)
  row, num_turns = 1, 3
  tokens, mask = episodes.pack(
    made.environment, [a[:num_turns] for a in actions], num_turns
  )
  state = made.environment.reset(episodes.keys()[row], extras[row])
  jax.tree.map(
    lambda x, y: np.testing.assert_array_equal(x, y[row]), state, played.start
  )
  for j in range(num_turns):
    state, turn = made.environment.step(state, tokens[row, j], mask[row, j])
    jax.tree.map(
      lambda x, y, j=j: np.testing.assert_array_equal(x, y[row, j]),
      turn,
      played.turns,
    )


# What a chain says is drawn by `reset`; its examples are in `memchain_test.py`.
@pytest.mark.parametrize(
  "variant", [name for name in VARIANTS if "memchain" not in name]
)
def test_examples_mark_what_the_environment_wrote(variant):
  made = make(variant)
  rng = np.random.default_rng(1)
  for i in range(50):
    example = made.example(rng, "train" if i % 2 else "test")
    assert example.observed.dtype == bool
    actions = episodes.split_actions(example)
    turns, _ = made.replay_numpy(example.extras, None, actions)
    ids, observed = [], []
    for action, turn in zip(actions, turns, strict=True):
      ids += [*action, *turn.observation]
      observed += [False] * len(action) + [True] * len(turn.observation)
    assert example.completion.tolist() == ids
    assert example.observed.tolist() == observed
    assert turns[-1].done


@over_variants
def test_examples_fit(variant):
  made = make(variant)
  environment = made.environment
  rng = np.random.default_rng(2)
  for i in range(100):
    for draw in filter(None, (made.example, made.lesson)):
      example = draw(rng, "train" if i % 2 else "test")
      assert 0 < len(example.prompt) <= made.max_prompt_len
      assert 0 < len(example.completion) <= made.max_completion_len
      assert example.prompt[0] == made.bos_id
      assert example.prompt.dtype == example.completion.dtype == np.int32
      assert example.observed.shape == example.completion.shape
      assert all(x.dtype == np.int32 for x in example.extras.values())
    actions = teacher_actions(made, example)
    assert len(actions) <= environment.max_turns
    assert max(map(len, actions)) <= environment.max_action_len


def test_settling_hides_what_comes_after_the_end():
  turn = Turn(jnp.array([3, 4, 5]), jnp.array([1, 1, 0], bool), 0.5, False)
  for over, done in ((False, False), (False, True), (True, False)):
    state, got = task_lib.mask_after_end(
      jnp.array(over),
      {"x": jnp.array(1)},
      {"x": jnp.array(2)},
      turn._replace(done=jnp.array(done)),
    )
    assert int(state["x"]) == (1 if over else 2)
    assert bool(got.done) == (over or done)
    assert float(got.reward) == (0.0 if over else 0.5)
    wanted = [0, 0, 0] if over or done else [3, 4, 0]
    assert got.observation.tolist() == wanted
