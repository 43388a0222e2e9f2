r"""Memory of the host while a checkpoint is loaded.

    python -m experiments.benchmarks.load --directory=DIR --make
    python -m experiments.benchmarks.load --directory=DIR
    XLA_FLAGS=--xla_force_host_platform_device_count=8 \
        python -m experiments.benchmarks.load --directory=DIR --split=-1

The first command writes a random Llama of 176 MiB in six bfloat16 files; any
other checkpoint will do. The others load it and print the growth of resident
memory at its peak (Linux), beside the least that it could be: the parameters,
which CPU devices keep on the host.
"""

from __future__ import annotations

import json
import pathlib
import tempfile
import time
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from absl import flags
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from experiments.benchmarks import memory
from grpo_jax.cli import flags as flags_lib
from grpo_jax.models import architecture, transformer
from grpo_jax.models.hf import families, weights
from grpo_jax.types import PyTree

_DIRECTORY = flags.DEFINE_string(
  "directory", None, "Of a checkpoint.", required=True
)
_MAKE = flags.DEFINE_bool("make", False, "Write one there; load nothing.")
_PARAM_DTYPE = flags.DEFINE_enum(
  "param_dtype", "bfloat16", ["bfloat16", "float32"], "Of the parameters."
)
_SPLIT = flags.DEFINE_integer(
  "split", None, "Axis of every leaf that is split over all devices."
)

_MIB = 2**20
# The largest leaves have 32 MiB.
SYNTHETIC = {
  "model_type": "llama",
  "hidden_size": 1024,
  "num_hidden_layers": 8,
  "num_attention_heads": 8,
  "num_key_value_heads": 4,
  "head_dim": 128,
  "intermediate_size": 2048,
  "vocab_size": 16384,
  "rms_norm_eps": 1e-6,
  "tie_word_embeddings": True,
}
SYNTHETIC_FILE_BYTES = 32 * _MIB


def make(directory: pathlib.Path) -> None:
  """Writes `SYNTHETIC` with random bits; `directory` must not exist."""
  fields, _ = families.from_config_json(SYNTHETIC)
  config = architecture.TransformerConfig(**fields, param_dtype="bfloat16")
  rng = np.random.default_rng(0)

  def random(leaf: jax.ShapeDtypeStruct) -> jax.Array:
    bits = rng.integers(2**14, size=leaf.shape, dtype=np.uint16)
    return jnp.asarray(bits.view(leaf.dtype))

  init = transformer.transformer_policy(config).init
  params = jax.tree.map(random, jax.eval_shape(init, jax.random.key(0)))
  with tempfile.TemporaryDirectory() as source:
    text = json.dumps(SYNTHETIC)
    (pathlib.Path(source) / "config.json").write_text(text, encoding="utf-8")
    weights.export(
      params, config, source, directory, max_shard_bytes=SYNTHETIC_FILE_BYTES
    )


def split(axis: int) -> Callable[[PyTree], PyTree]:
  """Shardings that split one axis of every leaf over all devices."""

  def shardings(shapes: PyTree) -> PyTree:
    mesh = jax.make_mesh(
      (jax.device_count(),), ("x",), axis_types=(AxisType.Auto,)
    )

    def one(leaf):
      spec = [None] * leaf.ndim
      spec[axis] = "x"
      return NamedSharding(mesh, PartitionSpec(*spec))

    return jax.tree.map(one, shapes)

  return shardings


def measure(
  directory: pathlib.Path, param_dtype: str, shardings: Callable | None
) -> tuple[PyTree, int, int]:
  """Loads a checkpoint, once per process.

  Returns:
    The parameters; the growth of resident memory at its peak, bytes; and the
    bytes of the parameters on this process.
  """
  jax.block_until_ready(jnp.zeros(3))  # The backend does not count.
  before = memory.resident("VmRSS")
  _, params = weights.load(
    directory, param_dtype=param_dtype, shardings=shardings
  )
  jax.block_until_ready(params)
  result = sum(
    shard.data.nbytes
    for leaf in jax.tree.leaves(params)
    for shard in leaf.addressable_shards
  )
  # Not ru_maxrss, which a process has from its parent.
  return params, memory.resident("VmHWM") - before, result


def main(argv: Sequence[str]) -> int:
  """Writes a checkpoint, or loads it and prints a line."""
  del argv
  directory = pathlib.Path(_DIRECTORY.value)
  if _MAKE.value:
    make(directory)
    return 0
  start = time.perf_counter()
  shardings = None if _SPLIT.value is None else split(_SPLIT.value)
  _, peak, result = measure(directory, _PARAM_DTYPE.value, shardings)
  seconds = time.perf_counter() - start
  sizes = [path.stat().st_size for path in directory.glob("*.safetensors")]
  where = f"{jax.device_count()} {jax.devices()[0].platform} device(s)"
  print(
    f"{_PARAM_DTYPE.value}, {where}"
    f"{'' if _SPLIT.value is None else f', axis {_SPLIT.value} split'}:"
    f" {len(sizes)} files of up to {max(sizes) / _MIB:.0f} MiB, result"
    f" {result / _MIB:.0f} MiB, peak {peak / _MIB:.0f} MiB"
    f" = {peak / (max(sizes) + result):.2f} x (file + result), {seconds:.1f} s"
  )
  return 0


if __name__ == "__main__":
  flags_lib.run(main)
