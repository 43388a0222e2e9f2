"""The transformer against NumPy, against itself with a cache, and padding."""

import dataclasses
import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from grpo_jax.models import architecture, transformer
from grpo_jax.types import Policy
from tests.models import drawn, reference

PLAIN = architecture.TransformerConfig(
  vocab_size=13,
  width=8,
  num_layers=2,
  num_heads=4,
  num_kv_heads=2,
  mlp_width=12,
)
# As much as possible different from PLAIN: Qwen2's biases, Qwen3's norms, a
# head width of its own, one key head.
RICH = dataclasses.replace(
  PLAIN,
  num_kv_heads=1,
  head_dim=6,
  rope_theta=100.0,
  qk_norm="head",
  qkv_bias=True,
  tied_embeddings=False,
)
# And the layers of Gemma 3: one that sees two tokens and turns by a base of its
# own, and two that see everything, one of which does not turn, as in SmolLM3.
# The factors are Granite's, and the scaling of queries is Ministral 3's.
LOCAL = dataclasses.replace(
  PLAIN,
  num_layers=3,
  head_dim=6,
  sliding_window=2,
  sliding_layers=(True, False, False),
  rotary_layers=(True, True, False),
  rope_theta=100.0,
  local_rope_theta=5.0,
  rope_scaling="linear",
  rope_factor=4.0,
  rope_original_len=3,
  query_scaling=0.5,
  embedding_scale=3.0,
  residual_scale=0.7,
  logit_scale=0.5,
)
# And GPT-2's: norms and biases, no gate, positions from a table.
LEARNED = dataclasses.replace(
  PLAIN,
  activation="gelu",
  gate=False,
  learned_positions=9,
  mlp_bias=True,
  norm="layer",
  rotary_width=0,
)
# And Qwen3-Next's: two layers of four with the gated delta rule, and gates.
LINEAR = dataclasses.replace(
  PLAIN,
  num_layers=4,
  head_dim=6,
  rotary_width=4,
  qk_norm="head",
  norm_plus_one=True,
  attention_gate=True,
  delta=architecture.DeltaConfig(
    period=2, num_value_heads=4, key_width=5, value_width=3, num_taps=3
  ),
)
# And Mixtral's experts.
MOE = dataclasses.replace(
  PLAIN, num_experts=5, experts_per_token=2, expert_width=6
)
NOT_NORMALISED = dataclasses.replace(MOE, norm_topk=False)
CONFIGS = {"plain": PLAIN, "rich": RICH}
T = 4
PROMPTS = ([3, 1, 4, 1, 5], [9], [2, 6, 5])
PROMPT_INDEX = (0, 2, 1, 2)
LENGTHS = (4, 1, 3, 2)  # Of the completions.
COMPLETIONS = np.array(
  [[7, 0, 12, 3], [5, 8, 8, 8], [1, 2, 3, 8], [9, 9, 8, 8]]
)


def float64(config):
  return dataclasses.replace(config, dtype="float64", param_dtype="float64")


@functools.lru_cache
def make_params(config):
  """Random parameters in which every weight matters."""
  policy = transformer.transformer_policy(config)
  return drawn.params(policy, norms=float(not config.norm_plus_one))


def make_batch(num_prompt_slots=5, junk=0):
  tokens = np.full((len(PROMPTS), num_prompt_slots), junk)
  mask = np.zeros(tokens.shape, bool)
  for row, prompt in enumerate(PROMPTS):
    tokens[row, -len(prompt) :] = prompt
    mask[row, -len(prompt) :] = True
  completion_mask = np.arange(T) < np.array(LENGTHS)[:, None]
  completions = np.where(completion_mask, COMPLETIONS, junk)
  return jax.device_put(
    (tokens, mask, completions, completion_mask, np.array(PROMPT_INDEX))
  )


def policy_of(model):
  """The policy of a config; a policy is its own."""
  if isinstance(model, Policy):
    return model
  return transformer.transformer_policy(model)


@functools.partial(jax.jit, static_argnums=0)
def teacher_forced(model, params, batch):
  """Logits [B, T, V] of the whole sequences at once."""
  policy = policy_of(model)
  h, _ = policy.hidden(params, *batch, None)
  return policy.head(params, h)


@functools.partial(jax.jit, static_argnums=0)
def step_by_step(model, params, batch):
  """The same with a cache, and the tokens given one at a time."""
  policy = policy_of(model)
  prompt_tokens, prompt_mask, tokens, _, prompt_index = batch
  num_rows = len(tokens)
  h, prefix, _ = policy.prefill(params, prompt_tokens, prompt_mask)
  h, prefix = jax.tree.map(lambda x: x[prompt_index], (h, prefix))

  def step(cache, t):
    h, cache, _ = policy.decode(
      weights, tokens[:, t], jnp.full(num_rows, t), t, prefix, cache
    )
    return cache, h

  weights = policy.weights(params)
  cache = policy.allocate(num_rows, T)

  _, later = jax.lax.scan(step, cache, jnp.arange(T - 1))  # [T - 1, B, D]
  h = jnp.concatenate([h[:, None], jnp.moveaxis(later, 0, 1)], axis=1)
  return policy.head(params, h)


# How many tokens of each row are read next, up to all but its last one.
PIECES = np.array([[2, 0, 1, 0], [0, 0, 1, 1], [1, 0, 0, 0]])


@functools.partial(jax.jit, static_argnums=0)
def in_pieces(config, params, batch):
  """The same after each of `PIECES`, [pieces, B, V]."""
  policy = transformer.transformer_policy(config)
  prompt_tokens, prompt_mask, tokens, _, prompt_index = batch
  _, prefix, _ = policy.prefill(params, prompt_tokens, prompt_mask)
  prefix = jax.tree.map(lambda x: x[prompt_index], prefix)
  weights = policy.weights(params)

  def read(carry, count):
    t, cache = carry
    place = jnp.minimum(t[:, None] + jnp.arange(2), T - 1)
    piece = jnp.take_along_axis(tokens, place, axis=1)
    h, cache, _ = policy.extend(weights, piece, t, count, prefix, cache)
    return (t + count, cache), h

  start = jnp.zeros(len(tokens), int), policy.allocate(len(tokens), T)
  _, h = jax.lax.scan(read, start, jnp.asarray(PIECES))
  return policy.head(params, h)


def existing(x):
  """Positions that predict a token that exists."""
  x = np.asarray(x)
  return np.concatenate([x[b, :n] for b, n in enumerate(LENGTHS)])


def assert_same_logits(found, wanted, atol=1e-10):
  np.testing.assert_allclose(
    existing(found), existing(wanted), rtol=0, atol=atol
  )


def assert_decoding_is_whole(config, atol=1e-10):
  """Token by token, and in pieces, logits are those of whole sequences."""
  params, batch = make_params(config), make_batch()
  wanted = np.asarray(teacher_forced(config, params, batch))
  assert_same_logits(step_by_step(config, params, batch), wanted, atol)
  found = np.asarray(in_pieces(config, params, batch))
  size = np.cumsum(PIECES, axis=0)
  np.testing.assert_array_equal(size[-1], np.array(LENGTHS) - 1)
  for piece, row in np.argwhere(PIECES):
    np.testing.assert_allclose(
      found[piece, row], wanted[row, size[piece, row]], rtol=0, atol=atol
    )


def test_decoding_equals_teacher_forcing_in_float64():
  with jax.enable_x64(True):
    config = float64(RICH)
    params, batch = make_params(config), make_batch()
    assert_same_logits(
      step_by_step(config, params, batch), teacher_forced(config, params, batch)
    )


@pytest.mark.slow
@pytest.mark.parametrize("config", [PLAIN, RICH, LOCAL, LINEAR, LEARNED, MOE])
def test_pieces_and_steps_equal_teacher_forcing_in_float64(config):
  with jax.enable_x64(True):
    assert_decoding_is_whole(float64(config))


@pytest.mark.parametrize(
  "config",
  [
    pytest.param(PLAIN, id="plain"),
    pytest.param(RICH, id="rich"),
    pytest.param(MOE, marks=pytest.mark.slow),
    pytest.param(NOT_NORMALISED, marks=pytest.mark.slow),
  ],
)
def test_equals_the_numpy_reference(config):
  with jax.enable_x64(True):
    config = float64(config)
    params = make_params(config)
    actual = np.asarray(teacher_forced(config, params, make_batch()))
    arrays = jax.tree.map(np.asarray, params)
    for row, prompt in enumerate(PROMPT_INDEX):
      completion = list(COMPLETIONS[row, : LENGTHS[row] - 1])
      expected = reference.logits(config, arrays, PROMPTS[prompt] + completion)
      first = len(PROMPTS[prompt]) - 1
      np.testing.assert_allclose(
        actual[row, : LENGTHS[row]], expected[first:], rtol=0, atol=1e-10
      )


@pytest.mark.slow
@pytest.mark.parametrize("config", [RICH, LINEAR])
def test_padding_changes_nothing(config):
  with jax.enable_x64(True):
    config = float64(config)
    params = make_params(config)
    for run in (teacher_forced, step_by_step):
      few = run(config, params, make_batch())
      many = run(config, params, make_batch(num_prompt_slots=8))
      assert_same_logits(many, few)


@pytest.mark.slow
@pytest.mark.parametrize(
  ("config", "junk"),
  [*((RICH, junk) for junk in (7, 10**6, -1)), *((LINEAR, 7), (MOE, 10**6))],
)
def test_masked_slots_may_hold_any_token(config, junk):
  params = make_params(config)
  for run in (teacher_forced, step_by_step):
    clean = run(config, params, make_batch())
    dirty = run(config, params, make_batch(junk=junk))
    # The block of an expert has others beside a token.
    assert_same_logits(dirty, clean, 1e-5 if config.num_experts else 0)


@pytest.mark.slow
def test_empty_rows_are_finite_with_finite_gradients():
  tokens, mask, completions, completion_mask, index = map(
    np.array, make_batch()
  )
  mask[1] = False
  batch = (tokens, mask, completions, completion_mask & False)
  params = make_params(RICH)

  def total(params):
    return teacher_forced(RICH, params, (*batch, index)).sum()

  value, grads = jax.device_get(jax.jit(jax.value_and_grad(total))(params))
  assert np.isfinite(value)
  assert all(np.isfinite(g).all() for g in jax.tree.leaves(grads))


def test_a_token_never_sees_its_successors():
  tokens, mask, completions, completion_mask, index = make_batch()
  params = make_params(RICH)
  changed = np.array(completions)
  changed[0, 2] = 6
  before, after = (
    np.asarray(
      teacher_forced(RICH, params, (tokens, mask, x, completion_mask, index))
    )
    for x in (completions, changed)
  )
  np.testing.assert_array_equal(before[0, :3], after[0, :3])
  assert abs(before[0, 3] - after[0, 3]).max() > 1e-3


@pytest.mark.slow
@pytest.mark.parametrize("remat", ["dots", "full"])
def test_remat_changes_neither_values_nor_gradients(remat):
  params, batch = make_params(RICH), make_batch()

  def loss(config, params):
    return (teacher_forced(config, params, batch) ** 2).sum()

  both = jax.jit(jax.value_and_grad(loss, 1), static_argnums=0)
  jax.tree.map(
    lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4),
    both(dataclasses.replace(RICH, remat=remat), params),
    both(dataclasses.replace(RICH, remat="none"), params),
  )


@pytest.mark.slow
def test_remat_saves_memory():
  batch = jax.tree.map(lambda x: jnp.tile(x, (1, 8)), make_batch()[:4])
  batch = (*batch, make_batch()[4])

  def temporary(remat):
    config = dataclasses.replace(RICH, num_layers=6, remat=remat)
    policy = transformer.transformer_policy(config)

    def loss(params):
      return (policy.hidden(params, *batch, None)[0] ** 2).sum()

    params = jax.eval_shape(policy.init, jax.random.key(0))
    gradient = jax.jit(jax.grad(loss)).lower(params).compile()
    return gradient.memory_analysis().temp_size_in_bytes

  none, dots, full = map(temporary, ("none", "dots", "full"))
  assert full < 0.8 * dots
  assert dots < 0.5 * none


@pytest.mark.slow
def test_bfloat16_activations_keep_float32_parameters_and_logits():
  config = dataclasses.replace(RICH, dtype="bfloat16")
  params, batch = make_params(config), make_batch()
  assert {x.dtype.name for x in jax.tree.leaves(params)} == {"float32"}
  wide = teacher_forced(RICH, params, batch)
  for run in (teacher_forced, step_by_step):
    narrow = run(config, params, batch)
    assert narrow.dtype == jnp.float32
    error = abs(existing(narrow) - existing(wide))
    assert 0 < error.max() < 0.05 * abs(existing(wide)).max()


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_head_multiplies_in_the_dtype_of_its_operands(name, dtype):
  config = dataclasses.replace(CONFIGS[name], dtype=dtype)
  policy, params = transformer.transformer_policy(config), make_params(config)
  part = "embed" if config.tied_embeddings else "head"
  (weights,) = jax.tree.leaves(params["trained"][part])
  rng = np.random.default_rng(2)
  h = rng.normal(size=(3, T, 8)).astype(dtype)
  d_logits = rng.normal(size=(3, T, 13)).astype(np.float32)

  def head(weights, h):
    key = "embedding" if config.tied_embeddings else "kernel"
    return policy.head({"trained": {part: {key: weights}}}, h)

  @jax.jit
  def gradients(weights, h):
    return jax.vjp(head, weights, h)[1](d_logits)

  @jax.jit
  def by_definition(weights, h):
    d_kernel = jnp.tensordot(h, d_logits, axes=((0, 1), (0, 1)))  # [D, V]
    if config.tied_embeddings:
      return d_kernel.T, d_logits @ weights
    return d_kernel, d_logits @ weights.T

  program = gradients.lower(weights, h)
  operands = re.findall(
    r"stablehlo\.dot_general .*: \(tensor<[\dx]*(\w+)>, tensor<[\dx]*(\w+)>\)",
    program.as_text(),
  )
  assert len(operands) >= 2
  assert {*operands} == {("bf16",) * 2 if dtype == "bfloat16" else ("f32",) * 2}
  # In float32: the same bits, or what rounding leaves of them.
  expected = by_definition(weights, h.astype("float32"))
  for actual, wide, like in zip(
    program.compile()(weights, h), expected, (weights, h), strict=True
  ):
    assert actual.dtype == like.dtype
    error = abs(np.asarray(actual, np.float32) - np.asarray(wide)).max()
    if dtype == "float32":
      assert error == 0
    else:
      assert 0 < error < 0.01 * abs(np.asarray(wide)).max()


@pytest.mark.slow
def test_layers_are_stacked_and_everything_is_trained():
  init = jax.jit(transformer.transformer_policy(RICH).init)
  params = jax.device_get(init(jax.random.key(0)))
  assert params["frozen"] == {}
  layers = params["trained"]["layers"]
  assert all(x.shape[0] == RICH.num_layers for x in jax.tree.leaves(layers))
  kernel = layers["mlp"]["up"]["kernel"]
  assert abs(kernel[0] - kernel[1]).max() > 0  # Drawn independently.


def test_layers_turn_by_the_bases_of_their_kind():
  """Position · θ^(−i / half); a factor divides positions of far layers only."""
  ropes = jax.jit(transformer._ropes, static_argnums=0)
  near, far = jax.device_get(ropes(LOCAL, np.arange(6)[None]))
  half = np.arange(LOCAL.head_width // 2) / (LOCAL.head_width // 2)
  for rope, angles in (
    (near, np.arange(6)[:, None] * 5.0**-half),
    (far, np.arange(6)[:, None] / 4.0 * 100.0**-half),
  ):
    np.testing.assert_allclose(rope[0][0], np.cos(angles), 1e-5, 1e-6)
    np.testing.assert_allclose(rope[1][0], np.sin(angles), 1e-5, 1e-6)


def test_unknown_inputs_raise():
  policy = transformer.transformer_policy(PLAIN)
  with pytest.raises(ValueError, match=r"extra inputs \['routing'\]"):
    policy.hidden(make_params(PLAIN), *make_batch(), {"routing": 1})
