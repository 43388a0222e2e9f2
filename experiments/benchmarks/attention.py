"""Memory, operations and time of a training pass by form of attention.

    python -m experiments.benchmarks.attention --shape=gemma2 --measure
    JAX_PLATFORMS=cpu python -m experiments.benchmarks.attention \
        --topology=v5e:2x2 --forms=plain,splash --rows=8 --tokens=2048

A pass is one value and gradient of the last hidden states with respect to all
parameters in bfloat16. The second command compiles it for TPUs that are not
there, with the rows split over them. It needs the release of libtpu that
`pip install "jax[tpu]"` takes for the installed JAX. Without --measure programs
are compiled and not run.

Bytes and operations are the compiler's, for one device. The compiler counts the
body of a loop once, which is one layer forward and one backward. It does not
count the inside of a kernel.
"""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Sequence

import jax
import jax.numpy as jnp
from absl import flags
from jax.sharding import Mesh

from experiments.pods import chips
from experiments.pods import flags as pod_flags
from grpo_jax.cli import flags as flags_lib
from grpo_jax.models import architecture, transformer
from grpo_jax.training.runtime import sharding

_LAYERS = 4
# As wide as the smallest of the family.
_SHAPES = {
  "qwen3": {
    "width": 1024,
    "num_heads": 16,
    "num_kv_heads": 8,
    "head_dim": 128,
    "mlp_width": 3072,
    "qk_norm": "head",
  },
  "gemma2": {
    "width": 2304,
    "num_heads": 8,
    "num_kv_heads": 4,
    "head_dim": 256,
    "mlp_width": 9216,
    "post_norm": True,
    "activation": "gelu",
    "attention_softcap": 50.0,
    "sliding_window": 1024,  # Of 4096, to show in shorter sequences.
    "sliding_layers": (True, False) * (_LAYERS // 2),
  },
}
_SHAPE = flags.DEFINE_enum("shape", "qwen3", list(_SHAPES), "Of the model.")
_FORMS = flags.DEFINE_list("forms", "plain", "Of attention, to compare.")
_ROWS = flags.DEFINE_integer("rows", 8, "Sequences on all devices.", 1)
_TOKENS = flags.DEFINE_integer("tokens", 2048, "Slots of each.", 2)
_REMAT = flags.DEFINE_enum(
  "remat",
  "none",
  ["none", "dots", "full"],
  "What is computed twice.",
)
_MEASURE = flags.DEFINE_bool("measure", False, "Run, and measure seconds.")

_MIB = 2**20
_REPEATS = 3


def _make_mesh() -> Mesh:
  if not pod_flags.TOPOLOGY.value:
    return sharding.make_mesh(None)
  if _MEASURE.value:
    raise ValueError(
      f"--measure with --topology={pod_flags.TOPOLOGY.value}: what is compiled"
      " for TPUs that are not there cannot run; give one of the two."
    )
  devices = chips.devices(chips.parse(pod_flags.TOPOLOGY.value))
  return sharding.make_mesh(devices=devices)


def _loss(config, params, tokens):  # [B, L]
  half = tokens.shape[1] // 2
  mask = jnp.ones_like(tokens, bool)
  h, _ = transformer.transformer_policy(config).hidden(
    params,
    tokens[:, :half],
    mask[:, :half],
    tokens[:, half:],
    mask[:, half:],
    jnp.arange(len(tokens)),
  )
  return jnp.square(h.astype(jnp.float32)).mean()


def _compile(config, mesh, tokens):
  """The compiled value and gradient, and its abstract parameters."""
  params = jax.eval_shape(
    transformer.transformer_policy(config).init, jax.random.key(0)
  )
  params = sharding.abstract(params, sharding.replicated(mesh))
  function = jax.value_and_grad(functools.partial(_loss, config))
  with jax.set_mesh(mesh):
    return jax.jit(function).lower(params, tokens).compile(), params


def _seconds(program, params, tokens) -> float:
  """Seconds of the fastest of a few runs, after one that is not counted."""
  params, tokens = jax.tree.map(
    lambda x: jax.device_put(jnp.zeros(x.shape, x.dtype), x.sharding),
    (params, tokens),
  )
  times = []
  for _ in range(1 + _REPEATS):
    start = time.perf_counter()
    jax.block_until_ready(program(params, tokens))
    times.append(time.perf_counter() - start)
  return min(times[1:])


def main(argv: Sequence[str]) -> int:
  """Prints the table."""
  del argv
  mesh = _make_mesh()
  config = architecture.TransformerConfig(
    vocab_size=4096,
    num_layers=_LAYERS,
    dtype="bfloat16",
    remat=_REMAT.value,
    **_SHAPES[_SHAPE.value],
  )
  tokens = sharding.abstract(
    jax.ShapeDtypeStruct((_ROWS.value, _TOKENS.value), jnp.int32),
    sharding.by_rows(mesh),
  )
  device = mesh.devices.flat[0]
  print(
    f"{_SHAPE.value}, {_LAYERS} layers, {_ROWS.value} x {_TOKENS.value} tokens,"
    f" {mesh.size} x {device.device_kind}"
  )
  print("temp is beside arguments and gradients\n")
  print(
    f"{'':<8}{'compile s':>11}{'temp MiB':>12}{'GFLOP':>11}{'GB':>9}"
    f"{'seconds':>11}"
  )
  for form in _FORMS.value:
    start = time.perf_counter()
    program, params = _compile(
      dataclasses.replace(config, attention=form), mesh, tokens
    )
    line = f"{form:<8}{time.perf_counter() - start:>11.1f}"
    costs = program.cost_analysis()
    memory = program.memory_analysis().temp_size_in_bytes / _MIB
    line += f"{memory:>12,.1f}{costs['flops'] / 1e9:>11,.1f}"
    line += f"{costs['bytes accessed'] / 1e9:>9,.2f}"
    if _MEASURE.value:
      line += f"{_seconds(program, params, tokens):>11.4g}"
    print(line, flush=True)
  return 0


if __name__ == "__main__":
  flags_lib.run(main)
