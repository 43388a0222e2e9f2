"""Contexts that are replaced by summaries."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from grpo_jax import tasks
from grpo_jax.models.policies import from_logits
from grpo_jax.rollout import compaction, sampling
from grpo_jax.tasks import vocabulary as vocab
from grpo_jax.types import Compaction, Environment, Prompts, Turn

pytestmark = pytest.mark.slow

# An environment whose action is token 1, or any other one, and whose
# observation is 2 as often as there were turns, at most twice.
COUNT = Environment(
  max_turns=6,
  max_action_len=1,
  max_observation_len=2,
  action_ends=(),
  reset=lambda key, extras: {"turn": jnp.int32(0), "n": extras["n"]},
  step=lambda state, tokens, mask: (
    {**state, "turn": state["turn"] + 1},
    Turn(
      jnp.array([2, 2]),
      jnp.arange(2) < jnp.minimum(state["turn"] + 1, 2),
      (tokens[0] == 1).astype(jnp.float32),
      state["turn"] + 1 >= state["n"],
    ),
  ),
  scores=lambda state: {
    "accuracy": (state["turn"] == state["n"]).astype(float)
  },
)
# <sum> is 3, </sum> is 4.
EVERY_TWO = Compaction(
  every=2,
  context_len=20,
  reserve=0,
  open_id=3,
  close_id=4,
  max_summary_len=3,
  keep_turns=1,
  max_compactions=2,
  head_len=1,
)
MARKOV = from_logits.policy_from_logits(
  lambda table, tokens, mask: table[tokens], lambda key: jnp.zeros((1, 1))
)


@functools.partial(jax.jit, static_argnums=(0, 4, 5, 6, 7))
def _sample(policy, params, prompts, key, config, group_size, env, compact):
  return compaction.sample(
    policy,
    params,
    prompts,
    key,
    config,
    group_size,
    environment=env,
    compaction=compact,
  )


def _run(table, prompts, slots, compact=EVERY_TWO, env=COUNT, group_size=1):
  config = sampling.SamplerConfig(max_new_tokens=slots, end_ids=(), pad_id=0)
  params = {"trained": jnp.asarray(table), "frozen": {}}
  key = jax.random.key(0)
  return jax.device_get(
    _sample(MARKOV, params, prompts, key, config, group_size, env, compact)
  )


def _prompts(n, slots=8):
  tokens = np.zeros((len(n), slots), np.int32)
  tokens[:, -2:] = 5, 6  # Head 5.
  mask = np.arange(slots) >= slots - 2
  return Prompts(
    jnp.asarray(tokens),
    jnp.asarray(np.broadcast_to(mask, tokens.shape)),
    jnp.arange(len(n)),
    {"n": jnp.array(n)},
  )


def _table(*pairs):
  table = np.zeros((7, 7))
  for token, successor in pairs:
    table[token, successor] = 1000.0
  return table


def _texts(rollout):
  """Contexts of the rows: what they begin with, and what is in them."""
  traces = rollout.traces
  return [
    (
      "".join(map(str, traces.prompt_tokens[b][traces.prompt_mask[b]])),
      "".join(map(str, rollout.tokens[b][rollout.completion_mask[b]])),
    )
    for b in range(len(rollout.tokens))
  ]


def test_contexts_by_hand():
  """Actions are 1; after <sum>, 3, comes the summary 0 4."""
  table = _table((6, 1), (2, 1), (1, 1), (3, 0), (0, 4))
  rollout = _run(table, _prompts([5, 2, 1]), 10)
  texts = _texts(rollout)
  # Turn 0 is 1, answered by 2; turn 1 is 1. The answer, 2 2, is held while the
  # summary is written.
  assert texts[0] == ("56", "121304")
  # Head, summary, and turn 1 with what it answered; then 2 2 is read.
  assert texts[1] == ("530421", "221221304")
  assert texts[2] == ("5304221", "221")
  # Over at the second turn, and at the first: nothing is summed up.
  assert texts[3] == ("56", "121")
  assert texts[6] == ("56", "1")
  assert [text for _, text in texts[4:6] + texts[7:9]] == [""] * 4
  np.testing.assert_array_equal(
    rollout.traces.is_last, [0, 0, 1, 1, 0, 0, 1, 0, 0]
  )
  np.testing.assert_array_equal(
    rollout.observed.sum(1), [2, 5, 2, 1, 0, 0, 0, 0, 0]
  )
  np.testing.assert_array_equal(
    rollout.scores["return"], np.repeat([5, 2, 1], 3)
  )


def test_summaries_that_are_not_trained_or_not_kept():
  table = _table((6, 1), (2, 1), (1, 1), (3, 0), (0, 4))
  usual = _run(table, _prompts([5, 2, 1]), 10)
  frozen = dataclasses.replace(EVERY_TWO, trains_summary=False)
  rollout = _run(table, _prompts([5, 2, 1]), 10, frozen)
  assert _texts(rollout) == _texts(usual)
  is_summary = np.isin(usual.tokens, [0, 4]) & usual.completion_mask
  assert is_summary.sum() == 4
  np.testing.assert_array_equal(usual.written & ~is_summary, rollout.written)
  # The sampler's records of what somebody else might have written stay.
  np.testing.assert_array_equal(rollout.behavior_logp, usual.behavior_logp)
  dropped = dataclasses.replace(EVERY_TWO, keeps_summary=False)
  texts = _texts(_run(table, _prompts([5, 2, 1]), 10, dropped))
  # As above, without 3 0 4.
  assert texts[:3] == [("56", "121304"), ("521", "221221304"), ("5221", "221")]


def test_whatever_is_written_is_trained_once():
  rng = np.random.default_rng(0)
  table = rng.normal(size=(7, 7))
  table[:, 3] = -1000.0  # <sum> is not the policy's to write.
  rollout = _run(table, _prompts([6] * 30, 10), 16, group_size=2)
  traces = rollout.traces
  assert rollout.tokens.shape == (180, 16)
  counts = np.bincount(traces.id, rollout.completion_mask.any(1))
  assert set(counts) == {3}  # Compactions after turns 2 and 4.
  np.testing.assert_array_equal(traces.is_last, traces.order == 2)
  assert rollout.terminated.all()
  for rows in range(0, 180, 3):
    written = rollout.written[rows : rows + 3]
    # Six actions, and two summaries of one to three tokens.
    assert 8 <= written.sum() <= 12
    turn = rollout.turn[rows : rows + 3]
    paid = rollout.turn_rewards[rows : rows + 3].sum()
    assert paid == rollout.scores["return"][rows]
    assert (np.diff(turn[written]) >= 0).all()
    assert set(turn[written]) >= set(range(6))
    for j in (1, 2):
      # A context begins with what the one before has written.
      prompt = traces.prompt_tokens[rows + j][traces.prompt_mask[rows + j]]
      text = rollout.tokens[rows + j - 1][rollout.completion_mask[rows + j - 1]]
      at = text.tolist().index(3)
      summary = text[at + 1 :].tolist()
      if len(summary) == 3:
        summary[-1] = 4
      assert prompt[: 2 + len(summary)].tolist() == [5, 3, *summary]
      kept = prompt[2 + len(summary) :].tolist()
      assert text[:at].tolist()[-len(kept) :] == kept
      assert 2 <= len(kept) <= 3
  last = jax.device_get(compaction.last_rows(rollout))
  np.testing.assert_array_equal(last.tokens, rollout.tokens[2::3])
  lengths = rollout.lengths.reshape(-1, 3).sum(axis=1)
  np.testing.assert_array_equal(last.lengths, lengths)


def test_a_nearly_full_context_is_compacted():
  compact = Compaction(0, 12, 5, 3, 4, 3, 1, 4, 1)
  rollout = _run(np.zeros((7, 7)), _prompts([6] * 20, 10), 10, compact)
  sizes = rollout.traces.prompt_mask.sum(1) + rollout.completion_mask.sum(1)
  exists = rollout.completion_mask.any(1)
  assert sizes[exists].max() <= 12
  assert (rollout.traces.order[exists] > 0).any()


@pytest.mark.parametrize(("reserve", "actions"), [(5, 3), (6, 2)])
def test_a_context_with_exactly_the_reserve_left_goes_on(reserve, actions):
  """After two actions and their observations 5 of 12 tokens are left."""
  compact = Compaction(0, 12, reserve, 3, 4, 3, 1, 4, 1)
  always = _table(*((token, 1) for token in range(7)))
  rollout = _run(always, _prompts([6] * 20, 10), 10, compact)
  text = _texts(rollout)[0][1].partition("3")[0]
  assert text == "121221"[: 3 * (actions - 1)]


def test_rows_that_do_not_fit_are_cut_off():
  compact = Compaction(2, 5, 0, 3, 4, 3, 1, 2, 1)
  rollout = _run(np.zeros((7, 7)), _prompts([6] * 4, 10), 10, compact)
  first = rollout.traces.order == 0
  assert rollout.completion_mask[first].sum(1).max() == 3
  assert not rollout.terminated.any()  # Also of contexts that do not exist.
  assert rollout.traces.is_last[first].all()
  assert not rollout.completion_mask[~first].any()


def test_draws_depend_on_the_rollout_only():
  table = np.zeros((7, 7))
  whole = _run(table, _prompts([6, 3, 6, 2], 10), 16)
  prompts = jax.tree.map(
    lambda x: x[jnp.array([2])], _prompts([6, 3, 6, 2], 10)
  )
  alone = _run(table, prompts, 16)
  # And on the context: two of a rollout draw in some slots both.
  both = whole.written[0::3] & whole.written[1::3]
  assert both.sum() > 4
  assert (whole.tokens[0::3] != whole.tokens[1::3])[both].any()
  np.testing.assert_array_equal(alone.tokens, whole.tokens[6:9])
  np.testing.assert_array_equal(
    alone.traces.prompt_tokens, whole.traces.prompt_tokens[6:9]
  )


def test_too_short_prompts_are_refused():
  with pytest.raises(ValueError, match=r"4 slots, and a context begins.* 5"):
    _run(np.zeros((7, 7)), _prompts([6], 4), 16)


def test_a_teacher_of_the_chain_makes_the_same_contexts():
  """A policy that copies the teacher meets the contexts that it was shown."""
  task = tasks.make_task("memchain", num_steps=20, every=6)
  rng = np.random.default_rng(0)
  example = task.example(rng, "train")
  fact = example.prompt[2:5]  # k : v
  # ; after whatever is heard; the fact after <sum>; the digit after the end.
  table = np.zeros((vocab.VOCAB_SIZE, vocab.VOCAB_SIZE))
  table[:, vocab.SEMICOLON] = 10.0
  for token, successor in (
    (vocab.SUM, fact[0]),
    (vocab.ANSWER, fact[2]),
    (vocab.ANSWER_END, vocab.EOS),
  ):
    table[token, successor] = 1000.0
  slots = task.max_prompt_len
  tokens = np.zeros((1, slots), np.int32)
  tokens[0, -len(example.prompt) :] = example.prompt
  prompts = Prompts(
    jnp.asarray(tokens),
    jnp.asarray(np.arange(slots) >= slots - len(example.prompt))[None],
    jnp.arange(1),
    {name: jnp.asarray(x)[None] for name, x in example.extras.items()},
  )
  rollout = _run(
    table, prompts, task.max_completion_len, task.compaction, task.environment
  )
  traces = rollout.traces
  np.testing.assert_array_equal(rollout.completion_mask.any(1), [True] * 4)
  for j in range(1, 4):
    prompt = traces.prompt_tokens[j][traces.prompt_mask[j]]
    assert vocab.decode(prompt[:2]) == "<bos><sum>"
    assert prompt[2] == fact[0]
    # Two turns are kept, each a letter and its answer.
    assert (prompt[-1], prompt[-3]) == (vocab.SEMICOLON, vocab.SEMICOLON)
    assert prompt[-2] >= vocab.LETTER_A
  turn = rollout.turn[rollout.written]
  assert set(turn) == set(range(20))
