"""Entering phases: what is reset, kept and copied; and what cannot be made."""

import dataclasses
import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import AbstractDevice, AbstractMesh

from grpo_jax.settings import config as config_lib
from grpo_jax.settings import phase as phase_lib
from grpo_jax.step import micro_batches, step
from grpo_jax.training.phases import build, checkpointed
from grpo_jax.training.phases import policy as policy_lib
from grpo_jax.training.problem import problem
from grpo_jax.training.runtime import sharding
from tests.training import tiny


def _advance(phase, state, steps=2):
  """The state some steps on; its own buffers are given away, as in a run."""
  function = tiny.fused(phase, donate_argnums=0)
  for number in range(steps):
    state, _, _ = function(state, tiny.make_prompts(first=4 * number))
  return state


def _enter(state, phase, index=1):
  return step.enter_phase(state, phase, index)


def _adam(state):
  (found,) = (
    leaf
    for leaf in jax.tree.leaves(
      state.models["policy"].opt_state,
      is_leaf=lambda x: isinstance(x, optax.ScaleByAdamState),
    )
    if isinstance(leaf, optax.ScaleByAdamState)
  )
  return found


def _schedule_count(state):
  (found,) = (
    leaf
    for leaf in jax.tree.leaves(
      state.models["policy"].opt_state,
      is_leaf=lambda x: isinstance(x, optax.ScaleByScheduleState),
    )
    if isinstance(leaf, optax.ScaleByScheduleState)
  )
  return int(found.count)


def _assert_equal(one, other):
  jax.tree.map(np.testing.assert_array_equal, one, other)


def _assert_differ(one, other):
  same = jax.tree.map(lambda a, b: bool(np.array_equal(a, b)), one, other)
  assert not all(jax.tree.leaves(same))


@pytest.mark.slow
def test_optimizer_starts_anew():
  phase = tiny.make_phase()
  state = _advance(phase, tiny.make_state(phase))
  assert int(_adam(state).count) == _schedule_count(state) == 2
  entered = _enter(state, phase)
  assert int(_adam(entered).count) == _schedule_count(entered) == 0
  assert not any(x.any() for x in jax.tree.leaves(_adam(entered).mu))
  _assert_equal(entered.params, state.params)
  assert (int(entered.phase), int(entered.phase_step)) == (1, 0)
  assert int(entered.step) == 2


@pytest.mark.slow
def test_optimizer_carries_its_moments_but_not_its_schedule():
  phase = tiny.make_phase()
  state = _advance(phase, tiny.make_state(phase))
  other = tiny.make_phase(
    "reinforce", learning_rate=0.01, steps=7, phase={"reset_optimizer": False}
  )
  entered = _enter(state, other)
  _assert_equal(_adam(entered), _adam(state))
  assert any(x.any() for x in jax.tree.leaves(_adam(entered).mu))
  assert _schedule_count(entered) == 0
  # And the next phase can go on from there.
  after = _advance(other, entered, steps=1)
  assert int(_adam(after).count) == 3
  assert _schedule_count(after) == 1


def _with_kl(**phase):
  return tiny.make_phase(fields={"kl_coef": 0.1}, phase=phase)


@pytest.mark.slow
def test_reference_is_set_or_kept():
  phase = _with_kl()
  first = tiny.make_state(phase)
  original = jax.device_get(first.params["reference"])
  _assert_equal(original, jax.device_get(first.params["policy"]))
  state = _advance(phase, first)
  _assert_equal(state.params["reference"], original)  # Steps do not move it.
  policy = jax.device_get(state.params["policy"])
  _assert_differ(policy, original)
  for is_set, expected in ((False, original), (True, policy)):
    entered = _enter(state, _with_kl(set_reference=is_set))
    _assert_equal(entered.params["reference"], expected)


@pytest.mark.slow
def test_reference_and_average_are_copies():
  """A step gives its state away; an alias would be deleted with it."""
  phase = _with_kl(ema_decay=0.5)
  state = tiny.make_state(phase)
  policy, reference = state.models["policy"], state.params["reference"]
  buffers = [
    leaf.unsafe_buffer_pointer()
    for tree in (policy.params, reference, policy.average)
    for leaf in jax.tree.leaves(tree)
  ]
  assert len(set(buffers)) == len(buffers) == 6
  # np.array: a view of a buffer would keep it from being given away.
  original = jax.tree.map(np.array, reference)
  after = _advance(phase, state)
  assert reference["trained"]["head"].is_deleted()
  _assert_equal(after.params["reference"], original)
  _assert_differ(after.params["reference"], after.params["policy"])


def test_missing_reference_is_explained():
  phase = _with_kl()
  fresh = policy_lib.initial_state(phase.policy, 0)
  with pytest.raises(
    ValueError, match=r"algorithm 'grpo' needs a ref.*set_reference=True"
  ):
    _enter(fresh, _with_kl(set_reference=False), 3)
  # A phase without a KL drops the reference instead of carrying it along.
  state, plain = tiny.make_state(phase), tiny.make_phase()
  assert "reference" not in _enter(state, plain).models
  # Unless a later one goes on with it.
  plain = dataclasses.replace(plain, keeps=frozenset({"reference"}))
  kept = _enter(state, plain).params["reference"]
  _assert_equal(kept, state.params["reference"])


@pytest.mark.slow
def test_a_phase_between_leaves_the_reference_as_it_was():
  first, last = _with_kl(), _with_kl(set_reference=False)
  between = dataclasses.replace(
    tiny.make_phase(), keeps=frozenset({"reference"})
  )
  state = tiny.make_state(first)
  original = jax.device_get(state.params["reference"])
  state = _advance(between, _enter(state, between, 1), steps=1)
  state = _enter(state, last, 2)
  _assert_equal(state.params["reference"], original)
  _assert_differ(state.params["policy"], original)


@pytest.mark.slow
def test_average_follows_the_parameters():
  phase = tiny.make_phase(phase={"ema_decay": 0.75})
  state = tiny.make_state(phase)
  before = jax.device_get(state.params["policy"]["trained"])
  _assert_equal(state.models["policy"].average, before)
  state = _advance(phase, state, steps=1)
  after = state.params["policy"]["trained"]
  expected = jax.tree.map(lambda a, b: 0.75 * a + 0.25 * b, before, after)
  chex.assert_trees_all_close(
    state.models["policy"].average, expected, rtol=1e-6, atol=1e-7
  )
  # It is what is evaluated, and it ends with its phase.
  params = policy_lib.evaluation_params(state.models["policy"])
  _assert_equal(params["trained"], state.models["policy"].average)
  assert params["frozen"] == state.params["policy"]["frozen"]
  plain = _enter(state, tiny.make_phase()).models["policy"]
  assert plain.average is None
  assert policy_lib.evaluation_params(plain) is plain.params


@pytest.mark.slow
def test_average_of_bfloat16_parameters_moves():
  """By less than half a unit in the last place of a parameter."""
  phase = tiny.make_phase(phase={"ema_decay": 0.999}, learning_rate=1e-2)
  state = policy_lib.initial_state(phase.policy, 0)
  narrow = jax.tree.map(lambda x: x.astype(jnp.bfloat16), state.params)
  state = _enter(state.with_params(**narrow), phase, 0)
  before = jax.device_get(state.models["policy"].average)
  after = _advance(phase, state, steps=1).models["policy"]
  for name, average in after.average.items():
    assert average.dtype == jnp.float32
    moved = abs(average - before[name])
    assert 0 < moved.max() < 1e-4
  for leaf in jax.tree.leaves(policy_lib.evaluation_params(after)):
    assert leaf.dtype == jnp.bfloat16


@pytest.mark.slow
def test_algorithm_state_belongs_to_its_phase():
  phase = tiny.make_phase("reinforce")
  state = _advance(phase, tiny.make_state(phase))
  assert float(state.algorithm_state["algorithm"]["weight"]) > 0
  entered = _enter(state, phase)
  assert float(entered.algorithm_state["algorithm"]["weight"]) == 0
  # And so does the number of its steps.
  assert (int(state.phase_step), int(entered.phase_step)) == (2, 0)
  assert _enter(state, tiny.make_phase()).algorithm_state == {
    "algorithm": {},
    "coefficients": {},
  }


@pytest.mark.slow
def test_shapes_of_a_phase_are_known_beforehand():
  """The description of a checkpoint fits the state that the phase holds."""
  phase = tiny.make_phase(fields={"kl_coef": 0.1})
  enter = functools.partial(_enter, phase=phase)
  initial = policy_lib.initial_state(phase.policy, 0)
  abstract = jax.eval_shape(enter, initial)
  state = _advance(phase, enter(initial), steps=1)
  assert jax.tree.structure(abstract) == jax.tree.structure(state)
  for one, other in zip(
    jax.tree.leaves(abstract), jax.tree.leaves(state), strict=True
  ):
    assert (one.shape, one.dtype) == (other.shape, other.dtype)


def test_seeds_decide_parameters_and_draws():
  policy = tiny.tiny_policy()
  one, same, other = (policy_lib.initial_state(policy, s) for s in (0, 0, 1))
  _assert_equal(one.params, same.params)
  _assert_differ(one.params, other.params)
  assert not np.array_equal(
    jax.random.key_data(one.key), jax.random.key_data(other.key)
  )


def _run_config(**changes):
  config = config_lib.default_config("dapo")
  config.data.name = "copy"
  config.sampling.temperature = 0.7
  config.rl.num_prompts = 4
  config.rl.group_size = 2
  for name, value in changes.items():
    config.rl[name] = value
  return config_lib.resolve(config)


@pytest.mark.slow
def test_parts_of_the_phases_are_those_of_the_config():
  run = _run_config(
    num_epochs=2, num_minibatches=4, micro_batch_size=1, logits_chunk_mib=3
  )
  made = problem.make_problem(run)
  policy = tiny.tiny_policy(made.tokenizer.vocab_size)
  mesh = sharding.make_mesh(1)
  rl = build.make_phase(run, made, policy, "rl", mesh)
  assert rl.algorithm.name == "dapo"
  assert rl.config == run.algorithm[1]
  assert rl.plan == micro_batches.UpdatePlan(
    2, 4, 1, 0.7, 3 * 2**20, group_size=2
  )
  assert rl.reward == made.reward
  sft = build.make_phase(run, made, policy, "sft", mesh)
  assert sft.algorithm.name == "sft"
  assert sft.sampler is sft.reward is None
  # Given completions were not drawn at the sampling temperature.
  assert sft.plan.temperature == 1.0
  rollout = rl.sampler.sample(
    {"policy": policy.init(jax.random.key(0))},
    tiny.make_prompts(),
    jax.random.key(1),
  )
  assert rollout.tokens.shape == (4 * 2, made.max_new_tokens)
  # The schedule is as long as all gradient steps: 100 · 2 · 4.
  run = _run_config(num_epochs=2, num_minibatches=4, steps=100)
  optimizer = dataclasses.replace(
    run.section("rl").optimizer, schedule="linear", learning_rate=1.0
  )
  run = run.with_section("rl", optimizer=optimizer)
  rl = build.make_phase(run, made, policy, "rl", mesh)
  rate = rl.models["policy"].schedule(jnp.int32(200))
  np.testing.assert_allclose(rate, 0.75, rtol=1e-6)


def test_members_that_a_later_phase_goes_on_with_are_kept():
  """A supervised phase between two of a critic does not lose it."""
  config = config_lib.default_config("ppo")
  config.data.name = "copy"
  config.phases = ("value", "sft", "rl")
  run = config_lib.resolve(config)
  made = problem.make_problem(run)
  policy = tiny.tiny_policy(made.tokenizer.vocab_size)
  found = checkpointed.make_phases(run, made, policy, sharding.make_mesh(1))
  start = checkpointed.abstract_start(policy, 0)
  states = [
    checkpointed.abstract_state(found[: index + 1], start) for index in range(3)
  ]
  value, sft, rl = (state.models for state in states)
  assert "critic" not in found[1].phase.models
  assert sft["critic"] == value["critic"]
  assert sft["critic"].opt_state is not None
  assert rl["critic"].params == value["critic"].params
  # Where no phase follows that has one, it goes.
  run = dataclasses.replace(run, phases=("value", "sft"))
  found = checkpointed.make_phases(run, made, policy, sharding.make_mesh(1))
  assert "critic" not in checkpointed.abstract_state(found, start).models


def test_rows_that_an_algorithm_couples_are_not_separated():
  config = config_lib.default_config("dpo")
  config.data.name = "copy"
  config.rl.num_prompts = 4
  config.rl.group_size = 4
  config.rl.micro_batch_size = 2
  assert tiny.phase_of(config).plan.micro_batch_size == 4
  # Where no row needs another, a micro-batch may hold any of them.
  config = config_lib.default_config("grpo")
  config.rl.micro_batch_size = 1
  assert tiny.phase_of(config).plan.micro_batch_size == 1


@pytest.mark.parametrize(
  ("sizes", "devices", "micro", "parts"),
  [
    # Prompts, completions, minibatches and rows of a micro-batch.
    ((128, 8, 8, 8), 1, 8, 1),
    ((128, 8, 8, 8), 8, 8, 1),
    ((128, 8, 8, 8), 16, 16, 1),  # One row of each device.
    ((128, 8, 8, 8), 64, 64, 4),  # Two rows of a group on a device.
    ((128, 8, 8, 128), 16, 128, 1),
    ((128, 8, 8, None), 16, 128, 1),
    ((48, 4, 4, 24), 16, 48, 4),  # Of 3 rows of a device all or one.
    ((16, 6, 1, 24), 8, 24, 1),
  ],
)
def test_devices_have_equal_parts_of_every_micro_batch(
  sizes, devices, micro, parts
):
  num_prompts, group_size, num_minibatches, asked = sizes
  phase = phase_lib.RlConfig(
    num_prompts=num_prompts,
    group_size=group_size,
    num_minibatches=num_minibatches,
    micro_batch_size=asked,
  )
  mesh = AbstractMesh(
    (1, devices, 1, 1),
    sharding.AXES,
    abstract_device=AbstractDevice("TPU", None, "tpu"),
  )
  plan = build.update_plan(phase, 8, 8, mesh)
  assert plan.num_shards == devices
  assert (plan.micro_batch_size, plan.group_parts) == (micro, parts)
  said = build.update_path("rl", phase, plan)
  assert f"each of {devices} devices: {micro // devices}." in said
  is_changed = asked not in (None, micro)
  assert (f"micro_batch_size={asked} is rounded up" in said) == is_changed
  assert ("each of these runs the prompt" in said) == (parts > 1)
