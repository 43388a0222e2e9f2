"""States with every kind of leaf a run may save, in any bits, on any mesh."""

from __future__ import annotations

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from grpo_jax.types import PyTree, TrainState

# Sizes of the axes data, fsdp and tensor.
MESHES = ((1, 1, 1), (8, 1, 1), (1, 8, 1), (2, 2, 2), (1, 2, 4))


def make_mesh(sizes: tuple[int, ...]) -> Mesh:
  """A mesh over the first devices."""
  devices = jax.devices()[: int(np.prod(sizes))]
  names = ("data", "fsdp", "tensor")
  kinds = (AxisType.Auto,) * len(names)
  return jax.make_mesh(sizes, names, axis_types=kinds, devices=devices)


def of_a_run() -> TrainState:
  """Shapes of all that the state of a run can hold.

  These are adapters over a packed base, their optimizer, a reference, an
  average and rollouts drawn ahead, as the phases of a run make them; and the
  state of an algorithm and a bfloat16 array, which that run lacks.
  """
  from grpo_jax.step import step
  from grpo_jax.training.phases import checkpointed
  from tests.experiments import tiny_config
  from tests.training import tiny

  config = tiny_config.get_config("on_host")
  config.model.lora_rank = 8
  config.model.quantization = "nf4"
  config.model.width = 64
  config.model.mlp_width = 128
  run = tiny.assembled(config)
  start = checkpointed.abstract_start(run.policy, run.config.seed)
  state = checkpointed.abstract_state(run.phases, start)
  phase, prompts = run.phases[-1].phase, run.phases[-1].prompts
  drawn = jax.eval_shape(
    functools.partial(step.rollout_stage, phase=phase), state, prompts
  )
  run.problem.close()
  return dataclasses.replace(
    state,
    queue=(drawn, drawn),
    algorithm_state={
      "algorithm": {"baseline": jax.ShapeDtypeStruct((), jnp.float32)},
      "coefficients": {"wide": jax.ShapeDtypeStruct((16,), jnp.bfloat16)},
    },
  )


def small() -> PyTree:
  """Shapes of a few leaves of different kinds."""
  shapes = {
    "matrix": ((16, 24), jnp.float32),
    "stack": ((3, 8, 8, 5), jnp.bfloat16),
    "packed": ((2, 64, 32), jnp.uint8),
    "rows": ((8, 7), bool),
    "odd": ((7,), jnp.float32),
    "count": ((), jnp.int32),
  }
  leaves = {k: jax.ShapeDtypeStruct(*v) for k, v in shapes.items()}
  return leaves | {"key": jax.eval_shape(lambda: jax.random.key(0))}


def shardings(shapes: PyTree, mesh: Mesh) -> PyTree:
  """Shardings with every mesh axis on a dimension that it divides, if possible.

  A run splits its state otherwise; here are as many ways as possible.
  """

  def place(index: int, leaf: jax.ShapeDtypeStruct) -> NamedSharding:
    free = list(range(leaf.ndim))
    free = free[index % 2 :: 2] + free[(index + 1) % 2 :: 2]
    names: list[str | None] = [None] * leaf.ndim
    for name, size in mesh.shape.items():
      fits = [i for i in free if size > 1 and leaf.shape[i] % size == 0]
      if fits:
        names[fits[-1]] = name
        free.remove(fits[-1])
    return NamedSharding(mesh, P(*names))

  leaves, structure = jax.tree.flatten(shapes)
  return structure.unflatten(place(i, leaf) for i, leaf in enumerate(leaves))


def placed(shapes: PyTree, where: PyTree) -> PyTree:
  """Shapes with their shardings, as `Checkpoints.restore` takes them."""
  return jax.tree.map(
    lambda x, place: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=place),
    shapes,
    where,
  )


def _bits(index: int, leaf: jax.ShapeDtypeStruct, seed: int) -> np.ndarray:
  """Random bits, those of subnormal numbers and of negative zeros among them.

  NaNs are left out: a program that moves one may change its bits.
  """
  if jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
    leaf = jax.eval_shape(jax.random.key_data, leaf)
  dtype = np.dtype(leaf.dtype)
  size = int(np.prod(leaf.shape)) * dtype.itemsize
  drawn = np.random.default_rng((seed, index)).integers(
    0, 2 if dtype.kind == "b" else 256, size, np.uint8
  )
  bits = np.frombuffer(drawn.tobytes(), dtype).reshape(leaf.shape)
  with np.errstate(invalid="ignore"):
    return np.where(bits == bits, bits, np.ones((), dtype))


def make(shapes: PyTree, where: PyTree, seed: int = 0) -> PyTree:
  """Makes arrays of these shapes and shardings, each process its own part."""

  def array(index: int, leaf, sharding: NamedSharding) -> jax.Array:
    bits = _bits(index, leaf, seed)
    if bits.dtype != leaf.dtype:  # Keys, which are never split here.
      impl = jax.random.key_impl(jnp.empty((0,), leaf.dtype))
      whole = NamedSharding(sharding.mesh, P())
      data = jax.make_array_from_callback(bits.shape, whole, bits.__getitem__)
      return jax.random.wrap_key_data(data, impl=impl)
    return jax.make_array_from_callback(leaf.shape, sharding, bits.__getitem__)

  leaves, structure = jax.tree.flatten(shapes)
  places = structure.flatten_up_to(where)
  return structure.unflatten(
    array(i, leaf, place)
    for i, (leaf, place) in enumerate(zip(leaves, places, strict=True))
  )


def assert_made(state: PyTree, shapes: PyTree, where: PyTree, seed: int = 0):
  """Asserts that leaves have the bits of `make`, on the devices of `where`."""
  assert jax.tree.structure(state) == jax.tree.structure(shapes)
  leaves = jax.tree_util.tree_leaves_with_path(state)
  places = jax.tree.leaves(where)
  for index, ((path, leaf), wanted, place) in enumerate(
    zip(leaves, jax.tree.leaves(shapes), places, strict=True)
  ):
    name = jax.tree_util.keystr(path)
    assert (leaf.shape, leaf.dtype) == (wanted.shape, wanted.dtype), name
    if jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
      leaf = jax.random.key_data(leaf)
    else:
      assert leaf.sharding.is_equivalent_to(place, leaf.ndim), name
    bits = _bits(index, wanted, seed)
    assert leaf.addressable_shards, name
    for shard in leaf.addressable_shards:
      got = np.asarray(shard.data)
      assert got.tobytes() == bits[shard.index].tobytes(), name
