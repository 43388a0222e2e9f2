"""Schedules, decay and clipping by hand; rules against NumPy; rounding."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from grpo_jax.models import architecture, transformer
from grpo_jax.settings import phase
from grpo_jax.step import step as step_lib
from grpo_jax.training.phases import optimizers
from tests.training import tiny


def _config(**fields):
  return phase.OptimizerConfig(**fields)


@pytest.mark.parametrize(
  ("fields", "num_updates", "expected"),
  [
    ({}, 5, {0: 1.0, 4: 1.0, 99: 1.0}),
    # Warm-up: the first step already moves, the fourth is at the peak.
    (
      {"warmup_steps": 4},
      10,
      {0: 0.25, 1: 0.5, 2: 0.75, 3: 1.0, 4: 1.0, 9: 1.0},
    ),
    ({"warmup_steps": 1}, 10, {0: 1.0, 1: 1.0}),
    # Six steps from 1 to 0.1 after it: 0.15 a step.
    (
      {"schedule": "linear", "warmup_steps": 4, "final_fraction": 0.1},
      10,
      {3: 1.0, 4: 1.0, 5: 0.85, 9: 0.25, 10: 0.1, 99: 0.1},
    ),
    # Halfway down a cosine to 0.2: 0.2 + 0.8 / 2.
    (
      {"schedule": "cosine", "final_fraction": 0.2},
      8,
      {0: 1.0, 4: 0.6, 8: 0.2, 99: 0.2},
    ),
    # More warm-up than steps: it never comes to the decay.
    ({"schedule": "linear", "warmup_steps": 20}, 10, {9: 0.5, 10: 0.55}),
  ],
)
def test_schedule_by_hand(fields, num_updates, expected):
  for peak in (1.0, 3e-4):
    rate = optimizers.schedule(
      _config(learning_rate=peak, **fields), num_updates
    )
    for step, fraction in expected.items():
      np.testing.assert_allclose(rate(step), peak * fraction, rtol=1e-6)


def _transformer(**fields):
  sizes = {
    "vocab_size": 5,
    "width": 8,
    "num_layers": 2,
    "num_heads": 2,
    "num_kv_heads": 1,
    "mlp_width": 8,
    "qk_norm": "head",
    "qkv_bias": True,
    "tied_embeddings": False,
  }
  return transformer.transformer_policy(
    architecture.TransformerConfig(**sizes | fields)
  )


@functools.cache
def _transformer_params():
  params = jax.jit(_transformer().init)(jax.random.key(0))["trained"]
  return jax.device_get(params)


@pytest.mark.slow
def test_only_matrices_decay():
  params = _transformer_params()
  # Ones, so that a leaf that is 0 at the start is seen to shrink.
  policy = jax.tree.map(np.ones_like, params)
  config = _config(learning_rate=0.5, weight_decay=0.1)

  @functools.partial(jax.jit, static_argnums=0)
  def step(optimizer, tree):
    still = jax.tree.map(jnp.zeros_like, tree)
    updates, _ = optimizer.update(still, optimizer.init(tree), tree)
    return optax.apply_updates(tree, updates)

  after = step(optimizers.of_model(config, 10), policy)
  decayed = {
    jax.tree_util.keystr(path, simple=True, separator="/")
    for path, leaf in jax.tree_util.tree_leaves_with_path(after)
    if not np.array_equal(leaf, np.ones_like(leaf))
  }
  assert decayed == {
    "head/kernel",
    "layers/attention/out/kernel",
    "layers/attention/qkv/kernel",
    "layers/mlp/down/kernel",
    "layers/mlp/gate/kernel",
    "layers/mlp/up/kernel",
  }
  # 1 − 0.5 · 0.1, once.
  np.testing.assert_allclose(after["head"]["kernel"], 0.95)
  # What an algorithm trains is never pulled to 0.
  scalars = {"scale": np.ones((2, 2), np.float32)}
  after = step(optimizers.of_scalars(config, 10), scalars)
  np.testing.assert_array_equal(after["scale"], 1)


@functools.partial(jax.jit, static_argnums=0)
def _updates_and_states(config, gradients):
  made = {
    "policy": optimizers.of_model(config, 10),
    "algorithm": optimizers.of_scalars(config, 10),
  }
  zeros = jax.tree.map(jnp.zeros_like, gradients)
  return {
    name: optimizer.update(
      gradients[name], optimizer.init(zeros[name]), zeros[name]
    )
    for name, optimizer in made.items()
  }


def _update(policy, algorithm, **fields):
  """Updates and Adam's first moments for one step with such gradients."""
  *a, b = np.float32(policy)
  gradients = {
    "policy": {"a": np.array(a), "b": b},
    "algorithm": {"scale": np.float32(algorithm)},
  }
  found = jax.device_get(_updates_and_states(_config(**fields), gradients))
  updates, moments = {}, []
  for name in gradients:
    updates[name], state = found[name]
    (adam,) = (
      leaf
      for leaf in jax.tree.leaves(
        state, is_leaf=lambda x: isinstance(x, optax.ScaleByAdamState)
      )
      if isinstance(leaf, optax.ScaleByAdamState)
    )
    moments.append(np.hstack(jax.tree.leaves(adam.mu)))
  return updates, *moments


def test_gradients_are_clipped_by_their_global_norm():
  # Norm √(36 + 64 + 576) = 26, cut to 2.6: a tenth. Moments hold 1 − b1.
  _, policy, _ = _update([6.0, 8.0, 24.0], 0.0, clip_norm=2.6, b1=0.5)
  np.testing.assert_allclose(policy, [0.3, 0.4, 1.2], rtol=1e-6)
  _, policy, _ = _update([6.0, 8.0, 24.0], 0.0, clip_norm=26.1, b1=0.5)
  np.testing.assert_allclose(policy, [3, 4, 12], rtol=1e-6)


def test_policy_and_algorithm_do_not_share_a_norm():
  calm, policy, algorithm = _update([0.3, 0.0, 0.4], 0.2, clip_norm=1.0, b1=0.5)
  np.testing.assert_allclose(policy, [0.15, 0, 0.2], rtol=1e-6)
  np.testing.assert_allclose(algorithm, [0.1], rtol=1e-6)
  wild, policy, algorithm = _update([0.3, 0.0, 0.4], 1e6, clip_norm=1.0, b1=0.5)
  jax.tree.map(np.testing.assert_array_equal, wild["policy"], calm["policy"])
  np.testing.assert_allclose(policy, [0.15, 0, 0.2], rtol=1e-6)
  np.testing.assert_allclose(algorithm, [0.5], rtol=1e-6)
  _, _, algorithm = _update([3e5, 0.0, 4e5], 0.2, clip_norm=1.0, b1=0.5)
  np.testing.assert_allclose(algorithm, [0.1], rtol=1e-6)


def test_first_step_is_the_learning_rate_downhill():
  """Adam's first step has the size of the rate, whatever the gradient's."""
  updates, _, _ = _update(
    [1e-3, -1e-2, 0.1], 0.5, learning_rate=0.25, clip_norm=9.0, eps=1e-12
  )
  np.testing.assert_allclose(
    np.hstack(jax.tree.leaves(updates)), [-0.25, -0.25, 0.25, -0.25], rtol=1e-4
  )


def _names(tree, is_leaf=None):
  leaves = jax.tree_util.tree_leaves_with_path(tree, is_leaf=is_leaf)
  return {
    jax.tree_util.keystr(path, simple=True, separator="/"): leaf
    for path, leaf in leaves
  }


def _normal(tree, seed):
  """Random leaves in the place of those of a tree."""
  rng = np.random.default_rng(seed)
  return jax.tree.map(
    lambda x: np.asarray(rng.normal(size=x.shape)).astype(x.dtype), tree
  )


@functools.partial(jax.jit, static_argnums=0)
def _step(optimizer, params, state, gradients):
  updates, state = optimizer.update(gradients, state, params)
  return optax.apply_updates(params, updates), state


def _steps(optimizer, params, seeds, state=None):
  """Parameters and state after steps with random gradients."""
  if state is None:
    state = jax.jit(optimizer.init)(params)
  for seed in seeds:
    params, state = _step(optimizer, params, state, _normal(params, seed))
  return jax.device_get((params, state))


def _newton_schulz(x):
  transpose = x.shape[0] > x.shape[1]
  x = x.T if transpose else x
  x = x / np.linalg.norm(x)
  for _ in range(5):
    a = x @ x.T
    x = 3.4445 * x + (-4.7750 * a + 2.0315 * a @ a) @ x
  return x.T if transpose else x


@pytest.mark.slow
def test_muon_against_numpy():
  """Two steps: which entries are one matrix, momentum, scale and decay."""
  params = _normal(_transformer_params()["layers"], 7)
  config = _config(
    name="muon", learning_rate=0.5, weight_decay=0.25, clip_norm=1e9
  )
  tree = {"layers": params}
  after, _ = _steps(optimizers.of_model(config, 10), tree, (0, 1))
  one, two = (_normal(tree, seed)["layers"] for seed in (0, 1))

  def direction(number, name):
    g1, g2 = (np.float64(_names(tree)[name]) for tree in (one, two))
    if number == 0:
      return g1
    momentum = 0.95 * 0.05 * g1 + 0.05 * g2
    return 0.95 * momentum / (1 - 0.95**3) + 0.05 * g2 / (1 - 0.95**2)

  def moved(name, index, shape):
    x = np.float64(_names(params)[name])[index]
    for number in range(2):
      update = _newton_schulz(direction(number, name)[index].reshape(shape))
      update = 0.2 * max(shape) ** 0.5 * update.reshape(x.shape)
      x = x - 0.5 * (update + 0.25 * x)
    return x

  result = _names(after["layers"])
  for layer in range(2):
    for head in range(4):  # Two of queries, one of keys, one of values.
      name, index = "attention/qkv/kernel", (layer, slice(None), 0, head)
      expected = moved(name, index, (8, 4))
      np.testing.assert_allclose(result[name][index], expected, atol=1e-4)
    for name, shape in {
      "attention/out/kernel": (8, 8),
      "mlp/gate/kernel": (8, 8),
      "mlp/down/kernel": (8, 8),
    }.items():
      expected = moved(name, layer, shape)
      np.testing.assert_allclose(result[name][layer], expected, atol=1e-4)


@pytest.mark.slow
def test_muon_leaves_the_rest_to_adamw():
  params = _normal(_transformer_params(), 3)
  fields = {"learning_rate": 0.1, "weight_decay": 0.3, "clip_norm": 1e9}
  muon, adamw = (
    _names(
      _steps(
        optimizers.of_model(_config(name=name, **fields), 9), params, (0, 1)
      )[0]
    )
    for name in ("muon", "adamw")
  )
  same = {k for k in muon if np.allclose(muon[k], adamw[k], 1e-6, 1e-7)}
  assert same == {
    "embed/embedding",
    "final_norm/scale",
    "head/kernel",
    "layers/attention/key_norm/scale",
    "layers/attention/qkv/bias",
    "layers/attention/query_norm/scale",
    "layers/attention_norm/scale",
    "layers/mlp_norm/scale",
  }
  # Steps of the two are of one size.
  start = _names(params)
  for name in muon.keys() - same:
    size, other = (
      np.sqrt(np.mean((after[name] - start[name]) ** 2))
      for after in (muon, adamw)
    )
    assert 0.1 < size / other < 1


@pytest.mark.slow
def test_muon_takes_experts_one_by_one():
  policy = _transformer(num_experts=3, expert_width=6)
  params = jax.eval_shape(policy.init, jax.random.key(0))["trained"]
  axes = _names(optimizers.muon_axes(params), optimizers._is_axes)
  sizes = {
    name: tuple(_names(params)[name].shape[i] for i in axes[name])
    for name in axes
    if axes[name] is not None and "mlp" in name
  }
  assert sizes == {
    "layers/mlp/router/kernel": (8, 3),
    "layers/mlp/experts/gate": (8, 6),
    "layers/mlp/experts/up": (8, 6),
    "layers/mlp/experts/down": (6, 8),
  }


def test_muon_needs_matrices_of_layers():
  adapters = {"query": {"a": np.zeros((2, 8, 4)), "b": np.zeros((2, 4, 8))}}
  optimizer = optimizers.of_model(_config(name="muon"), 10)
  # Adapters of a stack of its own are not matrices of layers either.
  for tree in (adapters, {**adapters, "linear_layers": adapters}):
    with pytest.raises(ValueError, match="'muon' is for the matrices of layer"):
      optimizer.init(tree)
  with pytest.raises(ValueError, match=r"'mion' \(did you mean 'muon'"):
    _config(name="mion")


def test_adafactor_against_numpy():
  """Two steps: the fused kernel is one matrix per layer, vectors are whole."""
  shapes = {
    "attention": {
      "qkv": {"kernel": (2, 128, 2, 4, 16), "bias": (2, 2, 4, 16)},
      "out": {"kernel": (2, 2, 2, 32, 130)},
    },
    "mlp_norm": {"scale": (130, 128)},  # As if there were 130 layers.
  }
  params = jax.tree.map(
    functools.partial(np.zeros, dtype=np.float32),
    shapes,
    is_leaf=lambda x: isinstance(x, tuple),
  )
  config = _config(name="adafactor", learning_rate=0.5, clip_norm=1e9)
  tree = {"layers": _normal(params, 7)}
  after, state = _steps(optimizers.of_model(config, 10), tree, (0, 1))
  views = {
    "attention/qkv/kernel": (2, 128, 128),
    "attention/out/kernel": (2, 128, 130),
  }
  start, result = (_names(x["layers"]) for x in (tree, after))
  gradients = [_names(_normal(tree, s)["layers"]) for s in (0, 1)]
  for name, x in start.items():
    expected, rows, columns = np.float64(x), 0.0, 0.0
    for number, decay in enumerate((0.0, 1 - 2**-0.8)):
      g = np.float64(gradients[number][name])
      g = g.reshape(views.get(name, g.shape))
      if name in views:
        rows = decay * rows + (1 - decay) * np.square(g).mean(2)
        columns = decay * columns + (1 - decay) * np.square(g).mean(1)
        outer = rows[:, :, None] * columns[:, None]
        second = outer / rows.mean(1)[:, None, None]
      else:
        second = rows = decay * rows + (1 - decay) * np.square(g)
      update = g / np.sqrt(second)
      update /= max(1.0, np.sqrt(np.mean(update**2)))
      expected = expected - 0.5 * update.reshape(expected.shape)
    np.testing.assert_allclose(result[name], expected, atol=1e-4)
  moments = sum(x.size for x in jax.tree.leaves(state))
  vectors = 2 * 2 * 4 * 16 + 130 * 128
  assert moments < 2 * (128 + 128) + 2 * (128 + 130) + vectors + 20


# 1 and the next numbers up and down in bfloat16.
UP, DOWN = 1 + 2**-7, 1 - 2**-8
ONES = {"w": np.ones(4096, jnp.bfloat16), "scale": np.ones(3, np.float32)}


def test_rounding_is_to_a_neighbour_and_unbiased():
  values = np.float32([1.001, 1.0, -1.0049, 3e-5, -7e8, 0.0, 2**-130])
  odd = np.float32([np.inf, -np.inf, np.nan, -np.nan])

  @jax.jit
  def draw(x):
    keys = jax.random.split(jax.random.key(0), 20_000)
    return jax.vmap(optimizers.round_stochastically, (0, None))(keys, x)

  drawn = np.asarray(draw(np.concatenate([values, odd]))).astype(np.float64)
  draws = drawn[:, : len(values)]
  for value, draw in zip(values.astype(np.float64), draws.T, strict=True):
    found = np.unique(draw)
    # Two neighbours around a number that bfloat16 has not.
    exact = float(jnp.bfloat16(value)) == value
    assert len(found) == (1 if exact else 2)
    assert found[0] <= value <= found[-1]
    assert found[-1] - found[0] <= 2**-7 * abs(value)
  spread = draws.std(0) / len(draws) ** 0.5
  assert (np.abs(draws.mean(0) - values) <= 4 * spread).all()
  kept = drawn[:, len(values) :]
  np.testing.assert_array_equal(kept, np.broadcast_to(odd, kept.shape))


@pytest.mark.parametrize("name", ["adamw", "adafactor"])
def test_small_updates_are_lost_on_average_only_without_it(name):
  """Steps of 2⁻¹² from 1, where bfloat16 has steps of 2⁻⁸ downwards."""
  fields = {"name": name, "learning_rate": 2**-12, "clip_norm": 1e9}

  def run(**more):
    config = _config(**fields, **more)
    optimizer = optimizers.of_model(config, 99, seed=5)
    params, state = ONES, jax.jit(optimizer.init)(ONES)
    for _ in range(8):
      params, state = _step(optimizer, params, state, ONES)
    return jax.device_get(params)

  nearest = run()
  np.testing.assert_array_equal(nearest["w"], ONES["w"])
  random = run(stochastic_rounding=True)
  assert random["w"].dtype == jnp.bfloat16
  w = np.float64(random["w"])
  # 8 · 2⁻¹² below 1: half of the way to the neighbour, in expectation.
  spread = w.std() / w.size**0.5
  assert spread > 0
  assert abs(w.mean() - (1 - 2**-9)) < 4 * spread
  # float32 parameters are left alone.
  np.testing.assert_array_equal(random["scale"], nearest["scale"])
  np.testing.assert_allclose(random["scale"], 1 - 2**-9, rtol=1e-6)


def test_updates_lead_exactly_to_the_rounded_number():
  """Also where old and new number have few or no bits in common."""
  old = np.array([1, 1, 1, -1, 3e-3, 0, 100, 1e-8], jnp.bfloat16)
  change = np.float32([1e-3, -1, -0.9963, 2.5, -3e-3, 1e-5, 1e-3, 0.3])
  inner = optax.GradientTransformation(
    lambda params: (), lambda updates, state, params: (change, state)
  )
  rounding = optimizers._stochastically_rounded(inner, 0, "policy")
  state = rounding.init(old)
  for _ in range(20):
    new, state = _step(rounding, old, state, change)
    new = np.float64(new)
    exact = np.float64(old) + np.float64(change)
    unit = 2**-7 * np.maximum(np.abs(exact), 1e-9)
    assert (np.abs(new - exact) <= unit).all()


@pytest.mark.slow
def test_policy_and_critic_draw_apart():
  """The same parameters and gradients, rounded by draws of their own."""
  config = _config(learning_rate=2**-9, stochastic_rounding=True)
  params = {"w": np.ones(256, jnp.bfloat16)}
  after = {}
  for owner in ("policy", "critic"):
    optimizer = optimizers.of_model(config, 10, 0, owner)
    state = jax.jit(optimizer.init)(params)
    moved, _ = _step(optimizer, params, state, params)
    after[owner] = np.float32(moved["w"])
  assert set(after["policy"]) == set(after["critic"])
  assert (after["policy"] != after["critic"]).any()


def test_bfloat16_has_moments_and_updates_of_float32():
  narrow = {"w": np.linspace(0.5, 2, 64).astype(jnp.bfloat16)}
  config = _config(learning_rate=2**-9, weight_decay=0.5, b2=0.999)
  optimizer = optimizers.of_model(config, 10)
  init, update = jax.jit(optimizer.init), jax.jit(optimizer.update)
  state = init(narrow)
  assert {leaf.dtype for leaf in jax.tree.leaves(state) if leaf.ndim} == {
    np.dtype("float32")
  }
  same = jax.tree.map(np.float32, narrow)
  other = init(same)
  for seed in range(3):
    gradients = _normal(narrow, seed)
    exact = jax.tree.map(np.float32, gradients)
    updates, state = update(gradients, state, narrow)
    expected, other = update(exact, other, same)
    np.testing.assert_array_equal(updates["w"], expected["w"])
    assert updates["w"].dtype == jnp.float32


def _rounded(name, seed=0):
  config = _config(name=name, learning_rate=1e-4, stochastic_rounding=True)
  return optimizers.of_model(config, 10, seed)


def _bytes(tree):
  return [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(tree)]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["adamw", "adafactor", "muon"])
def test_resumed_run_has_the_same_bits(name):
  policy = {
    "embed": np.ones((128, 128), jnp.bfloat16),
    "layers": {"mlp": {"up": {"kernel": np.ones((2, 4, 6), jnp.bfloat16)}}},
  }
  optimizer = _rounded(name)
  unbroken = _steps(optimizer, policy, range(5))
  middle = _steps(optimizer, policy, range(3))
  # As another process makes it.
  resumed = _steps(_rounded(name), middle[0], range(3, 5), middle[1])
  assert _bytes(resumed) == _bytes(unbroken)
  assert len(jax.tree.leaves(unbroken)) >= 6


@pytest.mark.slow
def test_draws_differ_by_seed_step_and_parameter():
  runs = []
  for seed in (0, 1):
    optimizer = _rounded("adamw", seed)
    params = {"a": ONES["w"], "b": ONES["w"]}
    update, state = jax.jit(optimizer.update), optimizer.init(params)
    gradients = jax.tree.map(jnp.ones_like, params)
    for _ in range(2):
      updates, state = update(gradients, state, params)
      runs += _bytes(updates)
  assert len({*runs}) == len(runs) == 8


@pytest.mark.slow
@pytest.mark.parametrize("name", ["adafactor", "muon"])
def test_moments_are_carried_to_the_next_phase(name):
  policy = _transformer(vocab_size=tiny.VOCAB)
  settings = {"optimizer": _config(name=name), "reset_optimizer": False}
  phase = tiny.make_phase(policy=policy, phase=settings)
  state = tiny.make_state(phase)
  member = state.models["policy"]
  _, used = _steps(
    phase.models["policy"].optimizer,
    member.params["trained"],
    (0, 1),
    member.opt_state,
  )
  member = dataclasses.replace(member, opt_state=used)
  entered = step_lib.enter_phase(state.with_models(policy=member), phase, 1)

  def is_schedule(x):
    return isinstance(x, optax.ScaleByScheduleState)

  kept, old = (
    jax.tree.leaves(state, is_leaf=is_schedule)
    for state in (entered.models["policy"].opt_state, used)
  )
  for new, past in zip(kept, old, strict=True):
    if is_schedule(new):
      assert (int(new.count), int(past.count)) == (0, 2)
    else:
      np.testing.assert_array_equal(new, past)
  assert sum(map(is_schedule, kept)) >= 1
  other = tiny.make_phase(policy=policy, phase={"reset_optimizer": False})
  with pytest.raises(ValueError, match="the phase before has another optim"):
    step_lib.enter_phase(entered, other, 1)  # AdamW.
