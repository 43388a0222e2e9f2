"""Metrics of a rollout that is small enough to count by hand."""

import dataclasses
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from grpo_jax.step import metrics, update
from grpo_jax.types import (
  Maximum,
  PromptFields,
  Rollout,
  Scored,
  TrainBatch,
  Weighted,
)

NAN = float("nan")

# Groups 2, 0 and 1 of 4, in this order; group 3 does not occur. Row 5 was not
# scored; rows 0 and 4 were cut off by the budget of 4 tokens.
LENGTHS = np.array([4, 2, 1, 1, 4, 3])
MASK = np.arange(4) < LENGTHS[:, None]
TOKENS = np.array(
  [
    [5, 5, 5, 5],
    [5, 1, 0, 0],
    [1, 0, 0, 0],
    [1, 9, 9, 9],  # The same as the row before: the rest does not exist.
    [5, 6, 5, 6],
    [6, 5, 1, 0],
  ],
  np.int32,
)
ROLLOUT = Rollout(
  tokens=TOKENS,
  completion_mask=MASK,
  behavior_logp=np.zeros((6, 4), np.float32),
  sampler_logp=np.zeros((6, 4), np.float32),
  entropy=np.where(MASK, np.arange(6, dtype=np.float32)[:, None], NAN),
  terminated=np.array([False, True, True, True, False, True]),
  prompt_index=np.array([1, 1, 0, 0, 2, 2], np.int32),
  group_id=np.array([2, 2, 0, 0, 1, 1], np.int32),
  num_groups=4,
)
SCORED = Scored(
  rewards=np.array([1.0, 0.0, 0.0, 0.0, 2.0, 0.0], np.float32),
  valid=np.array([True, True, True, True, True, False]),
  correct=np.array([True, False, False, False, True, True]),
  components={
    "a": np.array([1.0, 0.0, NAN, 0.0, 2.0, 1e16], np.float32),
    "never": np.full(6, NAN, np.float32),
  },
  weights={"a": np.float32(1), "never": np.float32(1)},
)


@pytest.mark.slow
def test_blends_are_counted_among_the_tokens_that_exist():
  """Two of 15 tokens are blends, one of them with its own token as anchor."""
  ids = np.repeat(TOKENS[..., None], 2, axis=2)
  weights = np.zeros(ids.shape, np.float32)
  weights[..., 0] = 1
  for row, t, blend, share in (
    (0, 1, [5, 8], 0.75),
    (4, 0, [2, 6], 0.25),
    (3, 2, [4, 4], 0.5),  # After the end.
  ):
    ids[row, t], weights[row, t] = blend, [share, 1 - share]
  said = _metrics(
    dataclasses.replace(
      ROLLOUT, mix_ids=jnp.asarray(ids), mix_weights=jnp.asarray(weights)
    )
  )
  np.testing.assert_allclose(said["mix/share"], 2 / 15, rtol=1e-6)
  assert said["mix/anchor"] == 0.5
  assert said["mix/other"] == 0.5


def _metrics(rollout=ROLLOUT, scored=SCORED, **fields):
  mask = rollout.completion_mask & scored.valid[:, None]
  batch = TrainBatch(
    prompts=PromptFields(
      tokens=jnp.zeros((3, 1), jnp.int32), mask=jnp.ones((3, 1), bool)
    ),
    prompt_index=rollout.prompt_index,
    group_id=rollout.group_id,
    tokens=rollout.tokens,
    completion_mask=rollout.completion_mask,
    rewards=scored.rewards,
    valid=scored.valid,
    terminated=rollout.terminated,
    correct=scored.correct,
    **{"mask": mask, "advantages": jnp.zeros(6), **fields},
  )
  return jax.device_get(
    jax.jit(metrics.rollout_metrics)(rollout, scored, batch)
  )


def test_known_rollout():
  found = _metrics(advantages=jnp.array([2.0, -2.0, 0, 0, 0, 99.0]))
  expected = {
    # Of the five scored rows: 1, 0, 0, 0, 2.
    "reward/mean": 3 / 5,
    "reward/std": np.sqrt(5 / 5 - (3 / 5) ** 2),
    "accuracy": 2 / 5,
    "unscored": 1,
    "unscored/too_large": 1,
    # Three groups have scores: 2 is live, 0 all wrong, 1 all right.
    "dead_groups": 2 / 3,
    "dead_groups/all_right": 1 / 3,
    "dead_groups/all_wrong": 1 / 3,
    "length/mean": 15 / 6,
    "length/min": 1,
    "length/max": 4,
    "length/terminated": (2 + 1 + 1 + 3) / 4,
    "length/correct": (4 + 4) / 2,
    "length/incorrect": (2 + 1 + 1) / 3,
    "truncated": 2 / 6,
    # Row number per token: (4·0 + 2·1 + 2 + 3 + 4·4 + 3·5) / 15.
    "entropy/mean": 38 / 15,
    "entropy/correct": (4 * 0 + 4 * 4) / 8,
    "entropy/incorrect": (2 * 1 + 2 + 3) / 4,
    # 2 + 1 + 2 over three groups.
    "distinct_completions": 5 / 3,
    "completions/generated": 6,
    "tokens/generated": 15,
    "tokens/trained": 12,
    # 2, −2, 0, 0, 0 over the rows that are trained.
    "advantages/std": np.sqrt(8 / 5),
    "reward/a": (1 + 0 + 0 + 2) / 4,
    "applicable/a": 4 / 6,
    "reward_range/a": 2,
    "reward_correlation/a": 1,  # It is the reward where it applies.
    "reward_correlation/never": NAN,
    "reward/never": NAN,
    "reward_range/never": NAN,
    "applicable/never": 0,
  }
  assert found.keys() == expected.keys()
  for name, value in expected.items():
    np.testing.assert_allclose(found[name], value, rtol=1e-6, err_msg=name)
    assert found[name].dtype == np.float32
    assert found[name].shape == ()


@pytest.mark.slow
def test_means_over_nobody_are_absent_and_not_zero():
  nobody = Scored(
    rewards=jnp.zeros(6),
    valid=jnp.zeros(6, bool),
    correct=jnp.zeros(6, bool),
    components={"a": jnp.zeros(6)},
    weights={"a": jnp.float32(1.0)},
  )
  found = _metrics(scored=nobody)
  assert found["unscored"] == 6
  assert found["tokens/trained"] == 0
  absent = {name for name, value in found.items() if np.isnan(value)}
  assert absent == {
    *("reward/mean", "reward/std", "reward/a", "accuracy", "advantages/std"),
    "reward_range/a",
    "reward_correlation/a",
    *("dead_groups", "dead_groups/all_right", "dead_groups/all_wrong"),
    *("length/correct", "length/incorrect"),
    *("entropy/correct", "entropy/incorrect"),
  }
  # What is known without a verifier stays.
  assert found["length/mean"] == 15 / 6
  assert found["applicable/a"] == 0


@pytest.mark.slow
def test_a_component_against_the_reward_has_a_negative_correlation():
  rewards = jnp.array([1.0, 0.0, 0.5, 0.0, 2.0, 0.0])
  components = {
    "against": 3 - rewards,
    "penalty": 3 - rewards,  # Its weight is negative, so it is with it.
    "constant": jnp.ones(6),
    "loose": jnp.array([0.0, 1.0, 0.0, 3.0, 1.0, 9.0]),
  }
  scored = Scored(
    rewards=rewards,
    valid=SCORED.valid,
    correct=rewards > 1,
    components=components,
    weights={
      name: jnp.float32(-1.0 if name == "penalty" else 1.0)
      for name in components
    },
  )
  found = _metrics(scored=scored)
  assert found["reward_correlation/against"] == -1
  assert found["reward_correlation/penalty"] == 1
  assert np.isnan(found["reward_correlation/constant"])
  np.testing.assert_allclose(
    found["reward_correlation/loose"],
    np.corrcoef(rewards[:5], components["loose"][:5])[0, 1],
    rtol=1e-5,
  )


@pytest.mark.parametrize("size", [1e-13, 1.0, 1e12])
def test_a_correlation_is_that_of_numbers_of_any_size(size):
  x = np.array([1.0, 2.0, 4.0, 3.0], np.float32)
  y = np.array([2.0, 1.0, 3.0, 9.0], np.float32)
  found = metrics.correlation(
    jnp.asarray(size * x, jnp.float32),
    jnp.asarray(size * y, jnp.float32),
    jnp.ones(4, bool),
  )
  np.testing.assert_allclose(found, np.corrcoef(x, y)[0, 1], rtol=1e-5)


def test_an_update_without_trained_tokens_has_no_means():
  found = {
    **{"loss": 0.0, "loss/kl": 0.0, "gradient_norm": 0.0, "param_norm": 3.0},
    **{"value/loss": 0.0, "value/learning_rate": 0.1, "learning_rate": 0.1},
    **{"kl": metrics.Mean(jnp.float32(2)), "gap": Maximum(jnp.float32(3))},
  }
  nobody = metrics.of_trained(found, jnp.zeros((2, 3), bool))
  assert {name for name, x in nobody.items() if jnp.isnan(x)} == {"kl", "gap"}
  plain = metrics.of_trained(found, jnp.ones((2, 3), bool))
  assert plain == {**found, "kl": 2, "gap": 3}


def test_the_type_of_a_metric_and_not_its_name_says_how_it_is_reduced():
  x = jnp.array([1.0, 2.0, 6.0])
  found = {"max": x, "max_kl": metrics.Mean(x), "kl": Maximum(x)}
  reduced = {"max": 3, "max_kl": metrics.Mean(3), "kl": Maximum(6)}
  assert metrics.of_steps(found) == reduced
  # The second step had no tokens, and says nothing about any.
  some = metrics.of_steps(found, jnp.array([True, False, True]))
  assert some == reduced | {"max_kl": metrics.Mean(3.5)}


def test_means_over_nothing_are_neither_averaged_nor_shown():
  """A minibatch with trained tokens may have no pair: no mean over pairs."""
  total, weight = jnp.array([0.0, 3.0]), jnp.array([0.0, 4.0])
  sums = types.SimpleNamespace(metrics={"pairs": Weighted(total, weight)})
  of_steps = update._of_tokens(sums, lambda x: x.total / (x.weight + 1e-9))
  trained = jnp.ones(2, bool)
  for steps, expected in ((slice(None), 0.75), (slice(1), NAN)):
    history = {"pairs": metrics.Mean(*(x[steps] for x in of_steps["pairs"]))}
    reduced = metrics.of_steps(history, trained[steps])
    found = metrics.of_trained(reduced, jnp.ones((2, 3), bool))["pairs"]
    np.testing.assert_allclose(found, expected)


@pytest.mark.slow
def test_advantages_per_token_are_averaged_by_row_first():
  advantages = jnp.array([2.0, -2.0, 0, 0, 0, 99.0])
  expected = _metrics(advantages=advantages)["advantages/std"]
  tokens = jnp.where(MASK, advantages[:, None], 1e9)
  np.testing.assert_allclose(
    _metrics(advantages=tokens)["advantages/std"], expected, rtol=1e-6
  )


def test_quadrants_are_shares_of_what_is_known():
  values = jnp.array([1.0, 0.0, NAN, 0.6, 0.4, 1.0])  # Row 5 is unscored.
  scored = dataclasses.replace(SCORED, components={"follows": values})
  found = metrics.quadrants(ROLLOUT, scored, "follows")
  expected = {
    "consistent_right": 1 / 4,  # Row 0.
    "inconsistent_right": 1 / 4,  # Row 4.
    "consistent_wrong": 1 / 4,  # Row 3.
    "inconsistent_wrong": 1 / 4,  # Row 1.
    "inconsistent": 1 / 2,
  }
  assert found == {f"quadrants/{k}": v for k, v in expected.items()}
  nobody = dataclasses.replace(SCORED, components={"follows": values * NAN})
  found = metrics.quadrants(ROLLOUT, nobody, "follows")
  assert np.isnan(list(found.values())).all()
