"""Draws, masks and what a rollout records, on toy policies and a transformer.

The toy policies are Markov tables: the logits of the next token are the row of
a table that the last token selects.
"""

import dataclasses
import functools
import itertools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from grpo_jax.models import transformer
from grpo_jax.models.policies import from_logits
from grpo_jax.ops import logprobs
from grpo_jax.rollout import drawing, sampling
from grpo_jax.types import Prompts
from tests.models import transformer_test

MARKOV = from_logits.policy_from_logits(
  lambda table, tokens, mask: table[tokens], lambda key: jnp.zeros((1, 1))
)


@functools.partial(jax.jit, static_argnums=(0, 4, 5))
def program(policy, params, prompts, key, config, group_size):
  return sampling.sample(policy, params, prompts, key, config, group_size)


def sample(policy, params, prompts, key, config, group_size):
  """A rollout of NumPy arrays, of which nothing more is compiled."""
  rollout = program(policy, params, prompts, key, config, group_size)
  return jax.device_get(rollout)


@functools.partial(jax.jit, static_argnums=0)
def logits_of(policy, params, prompts, rollout, extras=None):
  """Logits [B, T, V] of a pass over the whole rows of a rollout."""
  rows = rollout.tokens, rollout.completion_mask, rollout.prompt_index
  h, _ = policy.hidden(params, prompts.tokens, prompts.mask, *rows, extras)
  return policy.head(params, h)


def make_prompts(tokens, ids=None):
  tokens = np.asarray(tokens, np.int32)
  ids = np.asarray(range(len(tokens)) if ids is None else ids, np.int32)
  return Prompts(tokens, np.ones(tokens.shape, bool), ids, {})


row_keys = jax.jit(drawing.row_keys, static_argnums=2)


@functools.partial(jax.jit, static_argnums=(1, 2))
def noise_of(keys, num_steps, size):
  """The noise of rows [B, T, V] with these keys."""
  return jax.vmap(
    lambda key: jax.vmap(
      lambda t: jax.random.gumbel(
        jax.random.fold_in(key, t), (size,), jnp.float32
      )
    )(jnp.arange(num_steps))
  )(keys)


def chains(*successions):
  """A table that makes `a, b, c, …` follow each other with certainty."""
  table = np.zeros((10, 10))
  for chain in successions:
    for token, successor in itertools.pairwise(chain):
      table[token, successor] = 1000.0
  return table_of(table)


def table_of(table):
  return {"trained": np.asarray(table, np.float32), "frozen": {}}


def run_chains(params, starts, **config):
  config = sampling.SamplerConfig(**{"max_new_tokens": 5, "pad_id": 0} | config)
  prompts = make_prompts([[start] for start in starts])
  return sample(MARKOV, params, prompts, jax.random.key(0), config, 1)


# ---- Masks: made from positions, never from token values.


@pytest.mark.slow
def test_the_pad_id_may_be_sampled_in_the_middle_of_an_answer():
  rollout = run_chains(chains([1, 0, 2, 3]), [1, 0, 2], end_ids=(3, 7))
  np.testing.assert_array_equal(
    rollout.tokens, [[0, 2, 3, 0, 0], [2, 3, 0, 0, 0], [3, 0, 0, 0, 0]]
  )
  np.testing.assert_array_equal(rollout.completion_mask.sum(1), [3, 2, 1])
  np.testing.assert_array_equal(rollout.terminated, [True, True, True])


def test_any_of_several_end_tokens_ends_its_row():
  params = chains([1, 2, 3], [4, 5, 6, 7, 4])
  rollout = run_chains(params, [1, 4, 6], end_ids=(3, 7))
  np.testing.assert_array_equal(
    rollout.tokens, [[2, 3, 0, 0, 0], [5, 6, 7, 0, 0], [7, 0, 0, 0, 0]]
  )
  np.testing.assert_array_equal(rollout.completion_mask.sum(1), [2, 3, 1])


@pytest.mark.slow
def test_the_end_token_may_equal_the_pad_id():
  rollout = run_chains(chains([1, 2, 0]), [1], end_ids=(0,))
  np.testing.assert_array_equal(rollout.tokens, [[2, 0, 0, 0, 0]])
  np.testing.assert_array_equal(rollout.completion_mask, [[1, 1, 0, 0, 0]])


@pytest.mark.slow
def test_without_end_tokens_rows_fill_their_slots():
  rollout = run_chains(chains([1, 0, 1]), [1], end_ids=())
  np.testing.assert_array_equal(rollout.tokens, [[0, 1, 0, 1, 0]])
  assert rollout.completion_mask.all()
  np.testing.assert_array_equal(rollout.terminated, [False])


def test_a_row_that_ends_in_its_last_slot_is_terminated():
  params = chains([1, 2, 4, 5, 6, 3], [8, 9, 8])
  rollout = run_chains(params, [1, 2, 8], end_ids=(3, 7))
  np.testing.assert_array_equal(rollout.tokens[0], [2, 4, 5, 6, 3])
  np.testing.assert_array_equal(rollout.terminated, [True, True, False])
  np.testing.assert_array_equal(rollout.completion_mask.sum(1), [5, 4, 5])


@pytest.mark.slow
def test_nothing_is_recorded_after_the_end():
  table = table_of(np.zeros((10, 10)))
  rollout = run_chains(table, [1] * 40, end_ids=(3, 4, 5), pad_id=9)
  mask = rollout.completion_mask
  assert not mask.all()
  for x in (rollout.behavior_logp, rollout.sampler_logp, rollout.entropy):
    np.testing.assert_allclose(abs(x), np.where(mask, np.log(10), 0), rtol=1e-6)
  assert (rollout.tokens == 9)[~mask].all()
  # A mask is a run of ones, and stops at the first end token.
  ends = np.isin(rollout.tokens, [3, 4, 5]) & mask
  np.testing.assert_array_equal(ends.sum(1) == 1, rollout.terminated)
  for row, length in zip(ends, np.asarray(mask.sum(1)), strict=True):
    assert row[: length - 1].sum() == 0


@pytest.mark.slow
@pytest.mark.parametrize(
  ("end_ids", "num_decodes"), [((), 4), ((2, 5), 1), ((1, 5), 0)]
)
def test_decoding_stops_when_all_rows_are_done(end_ids, num_decodes):
  calls = []

  def decode(*arguments):
    jax.debug.callback(lambda: calls.append(None))
    return MARKOV.decode(*arguments)

  policy = dataclasses.replace(MARKOV, decode=decode)
  params = chains([9, 1, 2, 3, 4], [6, 5])
  config = sampling.SamplerConfig(5, end_ids, 0)
  prompts = make_prompts([[9], [6]])
  rollout = sample(policy, params, prompts, jax.random.key(0), config, 2)
  jax.block_until_ready(rollout)
  jax.effects_barrier()
  assert len(calls) == num_decodes
  assert rollout.completion_mask[0].sum() == num_decodes + 1


# ---- Draws.

UNIFORM = table_of(np.zeros((64, 64)))
FREE = sampling.SamplerConfig(6, (), 0)


def draws(key=0, ids=(0, 1), group_size=2):
  prompts = make_prompts([[5]] * len(ids), ids)
  rollout = sample(
    MARKOV, UNIFORM, prompts, jax.random.key(key), FREE, group_size
  )
  return np.asarray(rollout.tokens).reshape(len(ids), group_size, -1)


@pytest.mark.slow
def test_every_step_prompt_sample_and_position_draws_anew():
  sequences = np.concatenate([draws(key=0), draws(key=1)]).reshape(8, -1)
  assert len(np.unique(sequences, axis=0)) == 8
  assert all(len(np.unique(row)) > 2 for row in sequences)


@pytest.mark.slow
def test_a_question_that_comes_twice_gets_other_samples():
  first, second = draws(ids=(7, 8))
  assert (first != second).any(axis=-1).all()


@pytest.mark.slow
def test_draws_follow_the_id_and_not_the_place():
  tokens = draws(ids=(0, 1, 2))
  np.testing.assert_array_equal(draws(ids=(2, 0, 1)), tokens[[2, 0, 1]])
  np.testing.assert_array_equal(draws(ids=(1, 1)), tokens[[1, 1]])
  np.testing.assert_array_equal(
    draws(ids=(1,), group_size=3)[:, :2], tokens[1:2]
  )


def test_row_keys_depend_on_id_and_sample_index_only():
  def bits(ids, group_size):
    keys = row_keys(jax.random.key(0), np.int32(ids), group_size)
    return np.asarray(jax.random.key_data(keys)).reshape(
      len(ids), group_size, -1
    )

  keys = bits([4, 5, 6], 3)
  np.testing.assert_array_equal(bits([6, 4], 2), keys[[2, 0], :2])
  assert len(np.unique(keys.reshape(9, -1), axis=0)) == 9
  folded = functools.reduce(jax.random.fold_in, (5, 2, 0), jax.random.key(0))
  np.testing.assert_array_equal(jax.random.key_data(folded), keys[1, 2])


@pytest.mark.slow
def test_a_token_is_where_logits_and_noise_are_largest():
  table = np.random.default_rng(0).normal(size=(10, 10))
  prompts, key = make_prompts([[5], [7]], [3, 4]), jax.random.key(6)
  rollout = sample(
    MARKOV,
    table_of(table),
    prompts,
    key,
    sampling.SamplerConfig(4, (), 0, temperature=0.5),
    2,
  )
  noise = np.asarray(noise_of(row_keys(key, prompts.ids, 2), 4, 10))
  for b in range(4):
    last = (5, 7)[b // 2]
    for t in range(4):
      last = np.argmax(table[last] / 0.5 + noise[b, t])
      assert rollout.tokens[b, t] == last


@pytest.mark.parametrize(
  ("row", "token"),
  [
    ([0.0, 2.0, 1.0, 2.0], 1),  # The first of equals.
    ([-np.inf, -np.inf, -3.0, -np.inf], 2),
    ([0.0, 1.0, 2.0, 3.0], 3),
    ([0.0, np.nan, 2.0, 1.0], 3),  # A token all the same.
  ],
)
def test_which_token_is_most_likely(row, token):
  config = sampling.SamplerConfig(1, (), 0, temperature=0.0)
  params = table_of(np.tile(row, (4, 1)))
  prompts = make_prompts([[0]])
  rollout = sample(MARKOV, params, prompts, jax.random.key(0), config, 1)
  assert rollout.tokens[0, 0] == token


@pytest.mark.slow
@pytest.mark.parametrize(
  ("change", "kept"),
  [
    ({}, [0, 1, 2, 3, 4]),
    ({"temperature": 0.5}, [0, 1, 2, 3, 4]),
    ({"top_k": 3}, [0, 1, 2]),
    ({"top_k": 4, "top_p": 0.7, "min_p": 0.3}, [0, 1]),
  ],
)
def test_frequencies_and_records_follow_the_filtered_distribution(change, kept):
  probs = np.array([0.4, 0.3, 0.15, 0.1, 0.05])
  table = table_of(np.broadcast_to(np.log(probs), (5, 5)))
  config = sampling.SamplerConfig(2, (), 0, **change)
  num_rows = 4000
  rollout = sample(
    MARKOV, table, make_prompts([[0]]), jax.random.key(0), config, num_rows
  )
  warm = probs ** (1 / config.temperature)
  warm /= warm.sum()
  drawn = np.where(np.isin(np.arange(5), kept), warm, 0)
  drawn /= drawn.sum()
  counts = np.bincount(np.ravel(rollout.tokens), minlength=5)
  expected = drawn[kept] * counts.sum()
  assert counts.sum() == counts[kept].sum() == 2 * num_rows
  # Chi-square with up to 4 degrees of freedom: exceeded once in 10 000.
  assert ((counts[kept] - expected) ** 2 / expected).sum() < 23.5
  tokens = np.asarray(rollout.tokens)
  np.testing.assert_allclose(
    rollout.behavior_logp, np.log(drawn[tokens]), atol=1e-5
  )
  np.testing.assert_allclose(
    rollout.sampler_logp, np.log(warm[tokens]), atol=1e-5
  )
  entropy = -(drawn[kept] * np.log(drawn[kept])).sum()
  np.testing.assert_allclose(rollout.entropy, entropy, atol=1e-5)


def test_temperature_zero_takes_the_most_likely_token():
  probs = np.array([0.2, 0.5, 0.3])
  params = table_of(np.broadcast_to(np.log(probs), (3, 3)))
  config = sampling.SamplerConfig(4, (), 0, temperature=0.0)
  rollout = sample(
    MARKOV, params, make_prompts([[0]]), jax.random.key(0), config, 3
  )
  assert (rollout.tokens == 1).all()
  assert (rollout.behavior_logp == 0).all()
  assert (rollout.entropy == 0).all()
  np.testing.assert_allclose(rollout.sampler_logp, np.log(0.5), rtol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize(
  ("change", "kept"),
  [
    ({"top_k": 3}, [0, 1, 2]),
    ({"top_k": 9}, [0, 1, 2, 3, 4]),  # More than there are.
    ({"top_k": 4, "top_p": 0.7, "min_p": 0.3}, [0, 1]),
    ({"top_k": 3, "temperature": 0.0}, [0]),
  ],
)
def test_kept_ids_are_what_the_filters_left(change, kept):
  probs = np.array([0.4, 0.3, 0.15, 0.1, 0.05])
  table = table_of(np.broadcast_to(np.log(probs), (5, 5)))
  # Token 0 ends a row, so that some slots are never written.
  config = sampling.SamplerConfig(4, (0,), 0, record_kept=True, **change)
  rollout = sample(
    MARKOV, table, make_prompts([[0]]), jax.random.key(0), config, 20
  )
  mask = np.asarray(rollout.completion_mask)
  assert not mask.all()
  ids = np.asarray(rollout.kept_ids)
  size = 1 if config.temperature == 0 else min(config.top_k, 5)
  assert ids.shape == (20, 4, size)
  assert ids.dtype == np.int32
  expected = [*kept, *[-1] * (size - len(kept))]
  np.testing.assert_array_equal(
    np.sort(ids[mask]), np.tile(np.sort(expected), (mask.sum(), 1))
  )
  assert (ids[~mask] == -1).all()
  assert np.isin(rollout.tokens[mask], kept).all()


@pytest.mark.slow
def test_of_equal_tokens_only_the_recorded_ones_are_drawn():
  """Filtering by value alone would keep all five, and record three."""
  config = sampling.SamplerConfig(8, (), 0, top_k=3, record_kept=True)
  table = table_of(np.zeros((5, 5)))
  rollout = sample(
    MARKOV, table, make_prompts([[0]]), jax.random.key(0), config, 20
  )
  drawn = np.asarray(rollout.tokens)[..., None] == rollout.kept_ids
  assert drawn.any(axis=-1).all()
  np.testing.assert_allclose(rollout.behavior_logp, np.log(1 / 3), rtol=1e-6)
  np.testing.assert_allclose(rollout.sampler_logp, np.log(1 / 5), rtol=1e-6)


# ---- On a transformer.


@pytest.fixture(scope="module")
def model():
  """A float64 policy whose tokens depend on their context."""
  with jax.enable_x64(True):
    config = transformer_test.float64(transformer_test.PLAIN)
    rng = np.random.default_rng(0)
    prompts = Prompts(
      tokens=rng.integers(13, size=(3, 4)),
      mask=np.arange(4) >= np.array([[0], [2], [3]]),
      ids=np.array([20, 21, 22]),
      extras={},
    )
    params = transformer_test.make_params(config)
    yield transformer.transformer_policy(config), params, prompts


def take(prompts, rows):
  return jax.tree.map(lambda x: x[np.array(rows)], prompts)


@pytest.mark.slow
@pytest.mark.parametrize("lanes", [None, 5])
def test_recorded_log_probs_equal_teacher_forcing(model, lanes):
  policy, params, prompts = model
  with jax.enable_x64(True):
    config = sampling.SamplerConfig(
      5, (0, 1), 0, temperature=0.7, top_k=6, lanes=lanes
    )
    rollout = sample(policy, params, prompts, jax.random.key(1), config, 4)
    assert not rollout.completion_mask.all()
    logits = logits_of(policy, params, prompts, rollout)
    forced = logprobs.token_logprobs(logits, rollout.tokens, 0.7)
    np.testing.assert_allclose(
      rollout.sampler_logp,
      np.where(rollout.completion_mask, forced, 0),
      atol=1e-6,  # The buffers are float32.
    )
    drawn = rollout.completion_mask
    gap = (rollout.behavior_logp - rollout.sampler_logp)[drawn]
    assert (gap > -1e-6).all()  # A filter makes kept tokens likelier.
    assert gap.max() > 1e-3


@pytest.mark.slow
def test_samples_do_not_depend_on_the_rest_of_the_batch(model):
  policy, params, prompts = model
  with jax.enable_x64(True):
    config = sampling.SamplerConfig(5, (0,), 0)

    def tokens(rows):
      rollout = sample(
        policy, params, take(prompts, rows), jax.random.key(1), config, 4
      )
      return np.asarray(rollout.tokens).reshape(len(rows), 4, -1)

    whole = tokens([0, 1, 2])
    assert len(np.unique(whole.reshape(12, -1), axis=0)) > 6
    for rows in ([2, 0, 1], [1], [2, 2, 0]):
      np.testing.assert_array_equal(tokens(rows), whole[rows])


@pytest.mark.slow
def test_rows_point_at_their_prompts_and_groups(model):
  policy, params, prompts = model
  with jax.enable_x64(True):
    config = sampling.SamplerConfig(5, (0,), 0)
    rollout = sample(policy, params, prompts, jax.random.key(1), config, 4)
  expected = np.repeat([0, 1, 2], 4)
  np.testing.assert_array_equal(rollout.prompt_index, expected)
  np.testing.assert_array_equal(rollout.group_id, expected)
  assert rollout.num_groups == 3
  assert rollout.tokens.shape == rollout.entropy.shape == (12, 5)
  assert rollout.tokens.dtype == jnp.int32
  assert rollout.sampler_logp.dtype == jnp.float32
  assert rollout.kept_ids is None


# ---- Lanes, and a cache that grows.


WINDOWED = dataclasses.replace(
  transformer_test.RICH,
  sliding_window=3,
  sliding_layers=(True, False),
  local_rope_theta=10.0,
)
EXPERTS = dataclasses.replace(
  transformer_test.PLAIN, num_experts=5, expert_width=6
)


def rollout_of(config, smallest=128, num_slots=16, **options):
  """12 completions of 3 prompts, in float64, compiled anew."""
  config = transformer_test.float64(config)
  tokens, mask, *_ = transformer_test.make_batch()
  prompts = Prompts(tokens, mask, np.arange(3), {})
  options = {"end_ids": (0,), "pad_id": 0, "top_k": 9} | options
  sampler = sampling.SamplerConfig(num_slots, **options)
  policy = transformer.transformer_policy(config)

  @jax.jit
  def run(params, prompts):
    return sampling.sample(
      policy, params, prompts, jax.random.key(2), sampler, 4
    )

  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(sampling, "_SMALLEST", smallest)
    return jax.device_get(run(transformer_test.make_params(config), prompts))


def assert_same_rollout(rollout, expected):
  """All that is recorded, token for token."""
  lengths = np.asarray(expected.completion_mask.sum(1))
  assert lengths.min() < 5
  assert lengths.max() > 9
  for name in ("tokens", "completion_mask", "terminated", "kept_ids"):
    np.testing.assert_array_equal(
      getattr(rollout, name), getattr(expected, name), err_msg=name
    )
  for name in ("behavior_logp", "sampler_logp", "entropy"):
    np.testing.assert_allclose(
      getattr(rollout, name), getattr(expected, name), atol=1e-6, err_msg=name
    )
  if expected.routing is not None:
    # The last token is not read, and its experts are none's.
    read = expected.completion_mask[:, 1:]
    np.testing.assert_array_equal(
      rollout.routing[:, :-1][read], expected.routing[:, :-1][read]
    )
    np.testing.assert_array_equal(
      rollout.prompt_routing, expected.prompt_routing
    )


@pytest.mark.slow
@pytest.mark.parametrize(
  ("config", "lanes", "smallest"),
  [
    (dataclasses.replace(WINDOWED, cache_dtype="int8"), 5, 8),
    (WINDOWED, None, 2),
    (transformer_test.PLAIN, 1, 128),
    (EXPERTS, 5, 4),
    (transformer_test.LINEAR, 5, 4),
  ],
)
def test_rows_depend_neither_on_lanes_nor_on_how_the_cache_grows(
  config, lanes, smallest
):
  options = {"record_kept": True, "record_routing": config.num_experts > 0}
  with jax.enable_x64(True):
    assert_same_rollout(
      rollout_of(config, smallest, lanes=lanes, num_cache_sizes=5, **options),
      rollout_of(config, num_cache_sizes=1, **options),
    )


def test_the_cache_doubles_and_few_sizes_are_compiled():
  assert sampling.cache_sizes(100) == [100]
  assert sampling.cache_sizes(256) == [128, 256]
  assert sampling.cache_sizes(1023) == [128, 256, 512, 1023]
  assert sampling.cache_sizes(32_768) == [4096, 8192, 16_384, 32_768]
  assert sampling.cache_sizes(1023, 2) == [512, 1023]
  assert sampling.cache_sizes(1023, 1) == [1023]


@pytest.mark.slow
def test_a_free_lane_takes_the_next_row():
  """One of 8 rows has 13 tokens, and the others have 2; there are two lanes."""
  calls = []

  def decode(*arguments):
    jax.debug.callback(lambda: calls.append(None))
    return MARKOV.decode(*arguments)

  policy = dataclasses.replace(MARKOV, decode=decode)
  table = np.zeros((20, 20))
  for token in range(19):
    table[token, token + 1] = 1000.0
  params = table_of(table)
  config = sampling.SamplerConfig(16, (19,), 0, lanes=2)
  prompts = make_prompts([[17], [6], *[[17]] * 6])
  rollout = sample(policy, params, prompts, jax.random.key(0), config, 1)
  jax.block_until_ready(rollout)
  jax.effects_barrier()
  lengths = np.asarray(rollout.completion_mask.sum(1))
  np.testing.assert_array_equal(lengths, [2, 13, *[2] * 6])
  assert rollout.terminated.all()
  # One after another the short rows take 4 steps each, since free lanes are
  # looked for every 4 steps; the long one is decoded beside them, in 12.
  assert len(calls) <= 4 * 7
  np.testing.assert_array_equal(rollout.tokens[7, :3], [18, 19, 0])


def test_a_cache_that_holds_prompts_gets_that_of_the_row_in_the_lane():
  """Rows 0 … 7 of prompts 0, 0, 1, 1, …; the lane of row 0 is free."""
  policy = dataclasses.replace(
    MARKOV,
    allocate=lambda num_rows, num_slots, prefix: prefix,
    admit=lambda prefix, cache, num_rows: prefix,
  )
  decoder = sampling.Decoder(
    policy,
    weights=None,
    config=sampling.SamplerConfig(5, (), 0, lanes=2),
    keys=jax.random.split(jax.random.key(0), 8),
    first_h=jax.device_put(np.zeros((4, 1), np.float32)),
    prefix=jax.device_put(np.arange(4)),
    limits=jax.device_put(np.full(8, 5)),
  )
  refill = jax.jit(decoder.refill)
  state = jax.jit(decoder.start)(None)
  np.testing.assert_array_equal(state.cache, [0, 0])
  for busy, rows, prompts in (
    ([False, True], [2, 1], [1, 0]),
    ([True, True], [2, 1], [1, 0]),
    ([False, False], [3, 4], [1, 2]),
  ):
    state = refill(dataclasses.replace(state, busy=np.array(busy)))
    np.testing.assert_array_equal(state.row, rows)
    np.testing.assert_array_equal(state.cache, prompts)
    assert state.busy.all()


@pytest.mark.slow
@pytest.mark.parametrize("lanes", [None, 3])
def test_rows_may_have_limits_of_their_own(model, lanes):
  policy, params, prompts = model
  limits = np.array([1, 5, 3, 2, 4, 5, 1, 2, 5, 3, 4, 1])
  # Padding looks like the end token, which the model does not have.
  config = sampling.SamplerConfig(5, (50,), 50, lanes=lanes)
  rollout = jax.jit(
    functools.partial(sampling.sample, policy, config=config, group_size=4)
  )(params, prompts, jax.random.key(1), limits=limits)
  free = sample(policy, params, prompts, jax.random.key(1), config, 4)
  within = np.arange(5) < limits[:, None]
  np.testing.assert_array_equal(rollout.completion_mask, within)
  np.testing.assert_array_equal(
    rollout.tokens, np.where(within, free.tokens, 50)
  )
  assert not rollout.terminated.any()


@pytest.mark.slow
def test_more_lanes_than_rows_are_no_lanes(model):
  policy, params, prompts = model
  with jax.enable_x64(True):
    config = sampling.SamplerConfig(5, (0,), 0)
    programs = [
      program.lower(
        policy,
        params,
        prompts,
        jax.random.key(1),
        dataclasses.replace(config, lanes=lanes),
        4,
      ).as_text()
      for lanes in (None, 12, 99)
    ]
  assert len(set(programs)) == 1


@pytest.mark.slow
@pytest.mark.parametrize("lanes", [None, 6])
def test_a_prompt_is_cached_once_and_not_for_each_row(lanes):
  """3 prompts of 7 slots, 15 rows of 5; one head of width 6."""
  policy = transformer.transformer_policy(transformer_test.RICH)
  params = jax.eval_shape(policy.init, jax.random.key(0))
  config = sampling.SamplerConfig(5, (0,), 0, lanes=lanes)
  prompts = make_prompts(np.ones((3, 7)))
  text = program.lower(
    policy, params, prompts, jax.random.key(0), config, 5
  ).as_text()
  assert "<3x1x6x7xf32" in text  # The keys of all prompts.
  assert "<15x1x6x7xf32" not in text
  assert ("<6x1x6x7xf32" in text) == (lanes == 6)  # Those of the lanes.
  assert f"<{lanes or 15}x1x6x5xf32" in text  # Completions.


@pytest.mark.slow
@pytest.mark.parametrize(
  ("dtype", "name"), [("int8", "i8"), ("bfloat16", "bf16")]
)
def test_a_cache_carries_what_its_dtype_says(dtype, name):
  """Loops carry narrow keys [15, 1, 6, 5], and no wide ones."""
  config = dataclasses.replace(transformer_test.RICH, cache_dtype=dtype)
  policy = transformer.transformer_policy(config)
  params = jax.eval_shape(policy.init, jax.random.key(0))
  prompts = make_prompts(np.ones((3, 7)))
  text = program.lower(
    policy,
    params,
    prompts,
    jax.random.key(0),
    sampling.SamplerConfig(5, (0,), 0),
    5,
  ).as_text()
  loops = re.findall(r"stablehlo\.while.* : (.*)", text)
  carried = max(loops, key=len)  # The others draw.
  assert carried.count(f"<15x1x6x5x{name}>") == config.num_layers
  assert "<15x1x6x5xf32>" not in carried


# ---- Errors.


@pytest.mark.parametrize(
  ("change", "message"),
  [
    ({"max_new_tokens": 0}, "max_new_tokens is 0"),
    ({"end_ids": (3, -1)}, "end_ids is"),
    ({"pad_id": -1}, "pad_id is -1"),
    ({"lanes": 0}, "lanes is 0"),
    ({"temperature": -0.1}, r"temperature is -0\.1"),
    ({"top_k": 0}, "top_k is 0"),
    ({"top_p": 0.0}, r"top_p is 0\.0"),
    ({"top_p": 1.1}, r"top_p is 1\.1"),
    ({"min_p": 0.0}, r"min_p is 0\.0"),
    ({"record_kept": True}, r"top_k is None, but must be set to record"),
  ],
)
def test_impossible_settings_raise(change, message):
  with pytest.raises(ValueError, match=message):
    dataclasses.replace(FREE, **change)


def test_an_empty_group_raises():
  with pytest.raises(ValueError, match="group_size is 0"):
    sampling.sample(MARKOV, UNIFORM, make_prompts([[1]]), None, FREE, 0)
