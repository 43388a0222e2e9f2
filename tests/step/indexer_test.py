"""Sparse attention in the step: its loss, kept choices, and learning."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from grpo_jax.settings.phase import OptimizerConfig
from grpo_jax.types import Scored
from tests.training import tiny

PROMPTS = dataclasses.replace(
  tiny.make_prompts(8, slots=4), mask=np.ones((8, 4), bool)
)


def copy_first(prompts, rollout) -> Scored:
  """Reward: the share of slots that hold the first token of the prompt."""
  first = prompts.tokens[rollout.prompt_index, 0][:, None]
  share = ((rollout.tokens == first) & rollout.completion_mask).mean(axis=-1)
  return Scored(
    rewards=share,
    valid=jnp.ones(share.shape, bool),
    correct=share > 0.5,
    components={"share": share},
    weights={"share": jnp.float32(1.0)},
  )


def _indexers(params):
  return {
    jax.tree_util.keystr(path, simple=True, separator="/"): np.asarray(x)
    for path, x in jax.tree_util.tree_leaves_with_path(params["policy"])
    if "indexer" in jax.tree_util.keystr(path)
  }


def _run(fields, num_steps, **options):
  """Indexers before and after some steps, and the metrics of each step."""
  options = {"num_epochs": 2, "micro_batch_size": 16, **options}
  phase = tiny.make_phase(
    policy=tiny.tiny_transformer(**tiny.SPARSE),
    fields=fields,
    score=copy_first,
    **options,
  )
  state = tiny.make_state(phase)
  before, rows = _indexers(state.params), []
  advance = tiny.fused(phase)
  for _ in range(num_steps):
    state, metrics, _ = advance(state, PROMPTS)
    rows.append(jax.device_get(metrics))
  return before, _indexers(state.params), rows


@pytest.mark.slow
def test_a_model_with_trained_indexers_learns_to_copy():
  fields = {"keep_routing": True, "indexer_coef": 0.3}
  before, after, rows = _run(fields, 60, group_size=8, learning_rate=0.02)
  rewards = [float(row["reward/mean"]) for row in rows]
  assert np.mean(rewards[-5:]) > np.mean(rewards[:5]) + 0.3
  assert all(np.any(after[path] != before[path]) for path in before)
  # What was seen when the tokens were drawn is seen again, so that the first
  # ratio is 1; after a gradient step the indexers would choose others.
  for row in rows:
    assert row["sampler_gap/max"] < 1e-3
    assert 0 <= row["indexer/changed"] < 0.5
    assert row["loss/indexer"] >= 0
  assert max(row["indexer/changed"] for row in rows) > 0


@pytest.mark.slow
def test_indexers_without_a_loss_stay_as_they_are():
  optimizer = OptimizerConfig(learning_rate=0.1, weight_decay=0.1)
  before, after, rows = _run({}, 2, phase={"optimizer": optimizer})
  assert len(before) == 10
  for path, x in before.items():
    np.testing.assert_array_equal(after[path], x)
  assert "indexer/changed" not in rows[0]
  assert "loss/indexer" not in rows[0]


def test_models_without_indexers_are_told():
  with pytest.raises(
    ValueError, match=r"indexer_coef is 0.1, and the model ha"
  ):
    tiny.make_phase(fields={"indexer_coef": 0.1})
