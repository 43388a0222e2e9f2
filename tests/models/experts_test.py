"""Experts: three forms of one sum, routing, and routing given from outside."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from grpo_jax.models import experts, mesh, transformer
from grpo_jax.ops import logprobs
from grpo_jax.rollout import sampling
from grpo_jax.types import Prompts
from tests.models import transformer_test

MOE, NOT_NORMALISED = transformer_test.MOE, transformer_test.NOT_NORMALISED


def swiglu(gate, up):
  return jax.nn.silu(gate) * up


# --- One layer ---------------------------------------------------------------


# Each operation outside a program would be a program of its own.
_route = jax.jit(experts.route, static_argnums=(1, 2))


def _layer(num_tokens, num_experts, dtype=np.float64):
  rng = np.random.default_rng(0)

  def normal(*shape):
    return rng.normal(size=shape).astype(dtype)

  width, inner = 4, 3
  kernels = experts.Kernels(
    gate=normal(num_experts, width, inner),
    up=normal(num_experts, width, inner),
    down=normal(num_experts, inner, width),
  )
  x = normal(num_tokens, width)
  return x, normal(num_tokens, num_experts), kernels


def _value_and_gradients(
  form, x, logits, kernels, num_chosen, kept=None, normalize=True
):
  (_, y), gradients = jax.device_get(
    _of_form(form, num_chosen, normalize, kept, x, logits, kernels)
  )
  return y, gradients


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def _of_form(form, num_chosen, normalize, kept, *inputs):
  def loss(x, logits, kernels):
    ids, weights, _ = experts.route(logits, num_chosen, normalize, kept)
    y = form(x, ids, weights, kernels, swiglu)
    return jnp.sin(y).sum(), y

  return jax.value_and_grad(loss, (0, 1, 2), has_aux=True)(*inputs)


@pytest.mark.slow
@pytest.mark.parametrize("form", [experts.ragged, experts.blocked, experts.mix])
@pytest.mark.parametrize(
  ("num_tokens", "num_experts", "num_chosen"),
  [(7, 4, 2), (2, 16, 3), (32, 3, 1), (1, 2, 2)],
)
def test_forms_equal_the_dense_one(form, num_tokens, num_experts, num_chosen):
  with jax.enable_x64(True):
    x, logits, kernels = _layer(num_tokens, num_experts)
    logits[:, 0] += 1.0  # Some get most tokens, some few.
    want, got = (
      _value_and_gradients(
        f, x, logits, kernels, num_chosen, normalize=num_chosen > 2
      )
      for f in (experts.dense, form)
    )
    assert all(np.abs(x).max() > 1e-3 for x in jax.tree.leaves(want[1][2]))
    jax.tree.map(
      functools.partial(np.testing.assert_allclose, rtol=1e-12, atol=1e-12),
      got,
      want,
    )


@pytest.mark.slow
@pytest.mark.parametrize("form", [experts.ragged, experts.blocked])
@pytest.mark.parametrize("expert", [0, 2, 4])
def test_all_tokens_may_take_one_expert(form, expert):
  with jax.enable_x64(True):
    x, logits, kernels = _layer(9, 5)
    kept = jax.device_put(np.full((9, 1), expert))
    y, gradients = _value_and_gradients(form, x, logits, kernels, 1, kept)
    gate, up, down = (
      kernel[expert] for kernel in (kernels.gate, kernels.up, kernels.down)
    )
    passed = x @ gate
    want = (passed / (1 + np.exp(-passed)) * (x @ up)) @ down
    np.testing.assert_allclose(y, want, rtol=1e-12)
    idle = np.arange(5) != expert
    for gradient in jax.tree.leaves(gradients[2]):
      assert not gradient[idle].any()
      assert gradient[expert].any()


@pytest.mark.slow
@pytest.mark.parametrize(
  ("num_tokens", "num_experts", "num_chosen", "dtype"),
  [(7, 4, 2, "float32"), (700, 3, 2, "float32"), (64, 16, 3, "bfloat16")],
)
def test_the_interpreted_kernel_equals_the_dense_form(
  num_tokens, num_experts, num_chosen, dtype
):
  """With experts that no token takes, and choices of one elsewhere.

  Tiles reach beyond the ends of all axes: 4 by 3, of 128 by 128.
  """
  x, logits, kernels = _layer(num_tokens, num_experts, np.float32)
  x, kernels = jax.tree.map(lambda z: z.astype(dtype), (x, kernels))
  logits[:, 0] += 9.0

  def without_one(form):
    def partly(x, ids, weights, kernels, activation):
      elsewhere = ids == 1
      return form(
        x,
        jnp.where(elsewhere, num_experts, ids),
        jnp.where(elsewhere, 0, weights),
        kernels,
        activation,
      )

    return partly

  # Gradients by scores that nearly saturate: terms of 20 cancel.
  tolerance = {"float32": 1e-3, "bfloat16": 0.05}[dtype]
  want, got = (
    _value_and_gradients(without_one(f), x, logits, kernels, num_chosen)
    for f in (experts.dense, experts.megablox)
  )
  jax.tree.map(
    lambda one, other: np.testing.assert_allclose(
      one.astype(np.float32),
      other.astype(np.float32),
      rtol=tolerance,
      atol=tolerance,
    ),
    got,
    want,
  )


@pytest.mark.parametrize(
  ("platform", "dtype", "form"),
  [
    ("tpu", "bfloat16", "megablox"),
    ("tpu", "float64", "blocked"),
    ("cpu", "float32", "blocked"),
    ("gpu", "bfloat16", "blocked"),
  ],
)
def test_the_form_is_that_of_the_platform(monkeypatch, platform, dtype, form):
  monkeypatch.setattr(mesh, "platform", lambda: platform)
  assert experts.form("auto", dtype) == form
  assert experts.form("ragged", dtype) == "ragged"


@pytest.mark.parametrize(
  ("platform", "dtype", "message"),
  [
    ("gpu", "bfloat16", "and not a gpu"),
    ("tpu", "float64", "and not 'float64'"),
  ],
)
def test_a_kernel_that_cannot_serve_raises(
  monkeypatch, platform, dtype, message
):
  monkeypatch.setattr(mesh, "platform", lambda: platform)
  with pytest.raises(ValueError, match=message):
    experts.form("megablox", dtype)


@pytest.mark.slow
def test_an_expert_taken_twice_counts_twice():
  """Slots that were never decoded hold zeros: the same expert twice."""
  with jax.enable_x64(True):
    layer, kept = _layer(6, 4), jnp.zeros((6, 2), jnp.int32)
    for form in (experts.ragged, experts.blocked):
      jax.tree.map(
        functools.partial(np.testing.assert_allclose, rtol=1e-12, atol=1e-12),
        _value_and_gradients(form, *layer, 2, kept),
        _value_and_gradients(experts.dense, *layer, 2, kept),
      )


def test_weights_of_the_chosen():
  logits = np.log(np.float32([[0.1, 0.4, 0.3, 0.2]]))
  plain = _route(logits, 2, False)
  np.testing.assert_array_equal(plain.ids, [[1, 2]])
  np.testing.assert_allclose(plain.weights, [[0.4, 0.3]], rtol=1e-6)
  np.testing.assert_allclose(plain.probs, [[0.1, 0.4, 0.3, 0.2]], rtol=1e-6)
  normalised = _route(logits, 2, True)
  np.testing.assert_allclose(normalised.weights, [[4 / 7, 3 / 7]], rtol=1e-6)
  given = _route(logits, 2, True, choices=np.array([[3, 0]]))
  np.testing.assert_array_equal(given.ids, [[3, 0]])
  np.testing.assert_allclose(given.weights, [[2 / 3, 1 / 3]], rtol=1e-6)


def test_equal_scores_go_to_the_lowest_ids():
  for logits in (np.zeros((3, 6)), np.array([[1.0, 2.0, 2.0, 2.0]])):
    routed = _route(logits.astype(np.float32), 2, True)
    first = 0 if logits.shape[1] == 6 else 1
    np.testing.assert_array_equal(
      routed.ids, np.tile([first, first + 1], (len(logits), 1))
    )
    np.testing.assert_allclose(routed.weights, 0.5)


def test_the_bias_changes_the_choice_and_not_the_weights():
  logits = np.log(np.float32([[0.1, 0.4, 0.3, 0.2]]))
  bias = np.float32([0.35, 0.0, 0.0, -1.0])
  routed = _route(logits, 2, False, bias=bias)
  np.testing.assert_array_equal(routed.ids, [[0, 1]])
  np.testing.assert_allclose(routed.weights, [[0.1, 0.4]], rtol=1e-6)


def test_experts_that_became_impossible_keep_finite_weights():
  def total(logits):
    return experts.route(logits, 2, True, choices=jnp.array([[1, 2]])).weights[
      0, 0
    ]

  outcome = jax.jit(jax.value_and_grad(total))
  value, slope = jax.device_get(outcome(np.float32([[0.0, -300.0, -301.0]])))
  np.testing.assert_allclose(value, 1 / (1 + np.exp(-1)), rtol=1e-6)
  assert np.isfinite(slope).all()
  assert slope[0, 1] > 0


# --- In the transformer ------------------------------------------------------


@pytest.mark.slow
def test_remat_and_bfloat16():
  params, batch = (
    transformer_test.make_params(MOE),
    transformer_test.make_batch(),
  )

  def loss(config, params):
    logits = transformer_test.teacher_forced(config, params, batch)
    return (logits**2).sum()

  both = jax.jit(jax.value_and_grad(loss, 1), static_argnums=0)
  jax.tree.map(
    functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-4),
    both(dataclasses.replace(MOE, remat="full"), params),
    both(MOE, params),
  )
  narrow = dataclasses.replace(MOE, dtype="bfloat16")
  policy = transformer.transformer_policy(narrow)
  _, aux = jax.jit(policy.hidden)(params, *batch, None)
  assert aux.probs.dtype == jnp.float32  # The router's own precision.


@pytest.mark.slow
def test_parameters_have_an_axis_of_experts():
  params = transformer_test.make_params(
    dataclasses.replace(MOE, router_bias=True)
  )
  mlp = params["trained"]["layers"]["mlp"]
  layers, width = MOE.num_layers, MOE.width
  shapes = jax.tree.map(jnp.shape, mlp)
  assert shapes == {
    "router": {"kernel": (layers, width, 5)},
    "experts": {
      "gate": (layers, 5, width, 6),
      "up": (layers, 5, width, 6),
      "down": (layers, 5, 6, width),
    },
  }
  assert params["frozen"]["router_bias"].shape == (layers, 5)
  # Drawn at the scale of one expert, as Flax draws a dense layer.
  policy = transformer.transformer_policy(
    dataclasses.replace(MOE, width=64, num_experts=16, expert_width=64)
  )
  fresh = jax.jit(policy.init)(jax.random.key(0))
  gate = fresh["trained"]["layers"]["mlp"]["experts"]["gate"]
  np.testing.assert_allclose(gate.std(), 64**-0.5, rtol=0.05)


@pytest.mark.parametrize(
  ("change", "message"),
  [
    ({"experts_per_token": 6}, "experts_per_token is 6, but there are 5"),
    ({"experts_per_token": 0}, "experts_per_token is 0"),
    ({"expert_width": 0}, "expert_width is 0"),
    ({"num_experts": -1}, "num_experts is -1"),
    ({"num_experts": 0, "router_bias": True}, "num_experts is 0"),
  ],
)
def test_impossible_sizes_raise(change, message):
  with pytest.raises(ValueError, match=message):
    dataclasses.replace(MOE, **change)


# --- Routing given from outside ----------------------------------------------

G, T = 4, 5  # Completions per prompt, slots.


def _prompts():
  tokens, mask, *_ = transformer_test.make_batch()
  return Prompts(tokens, mask, np.arange(3, dtype=np.int32), {})


@functools.partial(jax.jit, static_argnums=(0, 2))
def _sample(config, params, record_routing=True):
  return sampling.sample(
    transformer.transformer_policy(config),
    params,
    _prompts(),
    jax.random.key(3),
    sampling.SamplerConfig(T, (0,), 0, record_routing=record_routing),
    G,
  )


@functools.partial(jax.jit, static_argnums=(0, 3))
def _logp(config, params, rollout, keep):
  """Log-probs [B, T] of the sampled tokens in training, and the routing."""
  policy, prompts = transformer.transformer_policy(config), _prompts()
  extras = None
  if keep:
    extras = {
      "routing": rollout.routing,
      "prompt_routing": rollout.prompt_routing,
    }
  h, aux = policy.hidden(
    params,
    prompts.tokens,
    prompts.mask,
    rollout.tokens,
    rollout.completion_mask,
    rollout.prompt_index,
    extras,
  )
  logits = policy.head(params, h)
  return logprobs.token_logprobs(logits, rollout.tokens), aux


def _tied_params(config):
  """Every router cannot tell expert 2i from expert 2i + 1; they differ."""
  params = transformer_test.make_params(config)
  layers = params["trained"]["layers"]
  kernel = layers["mlp"]["router"]["kernel"]
  even = np.repeat(np.asarray(kernel)[..., 0::2], 2, axis=-1)
  return _with_router(params, jax.device_put(even))


def _with_router(params, kernel):
  layers = params["trained"]["layers"]
  mlp = {**layers["mlp"], "router": {"kernel": kernel}}
  trained = {**params["trained"], "layers": {**layers, "mlp": mlp}}
  return {**params, "trained": trained}


def _router(params):
  return params["trained"]["layers"]["mlp"]["router"]["kernel"]


# An even number of experts, of which a token takes one: of each pair of equals
# the first, and, once the router leans a little, as often the second.
TIED = dataclasses.replace(NOT_NORMALISED, num_experts=6, experts_per_token=1)


@pytest.mark.slow
def test_kept_routing_reproduces_the_sampler_where_free_routing_does_not():
  config = TIED
  params = _tied_params(config)
  rollout = _sample(config, params)
  mask = np.asarray(rollout.completion_mask)
  assert mask.sum() > 30
  assert (np.asarray(rollout.routing) % 2 == 0).all()
  router = np.asarray(_router(params))
  noise = 1e-6 * np.random.default_rng(5).normal(size=router.shape)
  leaning = jax.device_put((router + noise).astype(router.dtype))
  leaning = _with_router(params, leaning)
  rollout = jax.device_get(rollout)
  kept, aux = jax.device_get(_logp(config, leaning, rollout, True))
  np.testing.assert_allclose(
    kept[mask], rollout.sampler_logp[mask], rtol=0, atol=1e-5
  )
  free, other = jax.device_get(_logp(config, leaning, rollout, False))
  assert (aux.ids[mask] % 2 == 0).all()
  assert 0.2 < (other.ids[mask] % 2).mean() < 0.8
  gap = np.abs(free - rollout.sampler_logp)[mask]
  assert np.median(gap) > 0.01
  assert gap.max() > 0.1


@pytest.mark.slow
def test_gradients_reach_the_router_through_kept_experts():
  params = transformer_test.make_params(MOE)
  rollout = _sample(MOE, params)
  other = jax.device_put(-np.asarray(_router(params)))
  moved = _with_router(params, other)  # Other experts are best.

  @functools.partial(jax.jit, static_argnums=1)
  def slope(kernel, keep):
    def total(kernel):
      logp, aux = _logp(MOE, _with_router(moved, kernel), rollout, keep)
      return jnp.where(rollout.completion_mask, logp, 0).sum(), aux.ids

    return jax.grad(total, has_aux=True)(kernel)

  kept, ids = jax.device_get(slope(_router(moved), True))
  free, others = jax.device_get(slope(_router(moved), False))
  assert (np.asarray(ids) != np.asarray(others)).mean() > 0.3
  assert np.abs(kept).max() > 1e-2
  assert np.isfinite(kept).all()
  assert np.abs(kept - free).max() > 1e-2
  # The weights follow the router that is there now.
  small = 1e-3 * kept / np.linalg.norm(kept)
  mask = np.asarray(rollout.completion_mask)
  before, after = (
    np.asarray(_logp(MOE, _with_router(moved, kernel), rollout, True)[0])
    for kernel in (_router(moved), np.asarray(_router(moved)) + small)
  )
  rise = (after - before).astype(np.float64)[mask].sum()
  np.testing.assert_allclose(rise, 1e-3 * np.linalg.norm(kept), rtol=0.05)


@pytest.mark.slow
def test_routing_is_recorded_only_when_asked():
  params = transformer_test.make_params(MOE)
  rollout = _sample(MOE, params, record_routing=False)
  assert rollout.routing is None
  assert rollout.prompt_routing is None
  compiled = _sample.lower(MOE, params, False).compile().as_text()
  recording = _sample.lower(MOE, params, True).compile().as_text()
  shape = f"s32[{3 * G},{T},{MOE.num_layers},2]"  # [B, T, layers, k]
  assert shape in recording
  assert shape not in compiled  # Nobody reads it, so the loop has it not.


@pytest.mark.slow
def test_a_model_without_experts_has_no_routing():
  config = transformer_test.PLAIN
  params = transformer_test.make_params(config)
  with pytest.raises(ValueError, match="record_routing is True, but the model"):
    _sample(config, params)
  policy = transformer.transformer_policy(config)
  batch = transformer_test.make_batch()
  extras = {"routing": 0, "prompt_routing": 0}
  with pytest.raises(ValueError, match=r"\['prompt_routing', 'routing'\]"):
    policy.hidden(params, *batch, extras)
  with pytest.raises(ValueError, match=r"extra inputs \['images'\]"):
    transformer.transformer_policy(MOE).hidden(
      transformer_test.make_params(MOE), *batch, {"images": 0}
    )
