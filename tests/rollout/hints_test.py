"""Corrected rows: what is put in, what is drawn, and what is recorded."""

import dataclasses
import functools
import types

import jax
import numpy as np
import pytest

from grpo_jax.models import transformer
from grpo_jax.ops import logprobs
from grpo_jax.rollout import hints, mixing, sampling
from grpo_jax.types import Prompts, Scored
from tests.models import transformer_test
from tests.rollout import sampling_test

pytestmark = pytest.mark.slow

CONFIG = transformer_test.float64(
  dataclasses.replace(transformer_test.PLAIN, num_layers=1)
)
PAD, ENDS, T, G = 0, (1, 2, 3), 14, 32
SAMPLER = sampling.SamplerConfig(T, ENDS, PAD, temperature=0.8, top_k=9)
CUE, MOST = (11, 12), 4
CORRECTION = hints.Correction(
  p_cue=0.4,
  p_answer=0.2,
  p_reference=0.3,
  cue=CUE,
  max_new_tokens=MOST,
  max_prompt_len=4,  # Of three prompts the first one is longer.
)
ANSWERS = [[9, 9, 1, -1], [9, 8, 7, 1], [5, 1, -1, -1]]
REFERENCES = [[6, 6, 6, 1], [4, 1, -1, -1], [-1, -1, -1, -1]]


def make_prompts():
  tokens, mask, *_ = transformer_test.make_batch()
  extras = {
    hints.ANSWER: np.array(ANSWERS, np.int32),
    hints.REFERENCE: np.array(REFERENCES, np.int32),
  }
  return Prompts(tokens, mask, np.arange(3), extras)


def scored_of(rollout):
  """Every fifth completion is right, and nobody has scored some others."""
  rows = np.arange(len(rollout.tokens))
  right = rows % 5 == 0
  return Scored(
    rewards=right.astype(np.float32),
    valid=rows % 7 != 3,
    correct=right,
    components={},
    weights={},
  )


@functools.partial(jax.jit, static_argnums=(0, 6, 7))
def corrected(policy, params, prompts, key, rollout, scored, config, settings):
  return hints.correct(
    policy,
    params,
    prompts,
    key,
    rollout,
    scored,
    config=config,
    correction=settings,
  )


@pytest.fixture(scope="module")
def drawn():
  """A policy, drafts of 3 · 32 rows, and what has become of them."""
  with jax.enable_x64(True):
    prompts, key = make_prompts(), jax.random.key(3)
    policy = transformer.transformer_policy(CONFIG)
    params = transformer_test.make_params(CONFIG)
    draft = sampling_test.sample(policy, params, prompts, key, SAMPLER, G)

    def run(*arguments):
      rollout = corrected(policy, params, prompts, key, *arguments)
      return jax.device_get(rollout)

    yield types.SimpleNamespace(
      policy=policy,
      params=params,
      prompts=prompts,
      key=key,
      draft=draft,
      scored=scored_of(draft),
      run=run,
      rollout=run(draft, scored_of(draft), SAMPLER, CORRECTION),
    )


def ids(rollout, row):
  mask = np.asarray(rollout.completion_mask)[row]
  return np.asarray(rollout.tokens)[row][mask].tolist()


def test_rows_have_what_the_rules_put_into_them(drawn):
  draft, found = drawn.draft, drawn.rollout
  made = found.corrections
  kind, unfit = np.asarray(made.kind), np.asarray(made.unfit)
  injected = np.asarray(made.injected)
  wrong = np.asarray(drawn.scored.valid & ~drawn.scored.correct)
  seen = {0: 0, 1: 0, 2: 0, 3: 0}
  for row in range(len(kind)):
    before, after = ids(draft, row), ids(found, row)
    ended = bool(draft.terminated[row])
    assert ended == (before[-1] in ENDS)
    prompt = row // G
    seen[int(kind[row])] += 1
    if kind[row] == 0:
      assert after == before
      assert not injected[row].any()
      assert made.removed[row] == 0
      assert found.terminated[row] == draft.terminated[row]
      continue
    assert wrong[row]
    assert prompt > 0
    assert not unfit[row]
    start = 0 if kind[row] == 3 else len(before) - 1
    answer = [x for x in ANSWERS[prompt] if x >= 0]
    reference = [x for x in REFERENCES[prompt] if x >= 0]
    hint = {1: [*CUE], 2: answer, 3: reference}[int(kind[row])]
    end = start + len(hint)
    assert after[:end] == before[:start] + hint
    assert np.flatnonzero(injected[row]).tolist() == [*range(start, end)]
    assert made.removed[row] == len(before) - start
    more = after[end:]
    if kind[row] == 1:
      assert ended
      assert 1 <= len(more) <= MOST
      assert not {*more[:-1]} & {*ENDS}
      assert (len(more) == MOST) or more[-1] in ENDS
      assert found.terminated[row] == (more[-1] in ENDS)
    else:
      assert more == []
      assert found.terminated[row]
    # Without a reference the answer is put in.
    assert kind[row] < 3 or prompt == 1
  assert min(seen.values()) >= 2
  assert found.terminated[kind == 1].any()
  np.testing.assert_array_equal(found.observed, injected)
  # Those that had to stay have no room, or were cut off.
  assert unfit.any()
  for row in np.flatnonzero(unfit):
    size = len(ids(draft, row))
    assert not draft.terminated[row] or size - 1 + len(CUE) + MOST > T


def test_drafts_without_room_are_those_that_would_not_fit(drawn):
  """A budget for each domain, from none to all."""
  prompts = dataclasses.replace(
    drawn.prompts,
    extras={**drawn.prompts.extras, "domain": np.array([0, 0, 1])},
  )
  keys = sampling_test.row_keys(drawn.key, prompts.ids, G)
  draft, everyone = drawn.draft, np.ones(3 * G, bool)
  for limits in ((T, T), (9, 12)):
    settings = dataclasses.replace(
      CORRECTION, p_cue=1.0, p_answer=0.0, p_reference=0.0, limits=limits
    )
    found = hints.plan(settings, prompts, keys, draft, everyone)
    size = np.asarray(draft.completion_mask.sum(1))
    room = np.repeat([limits[0], limits[0], limits[1]], G)
    fits = (size - 1 + len(CUE) + MOST <= room) & np.asarray(draft.terminated)
    short = np.arange(3 * G) >= G
    np.testing.assert_array_equal(found.kind, np.where(fits & short, 1, 0))
    np.testing.assert_array_equal(found.unfit, ~fits & short)
    assert found.unfit.any()
    assert (found.kind == 1).any()


def teacher_forced(drawn, rollout):
  """Logits [B, T, V] of one pass over whole rows, at the temperature."""
  logits = sampling_test.logits_of(
    drawn.policy, drawn.params, drawn.prompts, rollout
  )
  return np.asarray(logits) / SAMPLER.temperature


_token_logprobs = jax.jit(logprobs.token_logprobs)
_entropy = jax.jit(logprobs.entropy_from_logits)
_kinds = jax.jit(hints.kinds, static_argnums=0)


def test_what_is_recorded_is_what_a_pass_over_whole_rows_says(drawn):
  rollout = drawn.rollout
  own = np.asarray(rollout.written)
  with jax.enable_x64(True):
    logits = teacher_forced(drawn, rollout)
    every = np.asarray(_token_logprobs(logits, rollout.tokens))
    cut = np.sort(logits)[..., -SAMPLER.top_k, None]
    kept = np.where(logits >= cut, logits, -np.inf)
    filtered = np.asarray(_token_logprobs(kept, rollout.tokens))
    entropy = np.asarray(_entropy(kept))
  after = np.cumsum(rollout.corrections.injected, axis=1) > 0
  assert (after & own).sum() > 10  # Continuations.
  for name, said in (
    ("sampler_logp", every),
    ("behavior_logp", filtered),
    ("entropy", entropy),
  ):
    recorded = np.asarray(getattr(rollout, name))
    np.testing.assert_allclose(recorded[own], said[own], atol=1e-6)
    assert (recorded[~own] == 0).all()


def test_what_is_trained_of_a_hint_has_the_log_probs_of_the_policy(drawn):
  with jax.enable_x64(True):
    found = drawn.run(
      drawn.draft,
      drawn.scored,
      SAMPLER,
      dataclasses.replace(CORRECTION, train_injected=True),
    )
    logits = teacher_forced(drawn, found)
    said = np.asarray(_token_logprobs(logits, found.tokens))
    entropy = np.asarray(_entropy(logits))
  assert found.observed is None
  injected = np.asarray(found.corrections.injected)
  assert injected.sum() > 50
  for name in ("behavior_logp", "sampler_logp"):
    recorded = np.asarray(getattr(found, name))
    np.testing.assert_allclose(recorded[injected], said[injected], atol=1e-6)
  np.testing.assert_allclose(
    np.asarray(found.entropy)[injected], entropy[injected], atol=1e-6
  )
  for name in ("tokens", "completion_mask", "terminated"):
    np.testing.assert_array_equal(
      getattr(found, name), getattr(drawn.rollout, name)
    )
  drawn_of_policy = np.asarray(found.num_drawn)
  np.testing.assert_array_equal(drawn_of_policy, drawn.rollout.num_drawn)


def test_positions_count_on_after_a_cue(drawn):
  """The noise of a draw is that of its place in the row."""
  found = drawn.rollout
  keys = sampling_test.row_keys(drawn.key, drawn.prompts.ids, G)
  injected = np.asarray(found.corrections.injected)
  own = (np.cumsum(injected, axis=1) > 0) & ~injected
  own &= np.asarray(found.completion_mask)
  with jax.enable_x64(True):
    logits = teacher_forced(drawn, found)
  cut = np.sort(logits)[..., -SAMPLER.top_k, None]
  kept = np.where(logits >= cut, logits, -np.inf)
  noise = np.asarray(sampling_test.noise_of(keys, T, kept.shape[-1]))
  assert noise.dtype == np.float32
  for row, t in zip(*np.nonzero(own), strict=True):
    most = (kept[row, t] + noise[row, t]).argmax()
    assert most == found.tokens[row, t]
  assert own.sum() > 10


def test_tokens_that_are_gone_were_drawn_too(drawn):
  """The draft, whatever becomes of it, and what comes after cues."""
  size = np.asarray(drawn.draft.completion_mask.sum(1))
  injected = np.asarray(drawn.rollout.corrections.injected)
  after = (np.cumsum(injected, axis=1) > 0) & ~injected
  more = (after & np.asarray(drawn.rollout.completion_mask)).sum(1)
  np.testing.assert_array_equal(drawn.rollout.num_drawn, size + more)
  np.testing.assert_array_equal(drawn.draft.num_drawn, size)


def test_with_no_probability_every_bit_is_that_of_the_draft(drawn):
  never = dataclasses.replace(
    CORRECTION, p_cue=0.0, p_answer=0.0, p_reference=0.0
  )
  hardly = dataclasses.replace(never, p_cue=1e-9)  # Its program goes on.
  for settings in (never, hardly):
    with jax.enable_x64(True):
      found = drawn.run(drawn.draft, drawn.scored, SAMPLER, settings)
    assert not found.observed.any()
    assert not found.corrections.kind.any()
    for field in dataclasses.fields(drawn.draft):
      expected = getattr(drawn.draft, field.name)
      if expected is not None:
        np.testing.assert_array_equal(
          getattr(found, field.name), expected, err_msg=field.name
        )


def test_what_becomes_of_a_row_depends_on_the_row_alone(drawn, monkeypatch):
  """Not on other rows, on lanes, or on how the cache grows."""
  monkeypatch.setattr(sampling, "_SMALLEST", 2)
  chosen = [2, 1]
  prompts = sampling_test.take(drawn.prompts, chosen)
  own = np.concatenate([np.arange(G) + G * row for row in chosen])
  lanes = dataclasses.replace(SAMPLER, lanes=5)
  with jax.enable_x64(True):
    draft = sampling_test.sample(
      drawn.policy, drawn.params, prompts, drawn.key, lanes, G
    )
    scored = jax.tree.map(lambda x: x[own], drawn.scored)
    found = corrected(
      *(drawn.policy, drawn.params, prompts, drawn.key, draft, scored),
      *(lanes, CORRECTION),
    )
  for name in ("tokens", "completion_mask", "observed"):
    np.testing.assert_array_equal(
      getattr(found, name), getattr(drawn.rollout, name)[own], err_msg=name
    )
  np.testing.assert_array_equal(
    found.corrections.kind, drawn.rollout.corrections.kind[own]
  )
  np.testing.assert_allclose(
    found.sampler_logp, drawn.rollout.sampler_logp[own], atol=1e-6
  )


def test_shares_are_the_probabilities():
  keys = jax.random.split(jax.random.key(0), 20_000)
  has = np.arange(len(keys)) % 2 == 0
  found = np.asarray(_kinds(CORRECTION, keys, has))
  for rows, shares in (
    (has, (0.1, 0.4, 0.2, 0.3)),
    (~has, (0.1, 0.4, 0.5, 0.0)),
  ):
    counts = np.bincount(found[rows], minlength=4) / rows.sum()
    np.testing.assert_allclose(counts, shares, atol=0.02)
    assert counts[3] == shares[3] or shares[3]


@pytest.mark.parametrize(
  "change", [{"mix": mixing.Mixing(rate=0.5)}, {"record_routing": True}]
)
def test_what_a_second_reading_does_not_know_is_refused(drawn, change):
  config = dataclasses.replace(SAMPLER, **change)
  with pytest.raises(ValueError, match="mix is set"):
    drawn.run(drawn.draft, drawn.scored, config, CORRECTION)
