"""Kernels in 8 or 4 bits; products with them are computed in floats.

Frozen kernels are stored as codes (`quantize`). A sampler may also read trained
kernels as codes; they are rounded anew for each rollout (`rounding`).

A quantized kernel W is a dict of two arrays in W's place, a code per weight and
a scale per output channel or block:

    int8:  W ≈ scale · code,         scale = max |W| / 127 over the inputs
    nf4:   W ≈ scale · NF4[code],    scale = max |W| over 64 neighbours

Both arrays keep the axes of W, so that they are stacked over layers, sliced by
a scan and split by a mesh as W is. Flax reads the kernel as floats, one layer
at a time (see `Kernel`), and multiplies floats: memory is saved, arithmetic is
not.

| kind       | bytes per weight         | largest error                   |
|------------|--------------------------|---------------------------------|
| int8       | 1 + 4 / inputs           | 0.0040 of the channel's largest |
| nf4        | 0.5 + 4 / 64             | 0.152 of the block's largest    |
| nf4_double | 0.5 + (1 + 4 / 256) / 64 | the same, and that of the scale |

With nf4_double the scales s are themselves 8-bit codes in blocks of up to 256,
s ≈ mean + scale · code; the error is at most 0.0040 of the largest |s − mean|.

Source: Dettmers et al., "QLoRA: Efficient Finetuning of Quantized LLMs",
arXiv:2305.14314, Section 3 and Appendix E. Deviation: the codes of scales are
whole numbers here, and 8-bit floats there.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from grpo_jax.models import architecture
from grpo_jax.types import Policy, PyTree

KINDS = ("none", "int8", "nf4", "nf4_double")
# How a sampler may hold kernels that are trained; "model" is as they are.
_CODES = ("int8", "nf4", "float8")  # Names of codes in the place of a kernel.

# Axes of a kernel that a product sums over, counted from the end: experts have
# one more leading axis, and a stack of layers has another.
INPUT_AXES = {
  "qkv": (-4,),  # [D, C, R + 2, K]
  "out": (-4, -3, -2),  # [C, R, K, D]
  "query_heads": (-3,),  # [D, H, K]
  "key_heads": (-3,),  # [D, C, K]
  "query_down": (-2,),  # [D, N]
  "query_up": (-3,),  # [N, H, K]
  "kv_down": (-2,),  # [D, N]
  "kv_up": (-3,),  # [N, H, K]
  "inputs": (-3,),  # [D, G, M]
  "gate": (-2,),  # [D, F]
  "up": (-2,),  # [D, F]
  "down": (-2,),  # [F, D]
}

# Names of a transformer's stacks of layers; the dense layers of a mixture,
# layers with the gated delta rule, and the kinds of Gemma 4 and of DeepSeek-V4
# have their own.
STACKS = (
  *("layers", "dense_layers", "linear_layers"),
  *("full_layers", "shared_layers", "shared_full_layers"),
  *("sliding_layers", "heavy_layers", "sparse_layers"),
  *("hash_sliding_layers", "hash_heavy_layers", "hash_sparse_layers"),
)

# Quantiles of a normal distribution, and an exact 0.
_NF4 = np.array(
  [
    -1.0,
    -0.6961928009986877,
    -0.5250730514526367,
    -0.39491748809814453,
    -0.28444138169288635,
    -0.18477343022823334,
    -0.09105003625154495,
    0.0,
    0.07958029955625534,
    0.16093020141124725,
    0.24611230194568634,
    0.33791524171829224,
    0.44070982933044434,
    0.5626170039176941,
    0.7229568362236023,
    1.0,
  ],
  np.float32,
)
_BLOCK = 64
_BLOCK_OF_SCALES = 256


def quantize(
  params: PyTree, kind: str, modules: tuple[str, ...] = ()
) -> PyTree:
  """Converts the kernels of the layers to codes and scales.

  Args:
    params: Parameters of a transformer: {"embed": …, "layers": …, …}. They must
      be frozen: a `lora` policy calls this on its base. Kernels that are
      quantized already stay as they are.
    kind: "int8", "nf4" or "nf4_double", or "none" for no change.
    modules: Names of modules whose kernels are quantized; empty: all.
      Embeddings, head, norms and biases stay floats.

  Returns:
    The tree with {"int8" or "nf4": codes, "scale": scales} for each kernel.

  Raises:
    ValueError: Unknown kind; modules that the layers do not have; a kernel
      whose last axis is odd, as nf4 packs two weights into a byte.
  """
  if kind not in KINDS:
    raise ValueError(
      f"quantize: kind {kind!r} is not known; use one of {', '.join(KINDS)}."
    )
  if kind == "none":
    return params
  names = set()

  def convert(path, leaf):
    name = _module(path)
    if name is None or (modules and name not in modules):
      return leaf
    names.add(name)
    return leaf if is_quantized(leaf) else quantize_leaf(path, leaf, kind=kind)

  stacks = {
    name: jax.tree_util.tree_map_with_path(
      convert, params[name], is_leaf=is_quantized
    )
    for name in STACKS
    if name in params
  }
  if missing := sorted({*modules} - names):
    raise ValueError(
      f"quantize: no kernel of {', '.join(missing)} in the layers; known are"
      f" {', '.join(INPUT_AXES)}."
    )
  return {**params, **stacks}


def quantize_leaf(path: tuple, leaf: jax.Array, *, kind: str) -> PyTree:
  """Converts one leaf of a transformer, if it is a kernel of the layers.

  Args:
    path: Path of the leaf, as `jax.tree_util` gives it.
    leaf: The leaf; it is returned unchanged if it is not such a kernel.
    kind: "int8", "nf4" or "nf4_double", or "none" for no change.

  Raises:
    ValueError: The kernel's last axis is odd, as nf4 packs two weights into a
      byte.
  """
  name = _module(path)
  if name is None or kind == "none":
    return leaf
  if kind != "int8" and leaf.shape[-1] % 2:
    raise ValueError(
      f"quantize: {name} is {list(leaf.shape)}, and {kind} packs two weights of"
      " the last axis into a byte; use int8, or leave the module out."
    )
  # Layer by layer, and not in a loop of XLA: XLA first makes float32 arrays of
  # all layers, which would be larger than the model.
  encode = functools.partial(_encode, kind=kind, axes=INPUT_AXES[name])
  return jax.tree.map(lambda *codes: jnp.stack(codes), *map(encode, leaf))


def _module(path) -> str | None:
  """The module whose kernel lies at `path`; None for biases, norms, …"""
  names = [key.key for key in path]
  if names[-1] == "kernel":
    names = names[:-1]
  elif len(names) < 2 or names[-2] != "experts":
    return None
  return names[-1] if names[-1] in INPUT_AXES else None


@functools.partial(jax.jit, static_argnames=("kind", "axes"))
def _encode(kernel: jax.Array, *, kind: str, axes: tuple[int, ...]) -> PyTree:
  if kind == "int8":
    return to_int8(kernel, axes)
  packed = _to_nf4(kernel)
  if kind == "nf4_double":
    packed["scale"] = _to_codes(packed["scale"])
  return packed


def to_int8(x: jax.Array, axes: tuple[int, ...]) -> PyTree:
  """Int8 codes, and a scale for all codes along `axes` (1 long in `scale`)."""
  wide = x.astype(jnp.float32)
  scale = abs(wide).max(axis=axes, keepdims=True) / 127
  codes = jnp.round(wide / jnp.where(scale > 0, scale, 1))
  return {"int8": codes.astype(jnp.int8), "scale": scale}


def to_float8(x: jax.Array, axes: tuple[int, ...]) -> PyTree:
  """Float8_e4m3fn codes, of at most 448, and scales as in `to_int8`."""
  wide = x.astype(jnp.float32)
  largest = float(jnp.finfo(jnp.float8_e4m3fn).max)
  scale = abs(wide).max(axis=axes, keepdims=True) / largest
  codes = wide / jnp.where(scale > 0, scale, 1)
  return {"float8": codes.astype(jnp.float8_e4m3fn), "scale": scale}


def _to_nf4(kernel: jax.Array) -> PyTree:
  # Blocks lie along the last axis, whose entries are adjacent in memory. The
  # size is the largest that divides the axis; 64 in published models.
  size = math.gcd(kernel.shape[-1], _BLOCK)
  wide = kernel.astype(jnp.float32)
  blocks = wide.reshape(*wide.shape[:-1], -1, size)
  scale = abs(blocks).max(axis=-1)  # [..., last / size]
  relative = blocks / jnp.where(scale > 0, scale, 1)[..., None]
  middles = (_NF4[1:] + _NF4[:-1]) / 2
  codes = jnp.searchsorted(middles, relative).astype(jnp.uint8)
  codes = codes.reshape(kernel.shape)
  packed = codes[..., ::2] << 4 | codes[..., 1::2]  # [..., last / 2]
  return {"nf4": packed, "scale": scale}


def _to_codes(scale: jax.Array) -> PyTree:
  """Converts scales [..., N] to 8-bit codes of their differences to the mean.

  A block has up to 256 entries along the axes before the last one. A mesh may
  split the codes; the scales of the blocks are small, and on every device.
  """
  mean = scale.mean()
  rows = (scale - mean).reshape(-1, scale.shape[-1])
  size = math.gcd(len(rows), _BLOCK_OF_SCALES)
  codes = to_int8(rows.reshape(-1, size, scale.shape[-1]), (1,))
  return {
    "int8": codes["int8"].reshape(scale.shape),
    "scale": codes["scale"][:, 0],  # [rows / size, N]
    "mean": mean,
  }


def _scales(codes: PyTree) -> jax.Array:  # [..., N]
  """Scales from their codes: the reverse of `_to_codes`."""
  shape, scale = codes["int8"].shape, codes["scale"]
  rows = codes["int8"].reshape(len(scale), -1, shape[-1]).astype(scale.dtype)
  return (rows * scale[:, None] + codes["mean"]).reshape(shape)


def abstract(kernel: PyTree) -> jax.ShapeDtypeStruct:
  """Shape and dtype of a kernel, quantized or not."""
  return jax.eval_shape(lambda x: _values(x) if is_quantized(x) else x, kernel)


def is_quantized(node: Any) -> bool:
  """Returns True if a node of a parameter tree is a quantized kernel."""
  return isinstance(node, dict) and any(name in node for name in _CODES)


def dequantize(params: PyTree, dtype: Any = jnp.float32) -> PyTree:
  """Converts all quantized kernels of a tree to floats of this dtype."""
  return jax.tree.map(
    lambda node: _values(node).astype(dtype) if is_quantized(node) else node,
    params,
    is_leaf=is_quantized,
  )


def _values(kernel: PyTree) -> jax.Array:
  scale = kernel["scale"]
  for name in ("int8", "float8"):
    if name in kernel:
      return kernel[name].astype(scale.dtype) * scale
  packed = kernel["nf4"]
  if isinstance(scale, dict):
    # A stack has a mean for each layer, so that its codes have one axis more.
    num_stacked = scale["mean"].ndim
    of_layer = functools.reduce(
      lambda f, _: jax.vmap(f), range(num_stacked), _scales
    )
    scale = of_layer(scale)
  codes = jnp.stack([packed >> 4, packed & 15], axis=-1)  # [..., last / 2, 2]
  values = jnp.asarray(_NF4)[codes]
  blocks = values.reshape(*scale.shape, -1) * scale[..., None]
  return blocks.reshape(*packed.shape[:-1], -1)


class Kernel(flax.struct.PyTreeNode, nn.meta.AxisMetadata):
  """A quantized kernel that Flax unpacks when a module reads its parameter.

  `Module.param` unboxes every `AxisMetadata`. So a scan slices the codes, and
  only the kernels of one layer exist as floats. Without `remat` the backward
  pass keeps the floats of every layer, as it keeps activations.
  """

  codes: PyTree

  def unbox(self) -> jax.Array:
    """The kernel in float32."""
    return _values(self.codes)

  def replace_boxed(self, val):
    """Required by Flax; quantized kernels are never written."""
    raise NotImplementedError("a quantized kernel is frozen")

  def add_axis(self, index, params):
    """Required by Flax; does nothing, because axes have no names here."""
    del index, params
    return self

  remove_axis = add_axis


def boxed(params: PyTree) -> PyTree:
  """The tree with each quantized kernel as a `Kernel`, for Flax to read."""
  return jax.tree.map(
    lambda node: Kernel(node) if is_quantized(node) else node,
    params,
    is_leaf=is_quantized,
  )


def unpacking(policy: Policy) -> Policy:
  """A policy that reads quantized kernels of its own; it cannot be trained.

  Args:
    policy: A policy of `transformer.py`, for whose parameters `quantize` was
      called on "trained".
  """
  return _reading(
    policy, lambda params: {**params, "trained": boxed(params["trained"])}
  )


def rounding(
  policy: Policy,
  kind: str,
  place: Callable[[PyTree], PyTree] = lambda codes: codes,
) -> Policy:
  """A policy that rounds its kernels to 8 bits before it reads them.

  The compiled program makes codes and scales from the current parameters, once
  for all tokens, and a decode step reads the codes. With adapters the kernels
  of the base are rounded, and the adapters are read as they are. Embeddings,
  head, norms, biases, routers and a vision tower stay floats.

  Args:
    policy: A policy of `transformer.py` or `policies/lora.py` whose kernels are
      not quantized.
    kind: "int8" or "float8_e4m3fn", or "model" for the policy itself.
    place: Function that shards codes and scales as the mesh shards the kernels;
      it is called inside jit.

  Raises:
    ValueError: Unknown kind.

  Source: Liu et al., "FlashRL: 8Bit Rollouts, Full Power RL", 2025, which
  rounds the sampler alone and corrects for the mismatch.
  """
  if kind not in architecture.SAMPLED_DTYPES:
    raise ValueError(
      f"rounding: kind {kind!r} is not known; use one of"
      f" {', '.join(architecture.SAMPLED_DTYPES)}."
    )
  if kind == "model":
    return policy
  encode = to_int8 if kind == "int8" else to_float8

  def convert(path, leaf):
    name = _module(path)
    return leaf if name is None else encode(leaf, INPUT_AXES[name])

  def codes(params):
    stacks = {name: params[name] for name in STACKS if name in params}
    stacks = place(jax.tree_util.tree_map_with_path(convert, stacks))
    if kind != "int8":
      # A compiler may skip a rounding of floats if it widens the result.
      stacks = lax.optimization_barrier(stacks)
    return {**params, **stacks}

  def rounded(params):
    with jax.named_scope("rounding"):
      if "base" in params["frozen"]:
        frozen = params["frozen"]
        return {**params, "frozen": {**frozen, "base": codes(frozen["base"])}}
      return {**params, "trained": boxed(codes(params["trained"]))}

  return _reading(policy, rounded)


def _reading(policy: Policy, unpack: Callable[[PyTree], PyTree]) -> Policy:
  """The policy whose functions read `unpack(params)` instead of `params`."""

  def unpacked(function):
    return lambda params, *args, **kwargs: function(
      unpack(params), *args, **kwargs
    )

  def step(function):
    def call(weights, tokens, *state):
      # Ties the kernels to the step: else all are unpacked before the loop; see
      # `lora`.
      weights, tokens = lax.optimization_barrier((weights, tokens))
      return function(weights, tokens, *state)

    return call

  return dataclasses.replace(
    policy,
    hidden=unpacked(policy.hidden),
    prefix=unpacked(policy.prefix),
    prefill=unpacked(policy.prefill),
    weights=unpacked(policy.weights),
    decode=step(policy.decode),
    extend=step(policy.extend),
  )
