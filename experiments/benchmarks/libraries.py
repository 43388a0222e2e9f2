"""qwix and tokamax beside the code here that computes the same.

    pip install qwix==0.1.8 tokamax==0.0.12
    python -m experiments.benchmarks.libraries
    python -m experiments.benchmarks.libraries --topology=v5e:2x2

The first command runs each row in float32 on this machine: a value and its
gradient, ours and theirs in turns. Differences are relative to the largest
number of ours; times are those of the fastest turn. The second compiles the
rows in bfloat16 for a TPU that is not there, and asks tokamax for its TPU
kernels. Of operations and bytes within a kernel the compiler knows what the
kernel says, which may be nothing. A row that fails says why.
"""

from __future__ import annotations

import functools
import importlib.util
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
from absl import flags
from jax import lax

from experiments.pods import chips
from experiments.pods import flags as pod_flags
from grpo_jax.cli import flags as flags_lib
from grpo_jax.models import architecture, attention, blocks, experts
from grpo_jax.models import quantization as codes_lib
from grpo_jax.ops import logprobs
from grpo_jax.training.runtime import sharding

_SECONDS = flags.DEFINE_float(
  "seconds", 5.0, "Of each row, three turns at least."
)

# Name, ours, theirs, (key) -> inputs, and how many of them have a gradient.
Row = tuple[str, Callable, Callable, Callable[[jax.Array], tuple], int]


def _normal(key, dtype, *shapes):
  """Random arrays by which a product keeps its variance."""
  return tuple(
    jax.random.normal(jax.random.fold_in(key, i), s, dtype) / s[-2] ** 0.5
    for i, s in enumerate(shapes)
  )


def _quantized(name: str, size: tuple[int, int], dtype: Any) -> Row:
  """Eight states times a frozen kernel, as in a decode step."""
  import qwix

  is_nf4 = name.startswith("nf4")
  qtype = "nf4" if is_nf4 else "int8"
  path = tuple(map(jax.tree_util.DictKey, ("gate", "kernel")))
  axes = {"channelwise_axes": (1,)}
  if is_nf4:
    axes = {"channelwise_axes": (0,), "tiled_axes": {1: 64}}

  def inputs(key):
    x, kernel = _normal(key, dtype, (8, size[0]), size)
    codes = codes_lib.quantize_leaf(path, kernel[None], kind=qtype)
    codes = jax.tree.map(lambda leaf: leaf[0], codes)
    return x, codes, qwix.quantize(kernel, qtype, **axes)

  def theirs(x, _, codes):
    if "states" in name:
      x = qwix.quantize(x, qtype, channelwise_axes=(0,))
    return qwix.dot_general(x, codes, (((1,), (0,)), ((), ())))

  def ours(x, codes, _):
    return x @ codes_lib.dequantize([codes], x.dtype)[0]

  return name, ours, theirs, inputs, 1


def _attention(
  name: str, sizes: tuple[int, ...], dtype: Any, kernel: str | None
) -> Row:
  """Causal attention of B rows, L slots, H and C heads of width K."""
  import tokamax

  num_rows, length, num_heads, num_kv_heads, width = sizes
  window, padded = 128 if "window" in name else None, "padded" in name
  config = architecture.TransformerConfig(
    vocab_size=2,
    width=num_heads * width,
    num_layers=1,
    num_heads=num_heads,
    num_kv_heads=num_kv_heads,
    head_dim=width,
    sliding_window=window,
    sliding_layers=(window is not None,),
    dtype=jnp.dtype(dtype).name,
  )

  def inputs(key):
    num_empty = jnp.arange(num_rows) * (length // (2 * num_rows)) * padded
    heads = num_heads, num_kv_heads, num_kv_heads
    q_k_v = _normal(key, dtype, *((num_rows, length, n, width) for n in heads))
    return *q_k_v, jnp.arange(length) >= num_empty[:, None]

  def ours(q, k, v, mask):
    of_layer = attention.over_sequences(config, mask, jnp.cumsum(mask, axis=1))
    y = of_layer(jnp.asarray(window is not None))(
      q.reshape(num_rows, length, num_kv_heads, -1, width),
      jnp.moveaxis(k, 1, -1),
      jnp.moveaxis(v, 1, 2),
    )
    return jnp.where(mask[:, :, None, None], y.reshape(q.shape), 0)

  def theirs(q, k, v, mask):
    y = tokamax.dot_product_attention(
      *(q, k, v),
      mask=mask[:, None, None] if padded else None,
      is_causal=True,
      local_window_size=(window - 1, 0) if window else None,
      implementation=kernel,
    )
    return jnp.where(mask[:, :, None, None], y, 0)

  return name, ours, theirs, inputs, 3


def _experts(
  name: str, sizes: tuple[int, ...], dtype: Any, kernel: str | None
) -> Row:
  """N tokens, E experts, k a token, of widths D and F; a ragged product."""
  import tokamax

  num_tokens, num_experts, chosen, width, inner = sizes
  gated = blocks.gated(architecture.TransformerConfig(vocab_size=2))
  into, out = (num_experts, width, inner), (num_experts, inner, width)

  def inputs(key):
    logits = jax.random.normal(key, (num_tokens, num_experts))
    routed = experts.route(logits, chosen, True)
    arrays = _normal(key, dtype, (num_tokens, width), into, into, out)
    return *arrays, routed.weights.astype(dtype), routed.ids

  def ours(x, gate, up, down, weights, ids):
    return experts.mix(x, ids, weights, experts.Kernels(gate, up, down), gated)

  def theirs(x, gate, up, down, weights, ids):
    product = functools.partial(tokamax.ragged_dot, implementation=kernel)
    with mock.patch.object(lax, "ragged_dot", product):
      kernels = experts.Kernels(gate, up, down)
      return experts.ragged(x, ids, weights, kernels, gated)

  return name, ours, theirs, inputs, 5


def _gated(name: str, sizes: tuple[int, int, int], dtype: Any) -> Row:
  """The gated linear unit of an MLP; tokamax has no TPU kernel for it."""
  import tokamax

  unit = functools.partial(
    tokamax.gated_linear_unit, activation=jax.nn.silu, implementation="xla"
  )
  of_mlp = blocks.gated(architecture.TransformerConfig(vocab_size=2))
  shapes = sizes[:2], sizes[1:], sizes[1:]
  return (
    name,
    lambda x, gate, up: of_mlp(x @ gate, x @ up),
    lambda x, gate, up: unit(x, (gate, up)),
    lambda key: _normal(key, dtype, *shapes),
    3,
  )


def _head(
  name: str, sizes: tuple[int, int, int], dtype: Any, kernel: str | None
) -> Row:
  """The sum of the log-probs of tokens, from states and a head."""
  import tokamax

  def inputs(key):
    tokens = jax.random.randint(key, sizes[:1], 0, sizes[2])
    return *_normal(key, dtype, sizes[:2], sizes[1:]), tokens

  def ours(h, head, tokens):
    rows = h.reshape(8, -1, sizes[1]), tokens.reshape(8, -1)
    outputs = logprobs.token_outputs(lambda h: h @ head, *rows, temperature=1.0)
    return outputs.logp.sum()

  def theirs(h, head, tokens):
    loss = tokamax.linear_softmax_cross_entropy_loss
    return -loss(h, tokens, head, implementation=kernel)

  return name, ours, theirs, inputs, 2


def rows(on_tpu: bool) -> Iterator[Row]:
  """The rows of the tables, at sizes of SmolLM2-135M and of a 7B model."""
  dtype, kernel = (jnp.bfloat16, "mosaic") if on_tpu else (jnp.float32, None)
  small, large = (576, 1536), (3584, 18944)
  yield _quantized("int8 kernel, 135M", small, dtype)
  yield _quantized("int8 kernel and states, 135M", small, dtype)
  yield _quantized("nf4 kernel, 135M", small, dtype)
  yield _quantized("int8 kernel, 7B", large, dtype)
  if not on_tpu:  # The TPU compiler takes more than five minutes.
    yield _quantized("nf4 kernel, 7B", large, dtype)
  for kind in ("", ", padded rows", ", window of 128"):
    heads = (8, 384, 9, 3, 64)
    yield _attention(f"attention{kind}, 135M", heads, dtype, kernel)
  yield _attention("attention, 7B", (1, 1024, 28, 4, 128), dtype, kernel)
  yield _experts("8 experts", (2048, 8, 2, 256, 128), dtype, kernel)
  yield _gated("gated linear unit, 135M", (1024, *small), dtype)
  yield _gated("gated linear unit, 7B", (128, *large), dtype)
  of_head = "mosaic_tpu" if on_tpu else None
  yield _head("head, 135M", (1024, 576, 49152), dtype, of_head)


def _program(function: Callable, num_trained: int) -> Any:
  """The function y under jit: (Σ y² / 2, y), and the gradients of the sum."""

  def loss(*inputs):
    y = function(*inputs)
    return jnp.square(y.astype(jnp.float32)).sum() / 2, y

  return jax.jit(jax.value_and_grad(loss, range(num_trained), has_aux=True))


def difference(ours: Any, theirs: Any) -> float:
  """The largest difference in a leaf, relative to the leaf's largest number."""
  pairs = zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True)
  return max(float(abs(a - b).max() / abs(a).max()) for a, b in pairs)


def measured(row: Row, seconds: float) -> list[str]:
  """Differences of values and of gradients, milliseconds and their ratio."""
  _, ours, theirs, make_inputs, num_trained = row
  inputs = jax.jit(make_inputs)(jax.random.key(0))
  programs = [_program(f, num_trained) for f in (ours, theirs)]
  ((_, mine), my_gradients), ((_, other), gradients) = (
    program(*inputs) for program in programs
  )
  times: tuple[list[float], ...] = ([], [])
  end = time.perf_counter() + seconds
  while len(times[1]) < 3 or time.perf_counter() < end:
    for program, of_program in zip(programs, times, strict=True):
      start = time.perf_counter()
      jax.block_until_ready(program(*inputs))
      of_program.append(time.perf_counter() - start)
  fastest = [min(of_program) for of_program in times]
  return [
    f"{difference(mine, other):.0e}",
    f"{difference(my_gradients, gradients):.0e}",
    *(f"{1e3 * x:.3g}" for x in fastest),
    f"{fastest[1] / fastest[0]:.2f}",
  ]


def compiled(row: Row, mesh: jax.sharding.Mesh) -> list[str]:
  """Kernels, GFLOP, MB and MiB of temporaries, of ours and of theirs."""
  _, ours, theirs, make_inputs, num_trained = row
  inputs = jax.eval_shape(make_inputs, jax.random.key(0))
  inputs = sharding.abstract(inputs, sharding.replicated(mesh))
  cells = []
  for function in (ours, theirs):
    # tokamax looks at the default device, and not at those of the mesh.
    with jax.set_mesh(mesh), jax.default_device(mesh.devices.flat[0]):
      program = _program(function, num_trained).lower(*inputs).compile()
    costs = program.cost_analysis()
    cells += [
      str(program.as_text().count('custom_call_target="tpu_custom_call"')),
      f"{costs.get('flops', 0) / 1e9:.3g}",
      f"{costs['bytes accessed'] / 1e6:.4g}",
      f"{program.memory_analysis().temp_size_in_bytes / 2**20:.3g}",
    ]
  return cells


def lines(
  of: Iterable[Row], cells_of: Callable[[Row], list[str]]
) -> Iterator[str]:
  """Lines of the table; a row that fails has its error."""
  for row in of:
    try:
      cells = cells_of(row)
    except Exception as error:
      cells = [f"fails: {type(error).__name__}: {str(error).splitlines()[0]}"]
    yield "| " + " | ".join([row[0], *cells]) + " |"


def main(argv: Sequence[str]) -> int:
  """Prints the table."""
  del argv
  for name in ("qwix", "tokamax"):
    if importlib.util.find_spec(name) is None:
      raise ImportError(
        f"{name} is not installed; run `pip install qwix==0.1.8"
        " tokamax==0.0.12`."
      )
  logging.getLogger("absl").setLevel(logging.ERROR)  # Not tokamax's warnings.
  header = ["values", "gradients", "ours, ms", "theirs, ms", "theirs / ours"]
  cells_of = functools.partial(measured, seconds=_SECONDS.value)
  if pod_flags.TOPOLOGY.value:
    # What is compiled for devices elsewhere is never read.
    jax.config.update("jax_enable_compilation_cache", False)
    devices = chips.devices(chips.parse(pod_flags.TOPOLOGY.value))[:1]
    mesh = sharding.make_mesh(devices=devices)
    cells_of = functools.partial(compiled, mesh=mesh)
    header = [
      f"{who}, {what}"
      for who in ("ours", "theirs")
      for what in ("kernels", "GFLOP", "MB", "MiB")
    ]
  print("| row | " + " | ".join(header) + " |")
  print("|---" * (len(header) + 1) + "|", flush=True)
  for line in lines(rows(bool(pod_flags.TOPOLOGY.value)), cells_of):
    print(line, flush=True)
  return 0


if __name__ == "__main__":
  flags_lib.run(main)
