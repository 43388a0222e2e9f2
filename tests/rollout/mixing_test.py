"""Mixed inputs: what is read, when, and that training reads the same."""

import dataclasses
import functools
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from grpo_jax.models import transformer
from grpo_jax.models.policies import lora
from grpo_jax.ops import logprobs
from grpo_jax.rollout import mixing, sampling
from grpo_jax.types import Prompts
from tests.models import transformer_test
from tests.rollout import sampling_test

UNTIL, TOP_K, TEMPERATURE = 7, 3, 0.7
# The embeddings are scaled, as Gemma's, and the head is another table.
CONFIG = transformer_test.float64(
  dataclasses.replace(
    transformer_test.PLAIN,
    num_layers=1,
    embedding_scale=8**0.5,
    tied_embeddings=False,
  )
)
MIX = mixing.Mixing(rate=0.6, top_k=TOP_K, until=(UNTIL,))
SAMPLER = sampling.SamplerConfig(
  8, (0,), 0, temperature=TEMPERATURE, top_k=6, mix=MIX
)


# ---- The neighbours.


def by_hand(embeddings, count):
  """Ids by falling cosine, one row at a time, in float64."""
  table = np.asarray(embeddings, np.float64)
  found = []
  for a in range(len(table)):
    cosines = {}
    for b in range(len(table)):
      if a != b:
        norm = np.sqrt(sum(table[a] ** 2)) * np.sqrt(sum(table[b] ** 2))
        cosines[b] = sum(table[a] * table[b]) / norm if norm else 0.0
    found.append(sorted(cosines, key=lambda b: (-cosines[b], b))[:count])
  return np.array(found)


@pytest.mark.parametrize("chunk", [2**24, 50])
def test_neighbours_are_nearest_by_angle_and_never_the_row_itself(
  monkeypatch, chunk
):
  monkeypatch.setattr(mixing, "_CHUNK", chunk)
  rng = np.random.default_rng(0)
  table = rng.normal(size=(17, 5)) * rng.uniform(0.1, 9, (17, 1))
  table[3] = 2.0 * table[11]  # As like as can be, and longer.
  table[5] = 0.0
  # A function of this test: what is traced has its chunks.
  nearest = jax.jit(lambda table: mixing.nearest(table, 4))
  found = np.asarray(nearest(table.astype(np.float32)))
  np.testing.assert_array_equal(found, by_hand(table, 4))
  assert found[3, 0] == 11
  assert found[11, 0] == 3
  assert (found != np.arange(17)[:, None]).all()


# ---- What lanes read, on numbers that a person can follow.

LOGITS = np.array(
  [[np.log(0.5), np.log(0.3), np.log(0.2), -np.inf], np.log([1, 1, 2, 6])]
)
NEIGHBOURS = np.array([[2, 3], [0, 2], [3, 1], [1, 0]])


def after(tokens, is_open=(True, True), neighbours=NEIGHBOURS, **change):
  mix = mixing.Mixing(**{"rate": 1.0, "top_k": 3} | change)
  probs = np.exp(LOGITS) / np.exp(LOGITS).sum(axis=-1, keepdims=True)
  entropy = -(probs * np.log(np.maximum(probs, 1e-9))).sum(axis=-1)
  found = _after(
    mix, np.array(tokens), np.array(is_open), neighbours, np.float32(entropy)
  )
  return jax.device_get(found)


@functools.partial(jax.jit, static_argnums=0)
def _after(mix, tokens, is_open, neighbours, entropy):
  logits = jnp.asarray(LOGITS)
  return mixing.after(
    mix,
    mixing.BlendedInputs(*mixing.plain(tokens, mix.top_k), is_open),
    neighbours,
    logits,
    logits.argmax(axis=-1),
    entropy,
    tokens,
    jax.random.split(jax.random.key(0), 2),
    jnp.array([4, 9]),
  )


@pytest.mark.slow
def test_a_blend_is_weighted_by_what_the_token_was_drawn_from():
  found = after([1, 2])
  np.testing.assert_array_equal(found.ids, [[0, 2, 3], [3, 1, 0]])
  # 0.5, 0.2, 0 of 0.7; and 0.6, 0.1, 0.1 of 0.8.
  np.testing.assert_allclose(
    found.weights, [[5 / 7, 2 / 7, 0], [0.75, 0.125, 0.125]], rtol=1e-6
  )
  of_tokens = after([1, 2], anchor="sampled")
  np.testing.assert_array_equal(of_tokens.ids, [[1, 0, 2], [2, 3, 1]])
  np.testing.assert_allclose(of_tokens.weights[0], [0.3, 0.5, 0.2], rtol=1e-6)


def test_the_last_open_token_is_read_as_it_is_and_so_is_all_after_it():
  found = after([1, 2], until=(2, 9))
  np.testing.assert_array_equal(found.is_open, [True, False])
  np.testing.assert_array_equal(found.ids[1], [2, 2, 2])
  np.testing.assert_array_equal(found.weights[1], [1, 0, 0])
  np.testing.assert_array_equal(found.ids[0], [0, 2, 3])
  closed = after([1, 3], is_open=(False, True), until=(2, 9))
  np.testing.assert_array_equal(closed.is_open, [False, True])
  np.testing.assert_array_equal(closed.ids[0], [1, 1, 1])


def test_entropy_may_decide():
  # 1.03 and 1.09 nats.
  found = after([1, 2], min_entropy=1.06)
  np.testing.assert_array_equal(
    mixing.is_mixed(np.array([1, 2]), found.ids), [False, True]
  )


def test_random_neighbours_are_any_others():
  draw = jax.jit(
    jax.vmap(
      lambda key: mixing.after(
        mixing.Mixing(rate=1.0, top_k=3, neighbours="random"),
        mixing.BlendedInputs(
          *mixing.plain(jnp.array([1]), 3), jnp.array([True])
        ),
        None,
        jnp.asarray(LOGITS[1:]),
        jnp.array([3]),
        jnp.array([1.0]),
        jnp.array([1]),
        key[None],
        jnp.array([0]),
      ).ids[0]
    )
  )
  ids = np.asarray(draw(jax.random.split(jax.random.key(1), 600)))
  assert (ids[:, 0] == 3).all()
  assert (ids[:, 1] != ids[:, 2]).all()
  for place in (1, 2):
    counts = np.bincount(ids[:, place], minlength=4)
    assert counts[3] == 0
    assert (abs(counts[:3] - 200) < 60).all()  # Five standard deviations.


# ---- Rollouts.


@pytest.fixture(scope="module")
def drawn():
  """A policy, its prompts, and what it reads without mixing and with it."""
  with jax.enable_x64(True):
    tokens, mask, *_ = transformer_test.make_batch()
    prompts = Prompts(tokens, mask, np.arange(3), {})
    policy = transformer.transformer_policy(CONFIG)
    params = transformer_test.make_params(CONFIG)
    rollout = functools.partial(
      sampling_test.sample, policy, params, key=jax.random.key(3), group_size=8
    )
    yield types.SimpleNamespace(
      policy=policy,
      params=params,
      prompts=prompts,
      plain=rollout(prompts, config=dataclasses.replace(SAMPLER, mix=None)),
      mixed=rollout(prompts, config=SAMPLER),
      sample=rollout,
    )


def forced(drawn, rollout, with_mix=True):
  """Logits [B, T, V] of a pass over whole rows, at the temperature."""
  extras = None
  if with_mix:
    extras = {"mix_ids": rollout.mix_ids, "mix_weights": rollout.mix_weights}
  logits = sampling_test.logits_of(
    drawn.policy, drawn.params, drawn.prompts, rollout, extras
  )
  return logits / TEMPERATURE


@pytest.mark.slow
def test_whole_rows_replay_what_the_sampler_read(drawn):
  rollout = drawn.mixed
  mask = np.asarray(rollout.completion_mask)
  with jax.enable_x64(True):
    replayed, as_written = (
      np.asarray(
        logprobs.token_logprobs(
          forced(drawn, rollout, with_mix), rollout.tokens
        )
      )
      for with_mix in (True, False)
    )
  said = np.asarray(rollout.sampler_logp)
  np.testing.assert_allclose(replayed[mask], said[mask], atol=1e-6)
  assert abs(as_written - said)[mask].max() > 0.1


@pytest.mark.slow
@pytest.mark.parametrize(
  ("fields", "adapters"),
  [
    ({"dtype": "bfloat16", "cache_dtype": "int8"}, None),
    ({}, lora.LoRAConfig(rank=2, quantization="int8")),
  ],
)
def test_other_models_replay_it_too(fields, adapters):
  config = dataclasses.replace(
    transformer_test.PLAIN, num_layers=1, **{"width": 64} | fields
  )
  policy = transformer.transformer_policy(config)
  params = transformer_test.make_params(config)
  if adapters is not None:
    policy = lora.lora_policy(policy, adapters)
    params = lora.wrap(params, adapters, jax.random.key(3))
  tokens, mask, *_ = transformer_test.make_batch()
  prompts = Prompts(tokens, mask, np.arange(3), {})
  sampler = dataclasses.replace(SAMPLER, temperature=1.0, top_k=None)
  rollout = sampling_test.sample(
    policy, params, prompts, jax.random.key(2), sampler, 8
  )
  own = types.SimpleNamespace(policy=policy, params=params, prompts=prompts)
  exists = np.asarray(rollout.completion_mask)
  said = np.asarray(rollout.sampler_logp)[exists]
  gaps = []
  for with_mix in (True, False):
    logits = forced(own, rollout, with_mix) * TEMPERATURE
    again = logprobs.token_logprobs(logits, rollout.tokens)
    gaps.append(abs(np.asarray(again)[exists] - said).mean())
  assert gaps[0] < (0.05 if "dtype" in fields else 1e-4)
  assert gaps[1] > 10 * gaps[0]


@pytest.mark.slow
def test_every_input_is_what_the_equations_say(drawn):
  rollout = drawn.mixed
  with jax.enable_x64(True):
    logits = np.asarray(forced(drawn, rollout))
  table = drawn.policy.embeddings(drawn.params)
  neighbours = by_hand(table, TOP_K - 1)
  tokens, ids = np.asarray(rollout.tokens), np.asarray(rollout.mix_ids)
  weights = np.asarray(rollout.mix_weights, np.float64)
  np.testing.assert_allclose(weights.sum(axis=-1), 1, rtol=1e-6)
  num_mixed = num_open = num_closed = 0
  for row, exists in enumerate(np.asarray(rollout.completion_mask)):
    is_open = True
    for t in np.flatnonzero(exists):
      token = tokens[row, t]
      is_open &= token != UNTIL
      if (ids[row, t] == token).all():
        assert weights[row, t].tolist() == [1, 0, 0]
        num_open += is_open
        num_closed += not is_open
        continue
      assert is_open
      num_mixed += 1
      scores = logits[row, t]
      anchor = scores.argmax()
      assert ids[row, t].tolist() == [anchor, *neighbours[anchor]]
      kept = scores >= np.sort(scores)[-6]  # The filter of the sampler.
      probs = np.where(kept, np.exp(scores), 0)[ids[row, t]]
      np.testing.assert_allclose(
        weights[row, t], probs / probs.sum(), rtol=1e-5, atol=1e-9
      )
  assert num_closed > 5
  share = num_mixed / (num_mixed + num_open)  # Of about 90.
  assert abs(share - MIX.rate) < 0.16
  other = ids[..., 0] != tokens
  assert (other & np.asarray(rollout.completion_mask)).any()


@pytest.mark.slow
def test_inputs_that_are_never_mixed_give_the_bits_of_an_ordinary_rollout(
  drawn,
):
  never = dataclasses.replace(MIX, min_entropy=1e9)
  with jax.enable_x64(True):
    found = drawn.sample(
      drawn.prompts, config=dataclasses.replace(SAMPLER, mix=never)
    )
  for field in dataclasses.fields(drawn.plain):
    expected = getattr(drawn.plain, field.name)
    if expected is not None:
      np.testing.assert_array_equal(
        getattr(found, field.name), expected, err_msg=field.name
      )
  assert (drawn.mixed.tokens != drawn.plain.tokens).any()
  # The first token has read nothing but its prompt.
  np.testing.assert_array_equal(
    drawn.mixed.tokens[:, 0], drawn.plain.tokens[:, 0]
  )


@pytest.mark.slow
def test_what_is_mixed_depends_on_the_row_alone(drawn, monkeypatch):
  """Not on other rows, on lanes, or on how the cache grows."""
  monkeypatch.setattr(sampling, "_SMALLEST", 4)
  rows = [2, 0]
  with jax.enable_x64(True):
    found = drawn.sample(
      sampling_test.take(drawn.prompts, rows),
      config=dataclasses.replace(SAMPLER, lanes=5),
    )
  own = np.concatenate([np.arange(8) + 8 * row for row in rows])
  mask = np.asarray(found.completion_mask)
  for name in ("tokens", "completion_mask", "mix_ids", "mix_weights"):
    x, y = (np.asarray(getattr(r, name)) for r in (found, drawn.mixed))
    np.testing.assert_allclose(x[mask], y[own][mask], atol=1e-6, err_msg=name)


# ---- What is refused.


@pytest.mark.parametrize(
  ("change", "message"),
  [
    ({"rate": 0.0}, "rate is 0.0, but must be in"),
    ({"rate": 1.5}, "rate is 1.5"),
    ({"top_k": 1}, "top_k is 1, but must be at least 2"),
    ({"anchor": "first"}, "anchor is 'first', but must be one of argmax"),
    ({"neighbours": "far"}, "neighbours is 'far', but must be one of nearest"),
    ({"min_entropy": -1.0}, "min_entropy is -1.0"),
  ],
)
def test_impossible_settings_raise(change, message):
  with pytest.raises(ValueError, match=message):
    mixing.Mixing(**{"rate": 0.1} | change)


def test_who_cannot_mix_says_so():
  with pytest.raises(ValueError, match=r"temperature is 0.0, but must be pos"):
    dataclasses.replace(SAMPLER, temperature=0.0)
  with pytest.raises(ValueError, match="top_k is 3, and the embedding table h"):
    mixing.table(MIX, np.zeros((2, 4)))
  with pytest.raises(ValueError, match="the policy has no embedding table"):
    sampling_test.run_chains(
      sampling_test.chains([1, 2]), [1], end_ids=(3,), mix=MIX
    )
