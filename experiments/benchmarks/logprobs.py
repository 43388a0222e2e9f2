"""Memory and time of token log-probs, beside the floor of any program.

    python -m experiments.benchmarks.logprobs --rows=8 --tokens=1024 \\
        --vocab=151936 --width=896 --dense
    python -m experiments.benchmarks.logprobs --vocab=4096 --dense --measure

The program is one value and gradient with respect to states and head: in chunks
(`ops/logprobs.py`), and with --dense from whole logits. Without --measure
programs are compiled and not run.

The floor of the bytes is h, W, dh and dW, each read or written once. The floor
of the time is the four matrix products (logits, logits again, dh and dW; 8 ·
tokens · width · vocabulary operations) at the speed of a matrix product
measured in the same run.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
from absl import flags

from grpo_jax.cli import flags as flags_lib
from grpo_jax.ops import logprobs

_ROWS = flags.DEFINE_integer("rows", 8, "Completions.", 1)
_TOKENS = flags.DEFINE_integer("tokens", 1024, "Tokens of each.", 1)
_VOCAB = flags.DEFINE_integer("vocab", 151936, "Vocabulary.", 2)
_WIDTH = flags.DEFINE_integer("width", 896, "Width of the states.", 1)
_DTYPE = flags.DEFINE_enum(
  "dtype", "bfloat16", ["bfloat16", "float32"], "Of states and head."
)
_CHUNK_BYTES = flags.DEFINE_integer(
  "chunk_bytes", 2**26, "Of the float32 logits of one chunk.", 1
)
_DENSE = flags.DEFINE_bool("dense", False, "Also compile from whole logits.")
_MEASURE = flags.DEFINE_bool("measure", False, "Run, and measure seconds.")

_MIB = 2**20
_REPEATS = 5


def _head(kernel, h):  # [D, V], [..., D] -> [..., V]
  return jnp.matmul(h, kernel, preferred_element_type=jnp.float32)


def _chunked(h, kernel, tokens):
  return logprobs.token_outputs(
    functools.partial(_head, kernel),
    h,
    tokens,
    temperature=1.0,
    chunk_bytes=_CHUNK_BYTES.value,
  ).logp.mean()


def _dense(h, kernel, tokens):
  return logprobs.token_logprobs(_head(kernel, h), tokens).mean()


def _seconds(function: Callable, *arguments: jax.Array) -> float:
  """Seconds of the fastest of a few runs, after one that is not counted."""
  times = []
  for _ in range(1 + _REPEATS):
    start = time.perf_counter()
    jax.block_until_ready(function(*arguments))
    times.append(time.perf_counter() - start)
  return min(times[1:])


def _matmul_speed(h: jax.Array, kernel: jax.Array) -> float:
  """Operations per second of h · W, on a part that is large enough."""
  h = h.reshape(-1, h.shape[-1])[:2048]
  kernel = kernel[:, :16384]
  operations = 2 * h.shape[0] * h.shape[1] * kernel.shape[1]
  return operations / _seconds(jax.jit(_head), kernel, h)


def main(argv: Sequence[str]) -> int:
  """Prints the table."""
  del argv
  dtype = jnp.dtype(_DTYPE.value)
  num_tokens = _ROWS.value * _TOKENS.value
  shapes = (
    jax.ShapeDtypeStruct((_ROWS.value, _TOKENS.value, _WIDTH.value), dtype),
    jax.ShapeDtypeStruct((_WIDTH.value, _VOCAB.value), dtype),
    jax.ShapeDtypeStruct((_ROWS.value, _TOKENS.value), jnp.int32),
  )
  losses = {"chunked": _chunked} | ({"dense": _dense} if _DENSE.value else {})
  programs = {
    name: jax.jit(jax.value_and_grad(loss, (0, 1))).lower(*shapes).compile()
    for name, loss in losses.items()
  }
  operations = 8 * num_tokens * _WIDTH.value * _VOCAB.value
  floor_bytes = 2 * sum(x.size * dtype.itemsize for x in shapes[:2])
  logits_mib = 4 * num_tokens * _VOCAB.value / _MIB

  print(
    f"{_ROWS.value} x {_TOKENS.value} tokens, vocabulary {_VOCAB.value}, width"
    f" {_WIDTH.value}, {dtype.name}, {jax.devices()[0].platform}"
  )
  print(f"whole float32 logits: {logits_mib:,.1f} MiB; temp is beside inputs")
  print(f"and gradients. Chunks of {_CHUNK_BYTES.value / _MIB:,.1f} MiB.\n")

  seconds, speed = {}, 0.0
  if _MEASURE.value:
    keys = jax.random.split(jax.random.key(0), 3)
    h, kernel = (
      jax.random.normal(key, x.shape, dtype)
      for key, x in zip(keys[:2], shapes[:2], strict=True)
    )
    kernel = kernel / _WIDTH.value**0.5
    tokens = jax.random.randint(keys[2], shapes[2].shape, 0, _VOCAB.value)
    for name, program in programs.items():
      seconds[name] = _seconds(program, h, kernel, tokens)
    speed = _matmul_speed(h, kernel)

  print(f"{'':<10}{'temp MiB':>12}{'seconds':>12}{'x floor':>10}")
  for name, program in programs.items():
    temp = program.memory_analysis().temp_size_in_bytes / _MIB
    line = f"{name:<10}{temp:>12,.2f}"
    if name in seconds:
      line += f"{seconds[name]:>12.4g}"
      line += f"{seconds[name] * speed / operations:>10.2f}"
    print(line)
  line = f"{'floor':<10}{'0':>12}"
  if speed:
    line += f"{operations / speed:>12.4g}{1:>10.2f}"
  print(line)

  print(f"\nbytes of h, W, dh, dW: {floor_bytes / _MIB:,.1f} MiB")
  print(f"four matrix products: {operations / 1e12:.4g} TFLOP", end="")
  print(f" at {speed / 1e9:.4g} GFLOP/s" if speed else "", flush=True)
  return 0


if __name__ == "__main__":
  flags_lib.run(main)
