"""Optimizers from their config.

For parameters of any dtype, gradients are clipped, moments kept and updates
computed in float32; only the sum of update and parameter is rounded.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import lax

from grpo_jax.ops import masked
from grpo_jax.settings import phase
from grpo_jax.training.runtime import hyperparameters
from grpo_jax.types import PyTree

# Kernels with an axis of heads, [N, H, K].
_PER_HEAD = re.compile(
  r"attention/(query_heads|key_heads|query_up|kv_up)/|delta/(inputs|rates)/"
)
_OUT = re.compile(r"(attention|delta)/out/")
_ADAPTER = re.compile(r"/[ab]$")


def schedule(
  config: phase.OptimizerConfig, num_updates: int
) -> Callable[[jax.Array], jax.Array]:
  """The learning rate by gradient step, over `num_updates` steps in all."""
  peak, end = config.learning_rate, config.learning_rate * config.final_fraction
  decay_steps = hyperparameters.at_least(num_updates - config.warmup_steps, 1)
  if config.schedule == "constant":
    decay = optax.constant_schedule(peak)
  elif config.schedule == "linear":
    decay = optax.linear_schedule(peak, end, decay_steps)
  else:
    decay = optax.cosine_decay_schedule(
      peak, decay_steps, alpha=config.final_fraction
    )
  if not config.warmup_steps:
    return decay
  # Step 0 already moves: (n + 1) / warmup.
  warmup = optax.linear_schedule(
    peak / config.warmup_steps,
    peak,
    hyperparameters.at_least(config.warmup_steps - 1, 1),
  )
  return optax.join_schedules([warmup, decay], [config.warmup_steps])


def _name(path) -> str:
  return jax.tree_util.keystr(path, simple=True, separator="/")


def _is_matrix(path, leaf) -> bool:
  # A decay would change indexers that are not trained. Mixtures of residual
  # streams are few numbers behind a sigmoid.
  words = (
    *("embed", "scale", "bias", "norm", "sinks", "log_rate", "taps"),
    *("indexer", "stream"),
  )
  skipped = any(word in _name(path) for word in words)
  return leaf.ndim >= 2 and not skipped


def decay_mask(params: PyTree) -> PyTree:
  """The mask of what decays: no embeddings, norms, biases and indexers."""
  return jax.tree_util.tree_map_with_path(_is_matrix, params)


def _adamw(config, rate) -> optax.GradientTransformation:
  return optax.adamw(
    rate,
    b1=config.b1,
    b2=config.b2,
    eps=config.eps,
    weight_decay=config.weight_decay,
    mask=decay_mask,
  )


def _adafactor(config, rate) -> optax.GradientTransformation:
  """Adafactor: second moments as an outer product per matrix; no first moments.

  The size of a step is the learning rate, as with Adam, and not a fraction of
  the size of the parameters.

  Source: Shazeer and Stern, "Adafactor: Adaptive Learning Rates with Sublinear
  Memory Cost", arXiv:1804.04235, Algorithm 4 with α_t = the learning rate;
  updates are clipped per stack of layers.
  """
  return optax.chain(
    _on_matrices(optax.scale_by_factored_rms()),
    optax.clip_by_block_rms(1.0),
    optax.add_decayed_weights(config.weight_decay, decay_mask),
    optax.scale_by_learning_rate(rate),
  )


def _muon(config, rate) -> optax.GradientTransformation:
  """Muon: orthogonalised momentum for the layers' matrices, AdamW for the rest.

  Updates are scaled to the size of Adam's, so that learning rates and decay
  carry over.

  Source: Jordan et al., "Muon: An optimizer for hidden layers in neural
  networks", 2024; Liu et al., "Muon is Scalable for LLM Training",
  arXiv:2502.16982, Eq. 4 (decay, and the scale of 0.2 · √max(in, out)).
  """
  muon = optax.contrib.muon(
    rate,
    weight_decay=config.weight_decay,
    consistent_rms=0.2,
    muon_weight_dimension_numbers=muon_axes,
  )

  def labels(params):
    names = jax.tree.map(
      lambda axes: "adamw" if axes is None else "muon",
      muon_axes(params),
      is_leaf=_is_axes,
    )
    if "muon" not in jax.tree.leaves(names):
      raise ValueError(
        "optimizer.name='muon' is for the matrices of layers, and none of them"
        " is trained; use 'adamw', which also suits adapters."
      )
    return names

  return optax.multi_transform(
    {"muon": muon, "adamw": _adamw(config, rate)}, labels
  )


_RULES = {"adamw": _adamw, "adafactor": _adafactor, "muon": _muon}


def _is_axes(node) -> bool:
  return node is None or isinstance(node, optax.contrib.MuonDimensionNumbers)


def muon_axes(params: PyTree) -> PyTree:
  """The input and output axes of each matrix, as `MuonDimensionNumbers`.

  All other axes are batch axes: layers, experts, and the heads of the fused
  query, key and value kernel. Each matrix is orthogonalised alone. None, for
  embeddings, head, norms, biases, indexers and adapters: AdamW updates the
  parameter.
  """

  def axes(path, leaf):
    name = _name(path)
    is_adapter = _ADAPTER.search(name)  # "dense_layers/up/a" is one, too.
    if "layers/" not in name or is_adapter or not _is_matrix(path, leaf):
      return None
    if "attention/qkv/" in name:  # [layers, D, C, R + 2, K]
      return optax.contrib.MuonDimensionNumbers(1, 4)
    if _PER_HEAD.search(name):  # [layers, N, H, K]
      return optax.contrib.MuonDimensionNumbers(1, 3)
    if _OUT.search(name):  # [layers, C, R, K, D]
      return optax.contrib.MuonDimensionNumbers((1, 2, 3), 4)
    return optax.contrib.MuonDimensionNumbers(-2, -1)  # [..., in, out]

  return jax.tree_util.tree_map_with_path(axes, params)


def _on_matrices(
  inner: optax.GradientTransformation,
) -> optax.GradientTransformation:
  """Applies `inner` to [..., in, out] views of kernels, and to flat vectors.

  `inner` factors the two largest axes. Without the views these would be the
  axes of a head, or layers and width of a stack of norms.
  """

  def view(path, leaf):
    name = _name(path)
    if "layers/" not in name:
      return leaf
    if not _is_matrix(path, leaf):
      return leaf.reshape(-1)
    if "attention/qkv/" in name:
      return leaf.reshape(*leaf.shape[:2], -1)
    if _PER_HEAD.search(name):
      return leaf.reshape(*leaf.shape[:2], -1)
    if _OUT.search(name):
      return leaf.reshape(leaf.shape[0], -1, leaf.shape[-1])
    return leaf

  def views(tree):
    return jax.tree_util.tree_map_with_path(view, tree)

  def update(updates, state, params=None):
    changed, state = inner.update(views(updates), state, views(params))
    return jax.tree.map(
      lambda x, y: x.reshape(y.shape), changed, updates
    ), state

  return optax.GradientTransformation(lambda p: inner.init(views(p)), update)


def _in_float32(
  inner: optax.GradientTransformation,
) -> optax.GradientTransformation:
  """Applies `inner` in float32 or wider, whatever the parameters' dtype."""

  def init(params):
    return inner.init(masked.wide(params))

  def update(updates, state, params=None):
    return inner.update(masked.wide(updates), state, masked.wide(params))

  return optax.GradientTransformation(init, update)


def round_stochastically(
  key: jax.Array,
  x: jax.Array,  # [...] float32
) -> jax.Array:  # [...] bfloat16
  """Rounds x to a neighbour in bfloat16 whose expected value is x.

  Random bits are added to the 16 bits that bfloat16 lacks; the carry decides.
  Infinity and NaN stay.
  """
  bits = lax.bitcast_convert_type(x.astype(jnp.float32), jnp.uint32)
  noise = jax.random.bits(key, x.shape, jnp.uint16)
  upper = ((bits + noise) >> 16).astype(jnp.uint16)
  rounded = lax.bitcast_convert_type(upper, jnp.bfloat16)
  return jnp.where(jnp.isfinite(x), rounded, x.astype(jnp.bfloat16))


class RoundingState(NamedTuple):
  """State of `_stochastically_rounded`; with the seed, `step` is the key."""

  inner: PyTree
  step: jax.Array  # [] int32


# Numbers that keep these draws apart from others of the same seed.
_STREAMS = {
  owner: zlib.crc32(text) & 0x7FFFFFFF
  for owner, text in (
    ("policy", b"stochastic rounding"),
    ("critic", b"stochastic rounding of the critic"),
    ("reward", b"stochastic rounding of the reward model"),
  )
}


def _stochastically_rounded(
  inner: optax.GradientTransformation, seed: int, owner: str
) -> optax.GradientTransformation:
  """Changes the updates of bfloat16 parameters so that their sum is unbiased.

  Rounding to the nearest loses every update that is smaller than half a unit in
  the last place, 1/512 of the parameter. Stochastic rounding makes the update
  of a whole unit with the right probability. The draws of step n depend on
  (seed, n) only. Other parameters, such as adapters in float32, are updated as
  without it.
  """

  def init(params):
    return RoundingState(inner.init(params), jnp.zeros((), jnp.int32))

  def update(updates, state, params=None):
    updates, inner_state = inner.update(updates, state.inner, params)
    key = jax.random.fold_in(jax.random.key(seed), _STREAMS[owner])
    key = jax.random.fold_in(key, state.step)
    leaves, structure = jax.tree.flatten(params)
    keys = jax.tree.unflatten(
      structure, [jax.random.fold_in(key, i) for i in range(len(leaves))]
    )

    def rounded(key, old, change):
      if old.dtype != jnp.bfloat16:
        return change
      wide = old.astype(jnp.float32)
      new = round_stochastically(key, wide + change)
      # The change for which old + change is the rounded number.
      return new.astype(jnp.float32) - wide

    updates = jax.tree.map(rounded, keys, params, updates)
    return updates, RoundingState(inner_state, state.step + 1)

  return optax.GradientTransformation(init, update)


def of_model(
  config: phase.OptimizerConfig,
  num_updates: int,
  seed: int = 0,
  owner: str = "policy",
) -> optax.GradientTransformation:
  """The config's optimizer for the parameters of one model.

  Args:
    config: Optimizer of the phase, or of the critic or reward model.
    seed: Seed of the draws of stochastic rounding.
    owner: Name of the model; draws of different ones differ.
  """
  clip = optax.clip_by_global_norm(config.clip_norm)
  rule = _RULES[config.name](config, schedule(config, num_updates))
  optimizer = _in_float32(optax.chain(clip, rule))
  if config.stochastic_rounding:
    optimizer = _stochastically_rounded(optimizer, seed, owner)
  return optimizer


def of_scalars(
  config: phase.OptimizerConfig, num_updates: int
) -> optax.GradientTransformation:
  """Adam for the scalars that an algorithm trains beside the policy."""
  rate = schedule(config, num_updates)
  clip = optax.clip_by_global_norm(config.clip_norm)
  adam = optax.adam(rate, b1=config.b1, b2=config.b2, eps=config.eps)
  return optax.chain(clip, adam)
