"""A model with experts in the step: balance, kept routing, biases, metrics."""

import dataclasses
import functools
import json
import types

import chex
import jax
import numpy as np
import pytest

from grpo_jax.algorithms import objective
from grpo_jax.step import step
from grpo_jax.training import loop
from tests.experiments import tiny_config
from tests.training import tiny

pytestmark = pytest.mark.slow

E, K, LAYERS = 4, 2, 2


@functools.lru_cache
def moe_policy(num_experts=E, **fields):
  sizes = {"num_layers": LAYERS, "num_kv_heads": 1, "expert_width": 4}
  sizes |= {"num_experts": num_experts, "experts_per_token": K}
  return tiny.tiny_transformer(**sizes, **fields)


def make_phase(fields=None, **options):
  options = {"policy": moe_policy(), "micro_batch_size": 16, **options}
  return tiny.make_phase(fields=fields, **options)


def _prepared(phase, batch=None):
  state = tiny.drawn_state(phase)
  batch = tiny.ragged_batch(phase) if batch is None else batch
  return state, tiny.prepared(phase, state, batch, 0)


def _with_biases(state, biases):
  """The state whose routers have these biases, [layers, E]."""
  frozen = {"router_bias": jax.device_put(biases)}
  policy = {**state.params["policy"], "frozen": frozen}
  return state.with_params(policy=policy)


def test_balance_and_metrics_do_not_depend_on_micro_batches():
  fields = {"balance_coef": 0.5}
  phase = make_phase(fields)
  state, batch = _prepared(phase)
  whole, metrics = tiny.gradient(phase, state, batch, True)
  without, _ = tiny.gradient(make_phase(), state, batch, True)
  router = whole["policy"]["layers"]["mlp"]["router"]["kernel"]
  plain = without["policy"]["layers"]["mlp"]["router"]["kernel"]
  assert np.abs(router - plain).max() > 1e-3
  phase = make_phase(fields, micro_batch_size=2)
  other, again = _prepared(phase)
  np.testing.assert_allclose(
    again.anchor.router_load, batch.anchor.router_load, rtol=1e-6
  )
  gradient, values = tiny.gradient(phase, other, again, True)
  chex.assert_trees_all_close(gradient, whole, rtol=1e-5, atol=1e-7)
  assert values.keys() == metrics.keys()
  for key in metrics:
    np.testing.assert_allclose(
      values[key], metrics[key], 1e-5, 1e-6, err_msg=key
    )


def test_balance_is_the_loss_of_the_whole_batch():
  """E Σ f P over all trained tokens at once, from the model's own outputs."""
  phase = make_phase({"balance_coef": 0.5}, micro_batch_size=4)
  state, batch = _prepared(phase)
  assert batch.anchor.routing is None
  _, metrics = tiny.gradient(phase, state, batch, True)
  _, aux = jax.jit(phase.policy.hidden)(
    state.params["policy"],
    batch.prompts.tokens,
    batch.prompts.mask,
    batch.tokens,
    batch.completion_mask,
    batch.prompt_index,
    None,
  )
  mask = np.asarray(batch.mask)
  assert 0 < mask.sum() < np.asarray(batch.completion_mask).sum()
  probs, ids = (
    np.asarray(x)[mask] for x in aux[:2]
  )  # [tokens, layers, E or k]
  shares = np.stack(
    [np.bincount(ids[:, i].ravel(), minlength=E) for i in range(LAYERS)]
  ) / (K * mask.sum())
  np.testing.assert_allclose(batch.anchor.router_load, shares, rtol=1e-6)
  want = 0.5 * E * (shares * probs.mean(axis=0)).sum(axis=-1).mean()
  np.testing.assert_allclose(metrics["loss/balance"], want, rtol=1e-5)
  np.testing.assert_allclose(
    metrics["router/max_load"], E * shares.max(), rtol=1e-6
  )
  np.testing.assert_allclose(metrics["router/dead"], (shares == 0).mean())
  entropy = -(probs * np.log(probs)).sum(axis=-1).mean()
  np.testing.assert_allclose(metrics["router/entropy"], entropy, rtol=1e-5)


def test_rejected_tokens_do_not_count_in_the_load():
  fields = {"balance_coef": 0.5, "rejection": "token_k1", "rejection_low": 0.9}
  phase = make_phase(fields)
  _, batch = _prepared(phase)
  kept, asked = batch.mask.sum(), tiny.ragged_batch(phase).mask.sum()
  assert 0 < kept < asked
  # A load counts K choices of each token that is trained, and no others.
  counts = np.asarray(batch.anchor.router_load) * K * kept
  np.testing.assert_allclose(counts, np.round(counts), atol=1e-4)
  np.testing.assert_allclose(counts.sum(axis=-1), K * kept, rtol=1e-6)


def test_training_takes_the_recorded_experts_and_the_reference_its_own():
  phase = make_phase(
    {"keep_routing": True, "kl_coef": 0.1, "balance_coef": 0.01}, num_epochs=2
  )
  state = tiny.drawn_state(phase)
  prompts = tiny.make_prompts()

  @jax.jit
  def prepared(state, routing):
    rollout = step.sample_stage(state, prompts, phase=phase)
    rollout = dataclasses.replace(rollout, **routing)
    batch = objective.make_train_batch(
      phase.algorithm,
      phase.config,
      prompts,
      rollout,
      phase.reward.score(state.params, prompts, rollout),
      state.algorithm_state,
    )
    return step.prepare(state, batch, jax.random.key(0), phase=phase)

  recorded = prepared(state, {})
  first = {  # Instead: experts 0 and 1 for every token.
    name: np.broadcast_to(np.arange(K, dtype=np.int32), routing.shape)
    for name, routing in (
      ("routing", recorded.sampler.routing),
      ("prompt_routing", recorded.prompts.routing),
    )
  }
  recorded, forced = jax.device_get((recorded, prepared(state, first)))
  np.testing.assert_array_equal(
    forced.anchor.router_load, np.tile([0.5, 0.5, 0, 0], (LAYERS, 1))
  )
  mask = np.asarray(recorded.mask)
  gap = np.abs(recorded.old_logp - recorded.sampler.logp)[mask]
  assert gap.max() < 1e-5
  assert np.abs(forced.old_logp - recorded.old_logp)[mask].max() > 1e-3
  np.testing.assert_array_equal(forced.reference.logp, recorded.reference.logp)
  # The policy that is differentiated takes them as the anchor does.
  read = jax.jit(phase.losses[0].outputs)
  outputs = [read(state.params, batch) for batch in (recorded, forced)]
  for output, batch in zip(outputs, (recorded, forced), strict=True):
    np.testing.assert_allclose(
      output.logp[mask], batch.old_logp[mask], rtol=0, atol=1e-5
    )


def test_biases_move_against_the_load():
  fields = {"router_bias_step": 0.01}
  phase = make_phase(fields, policy=moe_policy(router_bias=True))
  state = _with_biases(
    tiny.drawn_state(phase), np.zeros((LAYERS, E), np.float32)
  )
  batch = tiny.prepared(phase, state, tiny.ragged_batch(phase), 0)
  load = np.asarray(batch.anchor.router_load)
  assert (load > 1 / E).any()
  after, metrics = tiny.updated(phase, state, batch, 0)
  bias = after.params["policy"]["frozen"]["router_bias"]
  np.testing.assert_allclose(bias, 0.01 * np.sign(1 / E - load), rtol=1e-6)
  assert "loss/balance" not in metrics
  # And they decide: with a large one every token takes that expert.
  high = np.tile(np.float32([0, 0, 0, 2]), (LAYERS, 1))
  state = _with_biases(state, high)
  batch = tiny.prepared(phase, state, tiny.ragged_batch(phase), 0)
  np.testing.assert_allclose(batch.anchor.router_load[:, 3], 1 / K, rtol=1e-6)


def test_layers_whose_experts_a_table_chooses_have_no_biases():
  policy = {"trained": {}, "frozen": {"router_bias": np.zeros((1, 2))}}
  load = np.array([[1.0, 0.0], [0.0, 1.0]])  # The first layer has a table.
  config = types.SimpleNamespace(router_bias_step=0.1)
  found = step._with_biases(policy, load, config)["frozen"]["router_bias"]
  np.testing.assert_allclose(found, [[0.1, -0.1]])


def test_a_run_with_experts_keeps_its_routing_and_logs_its_load(tmp_path):
  config = tiny_config.get_config("grpo")
  config.phases = ("rl",)
  config.rl.steps = 2
  config.rl.num_prompts = 4 * len(jax.devices())
  config.eval.every = config.checkpoint.every = 0
  config.log.samples_every = 0
  config.log.trackers = ()
  config.model.num_experts = E
  config.model.expert_width = 4
  config.algorithm.keep_routing = True
  config.algorithm.balance_coef = 0.01
  loop.train(config, tmp_path)
  rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").open("rb")]
  rows = [row for row in rows if "loss/balance" in row]
  assert len(rows) == 2
  samples = tmp_path / "samples.jsonl"
  assert not samples.exists() or not samples.read_bytes()
  for row in rows:
    assert 1 <= row["router/max_load"] <= E / K
    assert row["sampler_gap/max"] < 1e-4
    assert 0 <= row["router/dead"] <= 1 - K / E
    assert 0 < row["router/entropy"] < np.log(E)
    assert row["loss/balance"] > 0


@pytest.mark.parametrize(
  "fields",
  [{"keep_routing": True}, {"balance_coef": 0.1}, {"router_bias_step": 0.1}],
)
def test_models_without_experts_are_told(fields):
  with pytest.raises(ValueError, match=r"about experts, and the model has non"):
    tiny.make_phase(fields=fields)


def test_biases_that_are_not_there_cannot_move():
  phase = make_phase({"router_bias_step": 0.1})
  state, batch = _prepared(phase)
  advance = functools.partial(step.update, phase=phase)
  with pytest.raises(ValueError, match=r"set config\.model\.router_bias=True"):
    jax.eval_shape(advance, state, batch, jax.random.key(0))
