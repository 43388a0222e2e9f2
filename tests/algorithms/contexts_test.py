"""Advantages where a rollout is several rows, each a context of it."""

import dataclasses
import functools
import types

import jax
import numpy as np
import pytest

from grpo_jax import algorithms
from grpo_jax.algorithms import objective
from grpo_jax.algorithms.contract import cases
from grpo_jax.ops import aggregation, returns
from grpo_jax.settings import compatibility
from grpo_jax.types import PolicyOutputs, Traces
from tests.references import contexts
from tests.training import tiny

OPTIONS = {
  "kl_coef": 0.1,
  "kl_kind": "k1",
  "kl_in_reward": True,
  "overlong_filter": True,
}
TAKE_CONTEXTS = [
  name
  for name, algorithm in algorithms.ALGORITHMS.items()
  if not algorithm.whole_completions
  and not algorithm.couples_group
  and name != "sft"  # Has no advantages.
]
WHOLE = [
  name
  for name, algorithm in algorithms.ALGORITHMS.items()
  if algorithm.whole_completions
]
# Where a context ends there is no end for the estimate, and no budget.
FIELDS = {
  "ppo": {"boundary": "chain"},
  "vc_ppo": {"boundary": "chain"},
  "vapo": {"boundary": "chain"},
  "sao": {"boundary": "chain"},
  "compaction_rl": {"boundary": "chain"},
  "dapo": {"overlong_cache": 0.0},
  "gfpo": {"num_kept": 2},
  "tic_grpo": {"length_corrected": True},
}
WITH_CRITIC = [
  name
  for name in TAKE_CONTEXTS
  if algorithms.get_algorithm(name).critic_loss is not None
]
# What weighs single tokens, or leaves them out.
OF_TOKENS = {
  "rejection": "token_k1",
  "rejection_low": 0.9,
  "rejection_high": 1.1,
  "top_entropy_fraction": 0.7,
}
# Not clipped, so that each ratio has a slope.
WIDE = {
  name: {"clip_low": 1.0, "clip_high": 9.0}
  for name in ("rloo", "gspo", "gspo_token", "luspo", "gmpo")
}
# Tokens of a row that are in its first context; the others are in a second.
FIRST = np.where(
  np.arange(len(cases.LENGTHS)) % 2, cases.LENGTHS // 2, cases.LENGTHS - 1
)
FIRST = np.maximum(FIRST, np.minimum(cases.LENGTHS, 1))


def _in_contexts(case):
  """Each row of the case as two, and which are of one rollout."""
  size = np.stack([FIRST, cases.LENGTHS - FIRST], axis=1)  # [B, 2]
  rows = np.repeat(np.arange(len(FIRST)), 2)
  split = case.take(rows)
  slots = np.arange(cases.BUDGET)
  shift = np.stack([np.zeros_like(FIRST), FIRST], axis=1).reshape(-1, 1)
  places = np.minimum(slots + shift, cases.BUDGET - 1)
  for name in cases.SLOT_FIELDS:
    moved = np.take_along_axis(getattr(split, name), places, axis=1)
    setattr(split, name, moved)
  split.mask = slots < size.reshape(-1, 1)
  split.step_mask &= split.mask
  continues = size[:, 1] > 0
  traces = Traces(
    prompt_tokens=np.zeros((len(rows), 1), np.int32),
    prompt_mask=np.ones((len(rows), 1), bool),
    id=rows.astype(np.int32),
    order=np.tile(np.arange(2, dtype=np.int32), len(FIRST)),
    is_last=np.stack([~continues, continues], axis=1).ravel(),
    num_contexts=2,
  )
  return split, traces


def _of_tokens(x, mask):
  """One number for each trained token, in the order of time."""
  x = np.asarray(x)
  x = np.broadcast_to(x if x.ndim == 2 else x[:, None], mask.shape)
  return x[mask]


@functools.partial(jax.jit, static_argnums=(0, 1))
def _outcome(algorithm, config, arrays, traces=None):
  """Mask, advantages, and the slope of the policy's loss, a sum over tokens."""
  case = cases.Case(**arrays)
  algorithm = dataclasses.replace(algorithm, aggregate=aggregation.over_tokens)
  batch = cases.prepared(
    algorithm, config, case, key=jax.random.key(0), traces=traces
  )

  def loss(logp):
    more = cases.derived(jax.numpy, logp, case.ref_logp, case.values)
    del more["values"], more["ref_topk_logp"]
    policy = PolicyOutputs(logp=logp, entropy=case.entropy, **more)
    return objective.loss(algorithm, config, policy, batch).terms["policy"][1][
      0
    ]

  return batch.mask, batch.advantages, jax.grad(loss)(case.logp)


def _of_one_and_two(name, **fields):
  """Advantages and slopes of one context and of two, over trained tokens."""
  config = algorithms.make_config(name, **{**FIELDS.get(name, {}), **fields})
  algorithm = algorithms.get_algorithm(name)
  case = cases.make_case()
  split, traces = _in_contexts(case)
  one = _outcome(algorithm, config, vars(case))
  two = _outcome(algorithm, config, vars(split), traces)
  trained = _of_tokens(one[0], case.mask)
  np.testing.assert_array_equal(_of_tokens(two[0], split.mask), trained)
  return [
    [_of_tokens(x, mask)[trained] for x in found[1:]]
    for found, mask in ((one, case.mask), (two, split.mask))
  ]


@pytest.mark.slow
@pytest.mark.parametrize("name", TAKE_CONTEXTS)
def test_tokens_have_the_advantages_and_the_slopes_of_one_row(name):
  """With the options that shape rewards, and those about single tokens."""
  config = algorithms.make_config(name)
  fields = OPTIONS | {"kl_in_reward": config.reads_rewards}
  if name != "sao":  # Its ratio is to the sampler.
    fields |= {"importance_mode": "truncate", "importance_normalize": True}
  if not config.scale_free:
    fields |= {"advantage_scale": "batch"}
  one, two = _of_one_and_two(name, **fields, **OF_TOKENS)
  for x, y in zip(one, two, strict=True):
    assert np.any(x != 0)
    np.testing.assert_allclose(y, x, rtol=1e-4, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize(
  "fields",
  [
    {"off_policy_threshold": 0.05},
    {"importance_mode": "truncate", "importance_level": "sequence"},
    {**OF_TOKENS, "rejection": "seq_sum_k1"},
    {**OF_TOKENS, "rejection": "seq_mean_k1"},
    {**OF_TOKENS, "rejection": "seq_max_k1"},
    {"opd_coef": 0.5, "opd_early": 0.5},
  ],
)
def test_options_about_whole_completions_are_refused(fields):
  """Refuses options that would mean something else for a context."""
  config = algorithms.make_config("grpo", **fields)
  setup = types.SimpleNamespace(objective=config)
  assert compatibility.FEATURES["options of whole completions"].is_on(setup)
  case = cases.make_case()
  split, traces = _in_contexts(case)
  algorithm = algorithms.get_algorithm("grpo")
  one = _outcome(algorithm, config, vars(case))[2]
  two = _outcome(algorithm, config, vars(split), traces)[2]
  one, two = _of_tokens(one, case.mask), _of_tokens(two, split.mask)
  assert np.abs(two - one).max() > 1e-3


@pytest.mark.slow
@pytest.mark.parametrize(
  ("reward", "scale"),
  [("terminal", "none"), ("terminal", "batch"), ("split", "group")],
)
@pytest.mark.parametrize("unit", ["trace", "context"])
@pytest.mark.parametrize(
  ("name", "boundary"),
  [
    *(("ppo", boundary) for boundary in returns.BOUNDARIES),
    *((name, "compaction_rl") for name in WITH_CRITIC if name != "ppo"),
  ],
)
def test_options_of_contexts_are_those_of_plain_loops(
  name, boundary, unit, reward, scale
):
  """The advantages of the policy, and the targets of the critic.

  Advantages are divided by the deviation of rollouts in all their contexts.
  """
  is_cut = boundary not in ("outcome", "compaction_rl")
  config = algorithms.make_config(
    name,
    boundary=boundary,
    reward=reward,
    bootstrap_cut=is_cut,
    length_adaptive_unit=unit,
    length_adaptive_alpha=0.4,
    gamma=0.9,
    lam_critic=0.8,
    whiten=False,
    kl_coef=0.0,
    advantage_scale=scale,
  )
  split, traces = _in_contexts(cases.make_case())
  split.final_value += traces.order
  batch = cases.prepared(
    algorithms.get_algorithm(name), config, split, traces=traces
  )
  mask = np.asarray(batch.mask)
  beyond = np.where(split.terminated, 0, split.final_value) * is_cut
  lams = contexts.lambdas(mask, traces.id, 0.4, unit)
  arrays = (split.rewards, mask, split.old_values, traces.id, traces.order)
  fields = {"gamma": 0.9, "boundary": boundary, "reward": reward}
  fields["beyond"] = beyond
  expected, _ = contexts.advantages(*arrays, lams=lams, **fields)
  targets = contexts.advantages(*arrays, lams=[0.8] * len(lams), **fields)[1]
  rollouts = traces.is_last & split.valid
  for row, group in enumerate(split.group_id):
    compared = rollouts & ((scale == "batch") | (split.group_id == group))
    if scale != "none":
      expected[row] /= np.std(split.rewards[compared], ddof=1) + 1e-6
  assert expected[~traces.is_last].any()
  np.testing.assert_allclose(batch.advantages, expected, 1e-4, 1e-6)
  np.testing.assert_allclose(batch.returns, targets, 1e-4, 1e-6)


@pytest.mark.parametrize("name", tiny.each(WITH_CRITIC, ("sao",)))
def test_options_of_contexts_mean_nothing_without_them(name):
  # As many rows as elsewhere, where the same operations have been compiled.
  case = cases.make_case().take(np.repeat(np.arange(len(FIRST)), 2))
  found = []
  for fields in ({}, {"reward": "split", "length_adaptive_unit": "context"}):
    config = algorithms.make_config(name, **fields)
    algorithm = algorithms.get_algorithm(name)
    found.append(cases.prepared(algorithm, config, case, key=jax.random.key(0)))
  for field in ("advantages", "returns"):
    np.testing.assert_array_equal(*(getattr(x, field) for x in found))


@pytest.mark.slow
@pytest.mark.parametrize(
  ("boundary", "pretrained"),
  [
    ("outcome", "outcome"),
    ("chain", "chain"),
    ("bootstrap", "chain"),
    ("compaction_rl", "compaction_rl"),
    ("compaction_rl_bootstrap", "chain"),
  ],
)
def test_a_critic_is_pretrained_on_returns_whatever_it_says(
  boundary, pretrained
):
  config = algorithms.make_config("ppo", boundary=boundary, reward="split")
  config = config.for_pretraining()
  assert config.boundary == pretrained
  assert config.reward == "split"
  split, traces = _in_contexts(cases.make_case())
  algorithm = algorithms.get_algorithm("ppo")
  targets = []
  for scale in (1, 3):
    split.old_values = scale * split.old_values
    batch = cases.prepared(algorithm, config, split, traces=traces)
    targets.append(np.asarray(batch.returns))
  np.testing.assert_allclose(*targets, rtol=1e-4, atol=1e-5)
  assert targets[0].any()


@pytest.mark.parametrize(
  ("field", "message"),
  [
    ("boundary", "'half' is unknown; choose one of outcome, chain"),
    ("reward", "'half' is unknown; choose one of terminal, split"),
    ("length_adaptive_unit", "'half' is unknown; choose one of trace, context"),
  ],
)
def test_options_of_contexts_name_what_there_is(field, message):
  with pytest.raises(ValueError, match=f"{field}={message}"):
    algorithms.make_config("ppo", **{field: "half"})


@pytest.mark.slow
def test_rollouts_weigh_the_same_whatever_their_contexts():
  """The weights of a rollout's tokens add up to those of any other."""
  algorithm = algorithms.get_algorithm("compaction_rl")
  split, traces = _in_contexts(cases.make_case())
  sums = {}
  for weight in ("context", "trace"):
    config = algorithms.make_config("compaction_rl", weight=weight)
    batch = cases.prepared(
      algorithm, config, split, key=jax.random.key(0), traces=traces
    )
    of_rows = (np.asarray(batch.policy_weight) * batch.mask).sum(axis=1)
    np.testing.assert_allclose(of_rows.sum(), batch.mask.sum(), rtol=1e-5)
    of_traces = np.bincount(traces.id, of_rows)
    sums[weight] = [
      x[x > 0] / batch.mask.sum() * (x > 0).sum() for x in (of_rows, of_traces)
    ]
  rows, _ = sums["context"]
  np.testing.assert_allclose(rows, 1, rtol=1e-5)
  rows, rollouts = sums["trace"]
  np.testing.assert_allclose(rollouts, 1, rtol=1e-5)
  assert rows.std() > 0.1


@pytest.mark.slow
@pytest.mark.parametrize("name", WHOLE)
def test_others_would_be_wrong(name):
  """Shows why `settings/compatibility.py` refuses the other algorithms."""
  one, two = _of_one_and_two(name, **WIDE.get(name, {}))
  assert max(np.abs(y - x).max() for x, y in zip(one, two, strict=True)) > 1e-3
