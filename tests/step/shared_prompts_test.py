"""The update with each prompt run once, and with every row in one piece."""

import dataclasses
import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from grpo_jax.models.policies import lora
from grpo_jax.step import update
from grpo_jax.types import row_arrays, set_fields
from tests.step import router_test
from tests.training import tiny

pytestmark = pytest.mark.slow


@functools.lru_cache
def make_policy(dtype="float64", **fields):
  return tiny.tiny_transformer(
    num_layers=2, dtype=dtype, param_dtype=dtype, **fields
  )


POLICIES = {
  "dense": lambda: make_policy(sliding_window=3),
  "experts": lambda: router_test.moe_policy(
    dtype="float64", param_dtype="float64"
  ),
  "linear": lambda: make_policy(**tiny.LINEAR),
  "adapters": lambda: lora.lora_policy(make_policy(), lora.LoRAConfig(rank=2)),
}


def _prepared(phase):
  """A state, and rows off its policy; 4 prompts of 4 rows each."""
  state = tiny.drawn_state(phase)
  batch = tiny.given_scores(tiny.ragged_batch(phase))
  if phase.policy.num_experts:
    rng = np.random.default_rng(4)
    recorded = {
      name: rng.integers(
        0, router_test.E, (*x.shape, router_test.LAYERS, router_test.K)
      )
      for name, x in (
        ("prompts.routing", batch.prompts.tokens),
        ("sampler.routing", batch.tokens),
      )
    }
    recorded["anchor.router_load"] = rng.uniform(
      size=(router_test.LAYERS, router_test.E)
    ).astype(np.float32)
    batch = set_fields(batch, jax.device_put(recorded))
  return state, batch


def _assert_equal(got, want, tolerance=1e-10):
  assert max(np.abs(x).max() for x in jax.tree.leaves(want[0])) > 1e-3
  chex.assert_trees_all_close(got, want, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(
  ("name", "plans"),
  [
    ("dense", ((1, ()), (8, (1, 3)))),
    ("experts", ((4, (1, 3)),)),
    ("linear", ((2, ()), (8, (1, 3)))),
    ("adapters", ((16, (1, 3)),)),
  ],
)
def test_gradients_are_those_of_rows_in_one_piece(name, plans):
  fields = {"kl_coef": 0.1, "entropy_coef": 0.01}
  if name == "experts":
    fields |= {"balance_coef": 0.1, "keep_routing": True}
  with jax.enable_x64(True):
    make = functools.partial(
      tiny.make_phase, policy=POLICIES[name](), fields=fields
    )
    whole = make(group_size=1, micro_batch_size=16)
    assert not whole.plan.shares_prompts
    state, batch = _prepared(whole)
    want = tiny.gradient(whole, state, batch)
    for micro, lengths in plans:
      phase = make(micro_batch_size=micro, lengths=lengths)
      assert phase.plan.shares_prompts
      _assert_equal(tiny.gradient(phase, state, batch), want)


@pytest.mark.parametrize(
  ("dtype", "micro", "lengths"), [("float32", 2, ()), ("bfloat16", 8, (1, 3))]
)
def test_anchor_pass_has_the_bits_of_the_update(dtype, micro, lengths):
  phase = tiny.make_phase(
    policy=make_policy(dtype),
    micro_batch_size=micro,
    num_epochs=2,
    lengths=lengths,
  )
  assert phase.plan.shares_prompts
  state = tiny.drawn_state(phase)
  batch = tiny.prepared(phase, state, tiny.ragged_batch(phase), 1)
  _, metrics = tiny.gradient(phase, state, batch)
  assert metrics["ratio/max_deviation"].value == 0.0
  # To round-off, it is what rows in one piece give.
  phase = dataclasses.replace(
    phase, plan=dataclasses.replace(phase.plan, group_size=1, lengths=())
  )
  whole = tiny.prepared(phase, state, tiny.ragged_batch(phase), 1)
  tolerance = 1e-5 if dtype == "float32" else 0.02
  gap = np.subtract(whole.old_logp, batch.old_logp)
  gap = np.where(batch.mask, gap, 0)
  assert np.abs(gap).max() < tolerance


def test_a_prompt_costs_once_however_many_rows_it_has():
  """Multiplications per slot: a prompt of 64 slots, 8 completions of 8."""
  policy = make_policy("float32")
  slots, num_rows, num_slots = 64, 8, 8
  counts = []
  for group_size in (1, 8):
    phase = tiny.make_phase(
      policy=policy, group_size=group_size, micro_batch_size=num_rows
    )
    state = jax.eval_shape(lambda phase=phase: tiny.make_state(phase))
    batch = tiny.ragged_batch(phase, num_rows, num_slots)
    batch = set_fields(
      batch,
      {
        "prompts.tokens": jnp.zeros((1, slots), jnp.int32),
        "prompts.mask": jnp.ones((1, slots), bool),
        "prompt_index": jnp.zeros(num_rows, jnp.int32),
        "advantages": jnp.ones(num_rows),
      },
    )
    function = functools.partial(update.gradient, phase.update, phase.losses[0])
    lowered = jax.jit(function).lower(state.params, batch, True)
    counts.append(lowered.cost_analysis()["flops"])
  whole, shared = counts
  # 8 · (64 + 8 − 1) = 568 tokens in one piece, 64 − 1 + 8 · 8 = 127 else.
  assert shared < 0.35 * whole, counts


def test_minibatches_hold_whole_groups():
  """A gradient step on each half; both halves are groups, in some order."""
  with jax.enable_x64(True):
    phase = tiny.make_phase(
      "sft", policy=make_policy(), num_minibatches=2, learning_rate=1e-12
    )
    state = tiny.drawn_state(phase)
    batch = tiny.given_scores(tiny.ragged_batch(phase))
    _, metrics = tiny.updated(phase, state, batch, 1)
    # The policy stands still: the mean over the halves is one of these.
    halves = dataclasses.replace(
      phase, plan=dataclasses.replace(phase.plan, num_minibatches=1)
    )
    gradient = jax.jit(
      functools.partial(update.gradient, halves.update, halves.losses[0])
    )

    def loss(half):
      rows = jax.tree.map(lambda x: np.asarray(x)[half], row_arrays(batch))
      part = set_fields(batch, jax.device_put(rows))
      return gradient(state.params, part, False)[1]["loss"]

    group = np.asarray(batch.group_id)
    losses = {}
    for other in (1, 2, 3):
      first = np.isin(group, (0, other))
      losses[other] = float(loss(first) + loss(~first)) / 2
    assert len({round(x, 6) for x in losses.values()}) == 3
    assert min(abs(metrics["loss"] - x) for x in losses.values()) < 1e-6
