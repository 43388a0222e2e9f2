"""Entering phases: what is reset, kept and copied; and what cannot be made."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from grpo_jax.learning import stages
from grpo_jax.training import assembly, problem, sharding
from grpo_jax.training import config as config_lib
from tests.training import tiny

PHASE = config_lib.PhaseConfig()


def _advance(parts, state, steps=2):
  """The state some steps on; its own buffers are given away, as in a run."""
  function = jax.jit(
    functools.partial(stages.fused_step, parts=parts), donate_argnums=0
  )
  for number in range(steps):
    state, _, _ = function(state, tiny.make_prompts(first=4 * number))
  return state


def _enter(state, parts, index=1, **fields):
  phase = dataclasses.replace(PHASE, **fields)
  return assembly.enter_phase(state, parts, phase, index)


def _adam(state):
  (found,) = (
    leaf
    for leaf in jax.tree.leaves(
      state.opt_state.inner_states["policy"],
      is_leaf=lambda x: isinstance(x, optax.ScaleByAdamState),
    )
    if isinstance(leaf, optax.ScaleByAdamState)
  )
  return found


def _schedule_count(state):
  (found,) = (
    leaf
    for leaf in jax.tree.leaves(
      state.opt_state.inner_states["policy"],
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
  parts = tiny.make_parts()
  state = _advance(parts, tiny.make_state(parts))
  assert int(_adam(state).count) == _schedule_count(state) == 2
  entered = _enter(state, parts)
  assert int(_adam(entered).count) == _schedule_count(entered) == 0
  assert not any(x.any() for x in jax.tree.leaves(_adam(entered).mu))
  _assert_equal(entered.params, state.params)
  assert (int(entered.phase), int(entered.phase_step)) == (1, 0)
  assert int(entered.step) == 2


def test_optimizer_carries_its_moments_but_not_its_schedule():
  parts = tiny.make_parts()
  state = _advance(parts, tiny.make_state(parts))
  other = tiny.make_parts("reinforce", learning_rate=0.01, steps=7)
  entered = _enter(state, other, reset_optimizer=False)
  _assert_equal(_adam(entered), _adam(state))
  assert any(x.any() for x in jax.tree.leaves(_adam(entered).mu))
  assert _schedule_count(entered) == 0
  # And the next phase can go on from there.
  after = _advance(other, entered, steps=1)
  assert int(_adam(after).count) == 3
  assert _schedule_count(after) == 1


def test_reference_is_set_or_kept():
  parts = tiny.make_parts(fields={"kl_coef": 0.1})
  first = tiny.make_state(parts)
  original = jax.device_get(first.ref_params)
  _assert_equal(original, jax.device_get(first.params["policy"]))
  state = _advance(parts, first)
  _assert_equal(state.ref_params, original)  # Steps do not move it.
  policy = jax.device_get(state.params["policy"])
  _assert_differ(policy, original)
  _assert_equal(_enter(state, parts, set_reference=False).ref_params, original)
  _assert_equal(_enter(state, parts, set_reference=True).ref_params, policy)


@pytest.mark.slow
def test_reference_and_average_are_copies():
  """A step gives its state away; an alias would be deleted with it."""
  parts = tiny.make_parts(fields={"kl_coef": 0.1}, ema_decay=0.5)
  state = _enter(
    assembly.initial_state(parts.policy, 0), parts, 0, ema_decay=0.5
  )
  buffers = [
    leaf.unsafe_buffer_pointer()
    for tree in (state.params["policy"], state.ref_params, state.ema_params)
    for leaf in jax.tree.leaves(tree)
  ]
  assert len(set(buffers)) == len(buffers) == 6
  # np.array: a view of a buffer would keep it from being given away.
  original = jax.tree.map(np.array, state.ref_params)
  after = _advance(parts, state)
  assert state.ref_params["trained"]["head"].is_deleted()
  _assert_equal(after.ref_params, original)
  _assert_differ(after.ref_params, after.params["policy"])


def test_missing_reference_is_explained():
  parts = tiny.make_parts(fields={"kl_coef": 0.1})
  fresh = assembly.initial_state(parts.policy, 0)
  with pytest.raises(ValueError, match="phase 3: algorithm 'grpo' needs a ref"):
    _enter(fresh, parts, 3, set_reference=False)
  # A phase without a KL drops the reference instead of carrying it along.
  plain = tiny.make_parts()
  assert _enter(tiny.make_state(parts), plain).ref_params is None


def test_average_follows_the_parameters():
  parts = tiny.make_parts(ema_decay=0.75)
  state = _enter(
    assembly.initial_state(parts.policy, 0), parts, 0, ema_decay=0.75
  )
  before = jax.device_get(state.params["policy"]["trained"])
  _assert_equal(state.ema_params, before)
  state = _advance(parts, state, steps=1)
  after = state.params["policy"]["trained"]
  expected = jax.tree.map(lambda a, b: 0.75 * a + 0.25 * b, before, after)
  jax.tree.map(
    functools.partial(np.testing.assert_allclose, rtol=1e-6, atol=1e-7),
    state.ema_params,
    expected,
  )
  # It is what is evaluated, and it ends with its phase.
  params = assembly.evaluation_params(state)
  _assert_equal(params["trained"], state.ema_params)
  assert params["frozen"] == state.params["policy"]["frozen"]
  plain = _enter(state, tiny.make_parts())
  assert plain.ema_params is None
  assert assembly.evaluation_params(plain) is plain.params["policy"]


@pytest.mark.slow
def test_average_of_bfloat16_parameters_moves():
  """By less than half a unit in the last place of a parameter."""
  parts = tiny.make_parts(ema_decay=0.999, learning_rate=1e-2)
  state = assembly.initial_state(parts.policy, 0)
  narrow = jax.tree.map(lambda x: x.astype(jnp.bfloat16), state.params)
  state = dataclasses.replace(state, params=narrow)
  state = _enter(state, parts, 0, ema_decay=0.999)
  before = jax.device_get(state.ema_params)
  after = _advance(parts, state, steps=1)
  for name, average in after.ema_params.items():
    assert average.dtype == jnp.float32
    moved = abs(average - before[name])
    assert 0 < moved.max() < 1e-4
  for leaf in jax.tree.leaves(assembly.evaluation_params(after)):
    assert leaf.dtype == jnp.bfloat16


def test_algorithm_state_belongs_to_its_phase():
  parts = tiny.make_parts("reinforce")
  state = _advance(parts, tiny.make_state(parts))
  assert float(state.algorithm_state["algorithm"]["weight"]) > 0
  entered = _enter(state, parts).algorithm_state
  assert float(entered["algorithm"]["weight"]) == 0
  assert _enter(state, tiny.make_parts()).algorithm_state == {
    "algorithm": {},
    "coefficients": {},
  }


def test_shapes_of_a_phase_are_known_beforehand():
  """What describes a checkpoint is what the phase then holds."""
  parts = tiny.make_parts(fields={"kl_coef": 0.1})
  enter = functools.partial(_enter, parts=parts)
  initial = assembly.initial_state(parts.policy, 0)
  abstract = jax.eval_shape(enter, initial)
  state = _advance(parts, enter(initial), steps=1)
  assert jax.tree.structure(abstract) == jax.tree.structure(state)
  for one, other in zip(
    jax.tree.leaves(abstract), jax.tree.leaves(state), strict=True
  ):
    assert (one.shape, one.dtype) == (other.shape, other.dtype)


def test_seeds_decide_parameters_and_draws():
  policy = tiny.tiny_policy()
  one, same, other = (assembly.initial_state(policy, s) for s in (0, 0, 1))
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


def _rl_parts(config):
  """Parts of the "rl" phase of a ConfigDict, on one device."""
  run = config_lib.resolve(config)
  made = problem.make_problem(run)
  policy = tiny.tiny_policy(made.tokenizer.vocab_size)
  return assembly.make_parts(run, made, policy, "rl", sharding.make_mesh(1))


def test_parts_of_the_phases_are_those_of_the_config():
  run = _run_config(
    num_epochs=2, num_minibatches=4, micro_batch_size=1, logits_chunk_mib=3
  )
  made = problem.make_problem(run)
  policy = tiny.tiny_policy(made.tokenizer.vocab_size)
  mesh = sharding.make_mesh(1)
  rl = assembly.make_parts(run, made, policy, "rl", mesh)
  assert rl.algorithm.name == "dapo"
  assert rl.config == run.algorithm[1]
  assert rl.plan == stages.UpdatePlan(
    2, 4, 1, 0.7, 3 * 2**20, None, group_size=2
  )
  assert rl.score is made.score
  sft = assembly.make_parts(run, made, policy, "sft", mesh)
  assert sft.algorithm.name == "sft"
  assert sft.sample is sft.score is None
  # Given completions were not drawn at the sampling temperature.
  assert sft.plan.temperature == 1.0
  rollout = rl.sample(
    policy.init(jax.random.key(0)), tiny.make_prompts(), jax.random.key(1)
  )
  assert rollout.tokens.shape == (4 * 2, made.max_new_tokens)
  # The schedule is as long as all gradient steps: 100 · 2 · 4.
  run = _run_config(num_epochs=2, num_minibatches=4, steps=100)
  optimizer = dataclasses.replace(
    run.rl.optimizer, schedule="linear", learning_rate=1.0
  )
  run = dataclasses.replace(
    run, rl=dataclasses.replace(run.rl, optimizer=optimizer)
  )
  rl = assembly.make_parts(run, made, policy, "rl", mesh)
  np.testing.assert_allclose(rl.schedule(jnp.int32(200)), 0.75, rtol=1e-6)


def test_rows_that_an_algorithm_couples_are_not_separated():
  config = config_lib.default_config("dpo")
  config.data.name = "copy"
  config.rl.num_prompts = 4
  config.rl.group_size = 4
  config.rl.micro_batch_size = 2
  with pytest.raises(
    ValueError, match=r"'dpo' couples the 4 compl.*of 2 rows.*multiple of 4"
  ):
    _rl_parts(config)
  config.rl.micro_batch_size = 4
  assert _rl_parts(config).plan.micro_batch_size == 4
  # Where no row needs another, a micro-batch may hold any of them.
  config = config_lib.default_config("grpo")
  config.rl.micro_batch_size = 1
  assert _rl_parts(config).plan.micro_batch_size == 1


@pytest.mark.parametrize(
  ("name", "complaint"),
  [
    ("gtpo", r"'gtpo' makes advantages of the tokens of a whole completion"),
    ("dapo", r"overlong_cache=0.2 is a share.*set it to 0"),
    ("dpo", r"'dpo' couples the completions.*without compaction"),
  ],
)
def test_contexts_of_a_rollout_are_not_compared_as_completions(name, complaint):
  config = config_lib.default_config(name)
  config.data.name = "memchain"
  config.rl.num_prompts = 4
  config.rl.group_size = 4
  with pytest.raises(ValueError, match=complaint):
    _rl_parts(config)
  if name == "dapo":
    config.algorithm.overlong_cache = 0.0
  else:
    config.data.task_options.compaction = False
  assert _rl_parts(config).algorithm.name == name
