"""Compares expected answers of prefixes with one long row for each answer."""

import dataclasses
import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from grpo_jax.step import models, prefix_value
from grpo_jax.step.micro_batches import UpdatePlan
from grpo_jax.types import PromptFields, Prompts, SamplerFields, TrainBatch
from tests.training import tiny

pytestmark = pytest.mark.slow

# Tokens: pad 0, end 1, letters 2 and 3, closing tag 4, opening tags 5 and 6.
OPENER, CLOSER = (5, 6), (4, 1)
RIGHT = np.array([[2, 3], [3, 0]])  # The second one is padded.
PROMPTS = np.array([[0, 2, 3], [3, 3, 2]])
# Thoughts of 2s and 3s, of which each 3 ends a segment; then an answer.
ROWS = [
  [2, 3, 2, 2, 3, 5, 6, 2, 3, 4, 1],  # Right.
  [3, 3, 5, 6, 3, 3, 4, 1],  # Half right.
  [2, 2, 5, 6, 2, 3, 4, 1],  # The same answer again.
  [2, 3, 3, 2],  # None.
  [5, 6, 3, 4, 1],  # Without a thought.
  [3, 2, 2, 3, 2, 3, 2, 5, 6, 2, 4, 1],
  [3, 5, 6, 2, 3, 3, 4, 1],  # Too long.
  [2, 3, 2, 5, 6, 4, 1],  # Empty.
]
SLOTS = 13


def _worth(tokens, mask, extras):
  """Half for each right letter; 0 for answers of another length."""
  size = mask.sum() - 4
  right = extras["answer"]
  same = (tokens[2:4] == right) & (jnp.arange(2) < size)
  return jnp.where(size == (right > 0).sum(), same.sum() / size, 0.0)


FORCED = prefix_value.ForcedAnswers(
  answers=prefix_value.Answers(lambda extras: extras["answer"], _worth, 0),
  opener=OPENER,
  closer=CLOSER,
  delimiter=np.arange(7) == 3,
  entropy_quantile=1.0,
  min_gap=4,
  max_segments=4,
)


def _batch():
  mask = np.arange(SLOTS) < np.array([len(row) for row in ROWS])[:, None]
  tokens = np.array([row + [0] * (SLOTS - len(row)) for row in ROWS])
  groups = np.arange(8) // 4
  rows = np.ones(8, bool)
  arrays = {
    "prompt_index": groups,
    "group_id": groups,
    "tokens": tokens,
    "completion_mask": mask,
    "mask": mask,
    "rewards": np.zeros(8),
    "valid": rows,
    "terminated": rows,
    "correct": rows,
    "prompts": PromptFields(PROMPTS, PROMPTS > 0),
    "sampler": SamplerFields(
      entropy=np.random.default_rng(0).random(tokens.shape)
    ),
  }
  arrays = jax.tree.map(jnp.asarray, arrays)
  prompts = Prompts(
    arrays["prompts"].tokens,
    arrays["prompts"].mask,
    jnp.arange(2),
    {"answer": jnp.asarray(RIGHT)},
  )
  return prompts, TrainBatch(**arrays, num_groups=2)


POLICIES = {
  "keys and values": lambda: tiny.tiny_transformer(
    vocab_size=7, sliding_window=5
  ),
  "states": lambda: tiny.tiny_transformer(num_layers=2, **tiny.LINEAR),
  "whole rows": lambda: tiny.tiny_policy(),
}


@functools.cache
def _policy(name):
  policy = POLICIES[name]()
  params = policy.init(jax.random.key(1))
  # Answers that are neither certain nor hopeless.
  return policy, jax.tree.map(lambda x: 2 * x, params)


@functools.cache
def _program(name):
  policy, params = _policy(name)
  view = models.policy_view(policy, {"policy": params})
  # Micro-batches of two lengths, in which rows change places.
  plan = UpdatePlan(
    micro_batch_size=2, group_size=4, lengths=(6,), temperature=1.3
  )

  @jax.jit
  def run(prompts, batch):
    batch = FORCED.with_candidates(prompts, batch)
    return FORCED.with_utilities(plan, view, batch)

  return run


def _run(name):
  return jax.device_get(_program(name)(*_batch()))


def _probabilities(name, rows):
  """π of the last tokens of each (prompt, text, how many are asked for)."""
  policy, params = _policy(name)
  size = max(len(text) for _, text, _ in rows)
  tokens = np.array([text + [0] * (size - len(text)) for _, text, _ in rows])
  mask = np.arange(size) < np.array([len(text) for _, text, _ in rows])[:, None]

  @jax.jit
  def logp(prompts, tokens, mask):
    h, _ = policy.hidden(
      params, prompts, prompts > 0, tokens, mask, jnp.arange(len(tokens))
    )
    logits = jax.nn.log_softmax(policy.head(params, h) / 1.3)
    return jnp.take_along_axis(logits, tokens[..., None], 2)[..., 0]

  prompts = PROMPTS[[prompt for prompt, _, _ in rows]]
  found = np.asarray(logp(prompts, tokens, mask))
  return [
    np.exp(found[i, len(text) - asked : len(text)].sum())
    for i, (_, text, asked) in enumerate(rows)
  ]


def _final_answer(row):
  text = "".join(map(str, row))
  if "56" not in text or not text.endswith("41"):
    return None
  found = [int(x) for x in text.split("56")[1][:-2]]
  return tuple(found) if len(found) <= 2 else None


def _value(answer, prompt):
  right = [int(x) for x in RIGHT[prompt] if x]
  if len(answer) != len(right):
    return 0.0
  return sum(x == y for x, y in zip(answer, right, strict=True)) / len(right)


def _prefixes(row):
  """The starts of segments: after each 3 of a thought, four at most."""
  thought = row.index(5) if 5 in row else len(row)
  cuts = [t + 1 for t in range(thought) if row[t] == 3]
  if 5 in row and thought:
    cuts.append(thought)
  cuts = sorted({cut for cut in cuts if cut < len(row)})
  return [0, *cuts[:3]]


def _expected(name, answers_of):
  """{(row, start of a segment): V̂}, with these answers for each prompt."""
  asked, where = [], []
  for i, row in enumerate(ROWS):
    for cut in _prefixes(row):
      for answer in answers_of[i // 4]:
        text = [*row[:cut], *OPENER, *answer, *CLOSER]
        asked.append((i // 4, text, len(answer) + 2))
        where.append((i, cut, _value(answer, i // 4)))
  found = {}
  for (i, cut, worth), p in zip(
    where, _probabilities(name, asked), strict=True
  ):
    found[i, cut] = found.get((i, cut), 0.0) + worth * p
  return found


def _known():
  """The distinct final answers of each group, and the right one."""
  known = [{tuple(int(x) for x in right if x)} for right in RIGHT]
  for i, row in enumerate(ROWS):
    if (answer := _final_answer(row)) is not None:
      known[i // 4].add(answer)
  return known


@pytest.mark.parametrize("name", POLICIES)
def test_utilities_are_those_of_whole_rows(name):
  batch = _run(name)
  expected = _expected(name, _known())
  for i, row in enumerate(ROWS):
    starts = _prefixes(row)
    ends = np.flatnonzero(batch.answers.segment_end[i]).tolist()
    assert ends == [*(start - 1 for start in starts[1:]), len(row) - 1]
    for start, stop in zip(starts, [*starts[1:], len(row)], strict=True):
      np.testing.assert_allclose(
        batch.answers.prefix_utility[i, start:stop],
        expected[i, start],
        rtol=1e-4,
      )
  assert not batch.answers.prefix_utility[~batch.completion_mask].any()
  values = np.array([*expected.values()])
  assert (values > 0).all()
  assert (values < 1).all()
  assert values.max() > 10 * values.min()


def test_they_are_the_sum_over_all_answers_and_grow_with_the_known_ones():
  name = "keys and values"
  every = [(x, y) for x, y in itertools.product((2, 3), repeat=2)]
  # Of two letters, prompt 0 has three answers that are worth something.
  exact = _expected(name, [every, [(3,)]])
  known = _expected(name, _known())
  alone = _expected(name, [{(2, 3)}, {(3,)}])
  assert _known()[0] == {(2, 3), (3, 3)}
  for key, value in known.items():
    if key[0] < 4:
      assert alone[key] < value < exact[key] <= 1
  prompts, batch = _batch()
  # Row 3 now finds the third of them: nothing is left out.
  found = [2, 3, 5, 6, 2, 2, 4, 1]
  row = jnp.array(found + [0] * (SLOTS - len(found)))
  batch = dataclasses.replace(
    batch,
    tokens=batch.tokens.at[3].set(row),
    completion_mask=batch.completion_mask.at[3].set(jnp.arange(SLOTS) < 8),
  )
  got = jax.device_get(_program(name)(prompts, batch))
  for i in range(3):
    value = got.answers.prefix_utility[i, 0]
    np.testing.assert_allclose(value, exact[i, 0], rtol=1e-4)


def test_answers_are_distinct_and_worthless_ones_are_not_run():
  batch = _run("keys and values")
  np.testing.assert_array_equal(
    batch.answers.ids[0, :2], [[5, 6, 2, 3, 4, 1], [5, 6, 3, 3, 4, 1]]
  )
  np.testing.assert_allclose(batch.answers.utility[0], [1, 0.5, 0, 0, 0])
  np.testing.assert_array_equal(batch.answers.ids[4, 0], [5, 6, 3, 4, 1, -1])
  # The right one, which row 4 has found; (2,) is worth nothing.
  np.testing.assert_allclose(batch.answers.utility[4], [1, 0, 0, 0, 0])
  said = FORCED.metrics(batch)
  segments, texts = batch.answers.segment_end.sum(axis=1), [12] * 4 + [5] * 4
  rows = 4 * 2 + 4 * 3 + sum(map(len, ROWS))
  assert said["forced_answers/tokens"] == (segments * texts).sum() + rows
  np.testing.assert_allclose(said["forced_answers/segments"], segments.mean())
  np.testing.assert_allclose(said["forced_answers/answers"], 1.5)
  np.testing.assert_allclose(
    said["forced_answers/start"], batch.answers.prefix_utility[:, 0].mean()
  )
