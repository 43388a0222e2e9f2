"""Metrics of domains are those of their rows alone; limits are of domains."""

from __future__ import annotations

import functools
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from grpo_jax.data import domains as names
from grpo_jax.rollout import sampling
from grpo_jax.step import metrics
from grpo_jax.training.phases import sampler
from grpo_jax.types import Prompts, Rollout, Scored
from tests.training import tiny

NAMES = ("sums", "words", "none")
P, G, T = 4, 3, 5
DOMAIN = np.array([0, 1, 0, 1], np.int32)


def _batch(rng):
  index = np.repeat(np.arange(P), G).astype(np.int32)
  lengths = rng.integers(1, T + 1, size=P * G)
  mask = np.arange(T) < lengths[:, None]
  rewards = rng.integers(0, 2, size=P * G).astype(np.float32)
  rewards[:G] = 1.0  # A dead group.
  logp, ref, entropy, filtered = rng.normal(size=(4, P * G, T)).astype(
    np.float32
  )
  rollout = Rollout(
    tokens=np.zeros((P * G, T), np.int32),
    completion_mask=mask,
    behavior_logp=filtered,
    sampler_logp=logp,
    entropy=np.where(mask, entropy, 0),
    terminated=rng.random(P * G) < 0.5,
    prompt_index=index,
    group_id=index,
    num_groups=P,
  )
  scored = Scored(
    rewards=rewards,
    valid=np.arange(P * G) != 4,
    correct=rewards == 1,
    components={},
    weights={},
  )
  prompts = types.SimpleNamespace(extras={"domain": jnp.array(DOMAIN)})
  return (
    prompts,
    rollout,
    scored,
    types.SimpleNamespace(
      mask=mask & (index != 2)[:, None],
      reference=types.SimpleNamespace(logp=ref),
      sampler=types.SimpleNamespace(kept_ids=None),
    ),
  )


@pytest.mark.slow
@pytest.mark.parametrize("keeps", [False, True])
def test_metrics_of_a_domain_are_those_of_its_rows(keeps):
  prompts, rollout, scored, batch = _batch(np.random.default_rng(0))
  batch.sampler.kept_ids = rollout.tokens[..., None] if keeps else None
  measure = functools.partial(
    metrics.domain_metrics, NAMES, prompts, rollout, scored, batch
  )
  got = jax.jit(measure)()
  keys = {name.split("/")[2] for name in got}
  for number, name in enumerate(NAMES):
    rows = [b for b in range(P * G) if DOMAIN[b // G] == number]
    good = [b for b in rows if scored.valid[b]]
    right = [b for b in good if scored.correct[b]]
    length = rollout.completion_mask.sum(axis=1)
    dead = [
      len({scored.rewards[b] for b in good if b // G == p}) == 1
      for p in range(P)
      if DOMAIN[p] == number
    ]
    kls, entropies = [], []
    for b in rows:
      for t in range(length[b]):
        logp = rollout.behavior_logp if keeps else rollout.sampler_logp
        u = logp[b, t] - batch.reference.logp[b, t]
        kls += [np.exp(-u) - 1 + u] if batch.mask[b, t] else []
        entropies.append(rollout.entropy[b, t])

    def mean(values):
      return np.mean(values) if len(values) else np.nan

    wanted = {
      "share": len(rows) / (P * G),
      "accuracy": len(right) / len(good) if good else np.nan,
      "reward": mean([scored.rewards[b] for b in good]),
      "length": mean([length[b] for b in rows]),
      "length_correct": mean([length[b] for b in right]),
      "length_incorrect": mean([length[b] for b in good if b not in right]),
      "truncated": mean([not rollout.terminated[b] for b in rows]),
      "entropy": mean(entropies),
      "dead_groups": mean(dead),
      "unscored": len(rows) - len(good),
      "tokens": sum(length[b] for b in rows),
      "kl": mean(kls),
    }
    assert wanted.keys() == keys
    for key, value in wanted.items():
      found = got[f"domain/{name}/{key}"]
      np.testing.assert_allclose(found, value, rtol=1e-5, err_msg=key)
  batch.reference.logp = None
  without = metrics.domain_metrics(NAMES, prompts, rollout, scored, batch)
  assert {*got} - {*without} == {f"domain/{name}/kl" for name in NAMES}


@pytest.mark.slow
def test_completions_stay_within_the_limits_of_their_domains():
  policy = tiny.tiny_policy()
  params = policy.init(jax.random.key(0))
  problem = types.SimpleNamespace(
    compaction=None, environment=None, limits=(1, 4, 3)
  )
  sample = sampler.make_sample(policy, problem)
  config = sampling.SamplerConfig(max_new_tokens=4, end_ids=(), pad_id=0)
  prompts = tiny.make_prompts(3)
  domain = jnp.array([2, 0, 1], jnp.int32)
  limited = Prompts(
    prompts.tokens, prompts.mask, prompts.ids, {"domain": domain}
  )
  draw = jax.jit(
    lambda prompts: sample(
      params, prompts, jax.random.key(1), config=config, group_size=2
    )
  )
  rollout = draw(limited)
  lengths = rollout.completion_mask.sum(axis=1).tolist()
  assert lengths == [3, 3, 1, 1, 4, 4]
  free = draw(Prompts(prompts.tokens, prompts.mask, prompts.ids, {}))
  assert free.completion_mask.all()
  np.testing.assert_array_equal(
    np.where(rollout.completion_mask, free.tokens, 0),
    np.where(rollout.completion_mask, rollout.tokens, 0),
  )


def test_a_limit_is_a_number_of_slots_of_a_domain_that_there_is():

  assert names.limits(("a", "b"), {"b": 3}, 8) == (8, 3)
  assert names.limits(("a", "b"), {}, 8) == ()
  for given, message in (
    ({"c": 3}, r"names the domain 'c'"),
    ({"a": 9}, r"'a' got 9; needs .* from 1 to 8"),
    ({"a": 0}, r"'a' got 0"),
  ):
    with pytest.raises(ValueError, match=message):
      names.limits(("a", "b"), given, 8)
