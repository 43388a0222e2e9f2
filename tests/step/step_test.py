"""The step: exact gradients, exact ratio, one program, and it learns."""

import dataclasses
import functools
import re

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from grpo_jax import algorithms
from grpo_jax.algorithms import options
from grpo_jax.ops import aggregation, selection, surrogates
from grpo_jax.step import step
from grpo_jax.training.runtime import checkpoints
from grpo_jax.types import Algorithm, row_arrays, set_fields
from tests.training import tiny

HOST_TRAFFIC = re.compile(
  r"callback|infeed|outfeed|\bsend\b|\brecv\b|host_transfer", re.IGNORECASE
)
slow = functools.partial(pytest.param, marks=pytest.mark.slow)


_fused = functools.partial(tiny.fused, donate_argnums=0)


# Of every algorithm, on arrays: `tests/algorithms/contract_test.py`.
@pytest.mark.parametrize(
  "name", tiny.each(("grpo", "gspo", "otb", "opd_topk", "ppo"), fast=("grpo",))
)
def test_gradients_do_not_depend_on_micro_batches(name):
  def phase_of(size, lengths=()):
    return tiny.make_phase(
      name,
      fields={"kl_coef": 0.1, "entropy_coef": 0.01},
      micro_batch_size=size,
      lengths=lengths,
    )

  # Groups have four rows; some objectives need them whole.
  coupled = algorithms.get_algorithm(name).couples_group
  state, batch = tiny.off_policy(phase_of(16))
  whole, metrics = tiny.gradient(phase_of(16), state, batch)
  assert max(np.abs(x).max() for x in jax.tree.leaves(whole)) > 1e-3
  for size, lengths in ((4 if coupled else 1, ()), (4, (1, 2))):
    phase = phase_of(size, lengths)
    gradient, other = tiny.gradient(phase, state, batch)
    chex.assert_trees_all_close(gradient, whole, rtol=1e-5, atol=1e-7)
    assert other.keys() == metrics.keys()
    for key in metrics:
      np.testing.assert_allclose(
        other[key], metrics[key], 1e-5, 1e-6, err_msg=key
      )


@pytest.mark.slow
def test_gradients_of_bfloat16_parameters_add_up_in_float32():
  phase = tiny.make_phase("dr_grpo", micro_batch_size=1)
  state, batch = tiny.off_policy(phase)
  narrow = jax.tree.map(lambda x: x.astype(jnp.bfloat16), state.params)
  state = state.with_params(**narrow)
  rows = jax.tree.map(
    lambda x: jnp.tile(x, (64, *[1] * (x.ndim - 1))), row_arrays(batch)
  )
  # 64 times the rows at 1/64 of the weight, exact in binary. In bfloat16 the
  # sum of 64 equal terms is a percent off.
  many = set_fields(batch, rows)
  once, _ = tiny.gradient(phase, state, batch)
  often, _ = tiny.gradient(phase, state, many)
  for name, leaf in often["policy"].items():
    assert leaf.dtype == jnp.float32
    scale = abs(leaf).max()
    np.testing.assert_allclose(leaf, once["policy"][name], atol=1e-5 * scale)


@pytest.mark.parametrize(
  ("fields", "micro", "gap"),
  [
    ({"num_layers": 1}, 2, (0, 1e-4)),
    slow({}, 16, (0, 1e-4)),
    # The sampler reads states token by token, the update reads chunks.
    slow(tiny.LINEAR, 4, (0, 1e-4)),
    slow({"cache_dtype": "bfloat16"}, 16, (1e-5, 0.02)),
    slow({"dtype": "bfloat16"}, 2, (1e-5, 0.5)),
    slow({"dtype": "bfloat16", "cache_dtype": "int8"}, 2, (1e-5, 0.5)),
  ],
)
def test_first_update_is_on_policy_in_every_bit(fields, micro, gap):
  """A transformer, sampled and updated in one program: the ratio is 1.0."""
  policy = tiny.tiny_transformer(
    **{"width": 16, "num_layers": 2, "mlp_width": 32} | fields
  )
  phase = tiny.make_phase(policy=policy, micro_batch_size=micro)
  state = tiny.drawn_state(phase, spread=0.2)
  prompts = tiny.make_prompts()
  before = jax.device_get(state.params)
  after, metrics, _ = _fused(phase)(state, prompts)
  assert metrics["ratio/mean"] == 1.0
  assert metrics["ratio/max"] == 1.0
  assert metrics["ratio/max_deviation"] == 0.0
  assert metrics["clip_fraction"] == 0.0
  # Decoding rounds otherwise, and a cache of its own dtype does so again.
  assert gap[0] <= metrics["sampler_gap/max"] < gap[1]
  moved = jax.tree.map(
    lambda a, b: np.abs(a - b).max(), before, jax.device_get(after.params)
  )
  assert max(jax.tree.leaves(moved)) > 0


@pytest.mark.slow
@pytest.mark.parametrize("micro", [2, 4, 8])
def test_anchor_pass_has_the_bits_of_the_update(micro):
  """With several updates the anchor is computed at the update's shapes."""
  phase = tiny.make_phase(micro_batch_size=micro, num_epochs=2)
  state = tiny.make_state(phase)
  batch = tiny.prepared(phase, state, tiny.ragged_batch(phase), 1)
  _, metrics = tiny.gradient(phase, state, batch)
  assert metrics["ratio/max_deviation"].value == 0.0
  # And it is needed: after an update the ratio is off 1 and tokens clip.
  state, metrics = tiny.updated(phase, state, batch, 0)
  assert metrics["ratio/max_deviation"] > 0.01


@pytest.mark.slow
def test_minibatches_visit_every_row_once_per_epoch():
  """With plain gradient steps of a linear loss, epochs × rows add up."""
  counts = []
  for epochs, minibatches in ((1, 1), (1, 4), (2, 2)):
    phase = tiny.make_phase(
      "sft", num_epochs=epochs, num_minibatches=minibatches, learning_rate=1e-9
    )
    state, batch = tiny.off_policy(phase)
    state, metrics = tiny.updated(phase, state, batch, 0)
    # The policy stands still, so the row-weighted mean over minibatches is
    # close to the loss of the whole batch; the optimizer counts the steps.
    adam = state.models["policy"].opt_state[1][0]
    counts.append(int(adam.count))
    assert np.isfinite(metrics["loss"])
  assert counts == [1, 4, 4]


@pytest.mark.slow
def test_one_compilation_over_varying_lengths():
  traces = []

  def score(prompts, rollout):
    traces.append(1)
    return tiny.count_token(prompts, rollout)

  phase = tiny.make_phase(score=score, max_new_tokens=6)
  advance, state = _fused(phase), tiny.make_state(phase)
  lengths = set()
  for i in range(6):
    state, metrics, _ = advance(state, tiny.make_prompts(first=4 * i))
    lengths.add(float(metrics["length/mean"]))
  assert len(lengths) > 1
  assert len(traces) == 1
  assert advance._cache_size() == 1


def _traced(phase):
  return _fused(phase).trace(tiny.make_state(phase), tiny.make_prompts())


@functools.cache
def _compiled():
  """The trace and the compiled text of the plain step."""
  traced = _traced(tiny.make_phase())
  return traced, traced.lower().compile().as_text()


def test_no_host_traffic_in_the_program():
  traced, text = _compiled()
  assert not HOST_TRAFFIC.search(str(traced.jaxpr))
  assert not HOST_TRAFFIC.search(text)

  def asked(x):
    shape = jax.ShapeDtypeStruct(x.shape, x.dtype)
    return jax.pure_callback(np.asarray, shape, x)

  def leaky(prompts, rollout):
    scored = tiny.count_token(prompts, rollout)
    return dataclasses.replace(scored, rewards=asked(scored.rewards))

  # The search finds traffic in either text. A callback alone compiles at once.
  traced = _traced(tiny.make_phase(score=leaky))
  assert HOST_TRAFFIC.search(str(traced.jaxpr))
  alone = jax.jit(asked).lower(jnp.zeros(2)).compile()
  assert HOST_TRAFFIC.search(alone.as_text())


def test_state_is_donated():
  _, text = _compiled()
  header = text.split("\n", 1)[0]
  # Every leaf of the state that the step hands on is written in place.
  aliases = header.count("may-alias") + header.count("must-alias")
  leaves = len(jax.tree.leaves(tiny.make_state(tiny.make_phase())))
  assert aliases >= leaves - 1, header  # The key is read only.


@pytest.mark.slow
def test_no_parameter_or_moment_is_copied_whole():
  """The memory of the state is that of one state, and not of two."""
  policy = tiny.tiny_transformer(
    width=24, num_layers=3, num_kv_heads=2, mlp_width=72
  )
  phase = tiny.make_phase(policy=policy)
  state = jax.eval_shape(functools.partial(tiny.make_state, phase))
  lowered = _fused(phase).lower(state, tiny.make_prompts())
  compiled = lowered.compile()
  size = sum(
    x.size * x.dtype.itemsize
    for x in jax.tree.leaves(state)
    if not jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key)
  )
  assert compiled.memory_analysis().alias_size_in_bytes >= size
  copies = re.findall(r"= f32\[3,24,72\]\S* copy\((\S+)\)", compiled.as_text())
  # Only of zeros, to which gradients are added.
  assert all("broadcast" in operand for operand in copies), copies


@pytest.mark.slow
def test_draws_differ_by_step_prompt_and_sample():
  phase = tiny.make_phase(group_size=8, max_new_tokens=6)
  state = tiny.make_state(phase)
  same = tiny.make_prompts(2)
  same = dataclasses.replace(
    same,
    tokens=jnp.broadcast_to(same.tokens[1], same.tokens.shape),
    mask=jnp.broadcast_to(same.mask[1], same.mask.shape),
  )
  sample = jax.jit(functools.partial(step.sample_stage, phase=phase))
  rows = [
    tuple(row)
    for number in range(3)
    for row in np.asarray(
      sample(dataclasses.replace(state, step=jnp.int32(number)), same).tokens
    )
  ]
  assert len(set(rows)) > 0.8 * len(rows)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ScaledConfig(options.CommonConfig):
  decay: float = 0.5


def _scaled_loss(config, policy, batch):
  surrogate = surrogates.reinforce(policy.logp, batch.advantages)
  return -jnp.exp(policy.trainable["scale"]) * surrogate


# Ten lines: one trainable scalar, one running state.
SCALED = Algorithm(
  name="scaled",
  config_class=ScaledConfig,
  advantages=lambda config, batch: batch.rewards - batch.state["baseline"],
  policy_loss=_scaled_loss,
  aggregate=aggregation.over_tokens,
  init=lambda config: (
    {"scale": jnp.zeros(())},
    {"baseline": jnp.zeros(()), "past": selection.empty_memory(20)},
  ),
  update_state=lambda config, state, metrics, batch: {
    "baseline": config.decay * state["baseline"]
    + (1 - config.decay) * metrics["reward/mean"],
    "past": selection.remember(state["past"], batch.rewards, batch.valid),
  },
)


@pytest.mark.slow
def test_trainable_scalar_and_state_train_and_resume(tmp_path):
  phase = tiny.make_phase(SCALED)
  advance, state = _fused(phase), tiny.make_state(phase)
  saved = checkpoints.Checkpoints(tmp_path / "saved", keep=2)
  for i in range(3):
    state, _, _ = advance(state, tiny.make_prompts(first=4 * i))
  saved.save(3, state, {"phase": 0})
  saved.wait()
  # A copy, because the next step donates.
  abstract = jax.eval_shape(lambda: tiny.make_state(phase))
  for i in range(3, 6):
    state, _, _ = advance(state, tiny.make_prompts(first=4 * i))
  resumed, _, _ = saved.restore(abstract)
  assert resumed.params["algorithm"]["trained"]["scalars"]["scale"] != 0
  assert resumed.algorithm_state["algorithm"]["baseline"] != 0
  assert resumed.algorithm_state["algorithm"]["past"].num_seen == 3 * 16
  for i in range(3, 6):
    resumed, _, _ = advance(resumed, tiny.make_prompts(first=4 * i))
  for one, other in zip(
    jax.tree.leaves(state), jax.tree.leaves(resumed), strict=True
  ):
    if jax.dtypes.issubdtype(one.dtype, jax.dtypes.prng_key):
      one, other = jax.random.key_data(one), jax.random.key_data(other)
    np.testing.assert_array_equal(one, other)
  saved.close()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["reinforce", "grpo"])
def test_a_step_without_scored_rows_learns_and_says_nothing(name):
  def nobody(prompts, rollout):
    scored = tiny.count_token(prompts, rollout)
    return dataclasses.replace(scored, valid=scored.valid & False)

  fields = {"kl_coef": 0.1, "kl_target": 0.5}
  phase = tiny.make_phase(name, fields=fields, score=nobody)
  state = tiny.make_state(phase)
  # As after a step with rewards.
  before = jax.tree.map(lambda x: x + 0.25, state.algorithm_state)
  state = dataclasses.replace(state, algorithm_state=before)
  before = jax.device_get(before)
  state, metrics, _ = _fused(phase)(state, tiny.make_prompts())
  for absent in ("reward/mean", "accuracy", "kl/reference", "ratio/mean"):
    assert np.isnan(metrics.get(absent, np.nan)), absent
  # The run goes on: the check for losses that are not finite finds none,
  assert metrics["loss"] == metrics["gradient_norm"] == 0
  # and neither a coefficient nor the baseline, their quotient, has moved.
  after = jax.device_get(state.algorithm_state)
  assert after["coefficients"] == before["coefficients"]
  if name == "reinforce":
    for of_state in (before["algorithm"], after["algorithm"]):
      assert of_state["reward_sum"] == of_state["weight"] != 0
