"""Shardings of arrays on a mesh: rows, parameters, caches.

| axis     | rows of a batch | parameters                                      |
|----------|-----------------|-------------------------------------------------|
| `data`   | split           | a copy on each; the axis that slices may share  |
| `fsdp`   | split           | split; gathered layer by layer where they serve |
| `expert` | split           | experts: each device has its own; others: fsdp  |
| `tensor` | on all          | split by heads, MLP width, vocabulary           |

The models contain no shardings. `RULES` gives the partition of a parameter by
its path, and so that of other trees with the same paths, such as moments and
averages. All axes are Auto: the compiler propagates shardings; JAX's default,
Explicit, would reject mixed operands. `jax.jit` with shardings replaces the
former `pjit`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from jax import lax
from jax.experimental import mesh_utils
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from grpo_jax import ranges
from grpo_jax.types import (
  ROW_AXES,
  ModelState,
  Policy,
  PyTree,
  TrainBatch,
  TrainState,
  fields_where,
)

if TYPE_CHECKING:
  from grpo_jax.rollout import host_state

AXES = ("data", "fsdp", "expert", "tensor")  # The closest devices last.

# Parameters outside the experts are split over the devices of both axes.
_FSDP = ("fsdp", "expert")

# (end of the path of a parameter, partition of its last axes); the first match
# counts. A stack of layers has one more axis, which is not split.
RULES: tuple[tuple[str, P], ...] = (
  (r"embed/embedding", P("tensor", _FSDP)),  # [V, D]
  (r"head/kernel", P(_FSDP, "tensor")),  # [D, V]
  (r"qkv/kernel", P(_FSDP, "tensor", None, None)),  # [D, C, R + 2, K]
  (r"qkv/bias", P("tensor", None, None)),  # [C, R + 2, K]
  (r"out/kernel", P("tensor", None, None, _FSDP)),  # [C, R, K, D]
  (r"out/bias", P()),  # [D]
  (r"attention/sinks", P("tensor", None)),  # [C, R]
  # [N, H, K]
  (r"(query_heads|key_heads|query_up|kv_up)/kernel", P(_FSDP, "tensor", None)),
  (r"(query|kv)_down/kernel", P(_FSDP, None)),  # [D, N]
  (r"delta/(inputs|rates)/kernel", P(_FSDP, "tensor", None)),  # [D, G, M]
  (r"delta/taps", P("tensor", None, None)),  # [G, M, W]
  (r"delta/(log_rate|rate_bias)", P("tensor", None)),  # [G, R]
  # Whole along tensor: the scores are sums over all index heads.
  (r"indexer/query/kernel", P(_FSDP, None, None)),  # [N, J, I]
  (r"indexer/(key|head_weights)/kernel", P(_FSDP, None)),  # [D, I], [D, J]
  (r"out_down", P(None, _FSDP, None)),  # [G, I, d]
  (r"compressor/(values|gates)/kernel", P(_FSDP, None)),  # [D, 2 K]
  (r"(\w+_streams|stream_head)/weight", P(_FSDP, None)),  # [n · D, …]
  (r"(\w+_streams|stream_head)/bias|place_bias|router_table", P()),
  (r"experts/(gate|up)_bias", P("expert", "tensor")),  # [E, F]
  (r"experts/down_bias", P("expert", None)),  # [E, D]
  (r"experts/(gate|up)", P("expert", "fsdp", "tensor")),  # [E, D, F]
  (r"experts/down", P("expert", "tensor", "fsdp")),  # [E, F, D]
  (r"(gate|up)/kernel", P(_FSDP, "tensor")),  # [D, F]
  (r"down/kernel", P("tensor", _FSDP)),  # [F, D]
  (r"(router|shared_gate)/kernel", P(_FSDP, None)),  # [D, E] or [D, 1]
  (r"router/bias", P()),  # [E]
  (r"projection/kernel", P(_FSDP, "tensor")),  # [D, layers · w]
  # [D, r] or [N, r]
  (r"(query|key|value|((shared|input)_)?(gate|up))/a", P(_FSDP, None)),
  (r"(query_\w+|key_heads|kv_\w+|delta_inputs)/a", P(_FSDP, None)),
  (r"delta_inputs/b", P(None, "tensor", None)),  # [r, G, M]
  # [r, H, K]
  (r"(query_heads|key_heads|query_up|kv_up)/b", P(None, "tensor", None)),
  (r"(query|kv)_down/b", P()),  # [r, N]
  (r"expert_(gate|up)/a", P("expert", "fsdp", None)),  # [E, D, r]
  (r"expert_(gate|up)/b", P("expert", None, "tensor")),  # [E, r, F]
  (r"expert_down/a", P("expert", "tensor", None)),  # [E, F, r]
  (r"expert_down/b", P("expert", None, "fsdp")),  # [E, r, D]
  (r"qkv/a", P(_FSDP, None)),  # [D, r], of a tower.
  (r"qkv/b", P(None, "tensor", None, None)),  # [r, H, 3, K]
  (r"(query|key|value)/b", P(None, "tensor", None, None)),  # [r, C, R, K]
  (r"((shared|input)_)?(gate|up)/b", P(None, "tensor")),  # [r, F]
  (r"(delta_)?out/a", P("tensor", None, None, None)),  # [C, R, K, r]
  (r"((shared|input)_)?down/a", P("tensor", None)),  # [F, r]
  (r"((delta_)?out|((shared|input)_)?down)/b", P(None, _FSDP)),  # [r, D]
  (r"kernel(/codes)?/scale/(scale|mean)", P()),  # Scales of scales: small.
  (r"experts/\w+(/codes)?/scale/(scale|mean)", P()),
  (r"patch/kernel", P(None, _FSDP)),  # [F, D], of a tower.
  (r"places/embedding", P(None, _FSDP)),  # [side², D]
  (r"connector/kernel", P(None, _FSDP)),  # [merge² · D, D of the model]
  (r"(gate|up)/bias", P("tensor")),  # [F]
  (r"(patch|down|(\w+_)?norm)/bias", P()),  # [D]
  # Norms and biases of routers are small.
  (r"((expert|layer)_)?scale|router_bias", P()),
  (r"value_head/(kernel|bias)", P()),  # [D], []; small too.
  (r"scalars(/.+)?", P()),  # Scalars of an algorithm.
)
_COMPILED = tuple(
  (re.compile(rf"(.*/)?({pattern})(/codes)?(/int8|/nf4|/float8)?"), spec)
  for pattern, spec in RULES
)
# In scales of quantized kernels the axis of inputs has size 1.
_SCALE = re.compile(r"(.*/)?(kernel|experts/\w+)(/codes)?/scale(/int8)?")


def make_mesh(
  data: int | None = None,
  fsdp: int = 1,
  tensor: int = 1,
  expert: int = 1,
  devices: Sequence[Any] | None = None,
) -> Mesh:
  """Makes a mesh of devices; several TPU slices are told apart along `data`.

  Args:
    data: Copies of the parameters; None: as many as there are devices for.
    fsdp, tensor, expert: As in `MeshConfig`.
    devices: Devices to choose from, in order; None: all devices of the run.

  Raises:
    ValueError: The product is not a possible number of devices; or `data` is
      not a multiple of the slices.
  """
  devices = list(jax.devices() if devices is None else devices)
  sizes = {"data": data, "fsdp": fsdp, "expert": expert, "tensor": tensor}
  product = " × ".join(
    f"{name} {'?' if size is None else size}" for name, size in sizes.items()
  )
  of_copy = fsdp * expert * tensor
  if data is None and of_copy > 0:
    data = max(len(devices) // of_copy, 1)
    if data * of_copy != len(devices) >= of_copy:
      raise ValueError(
        f"config.mesh: {product} on {len(devices)} {devices[0].platform}"
        f" device(s): {len(devices)} / {of_copy} is not a whole number; needed:"
        " devices = data × fsdp × expert × tensor. Change one of them."
      )
  count = (data or 0) * of_copy
  is_all = jax.process_count() > 1 and len(devices) == jax.device_count()
  if (
    min(data or 0, fsdp, expert, tensor) < 1
    or count > len(devices)
    or (is_all and count != len(devices))
  ):
    need = "exactly" if is_all else "from 1 to"
    raise ValueError(
      f"config.mesh: {product} asks for {ranges.counted(count, 'device')} and"
      " there are"
      f" {len(devices)} {devices[0].platform} device(s); needed: data × fsdp ×"
      f" expert × tensor = {need} {len(devices)}, each at least 1. To try"
      " several on a CPU, set"
      " XLA_FLAGS=--xla_force_host_platform_device_count=8."
    )
  shape = data or 1, fsdp, expert, tensor
  types = (AxisType.Auto,) * len(AXES)
  devices = devices[:count]
  num_slices = len({getattr(device, "slice_index", 0) for device in devices})
  # On GPUs each host has an index of its own, and any axis may span hosts.
  if num_slices > 1 and devices[0].platform != "gpu":
    return Mesh(
      _over_slices(shape, num_slices, devices), AXES, axis_types=types
    )
  # `jax.make_mesh` does not know hosts of GPUs, and allows an axis that is part
  # of an axis of the torus, as 4 of 8, on v5e only.
  if num_slices == 1:
    with contextlib.suppress(NotImplementedError):
      return jax.make_mesh(shape, AXES, axis_types=types, devices=devices)
  arranged = mesh_utils.create_device_mesh(
    shape, devices, allow_split_physical_axes=True
  )
  return Mesh(arranged, AXES, axis_types=types)


def _over_slices(shape, num_slices, devices):
  """Arranges devices of several slices: only `data` spans slices."""
  data, *inner = shape
  if data % num_slices:
    raise ValueError(
      f"config.mesh: data {data} does not split over {num_slices} slices, which"
      " only data may connect (the network between slices is slow); needed:"
      " data = slices × (a whole number)."
    )
  return mesh_utils.create_hybrid_device_mesh(
    (data // num_slices, *inner),
    (num_slices, *[1] * len(inner)),
    devices,
    allow_split_physical_axes=True,
  )


def num_row_shards(mesh: Mesh | AbstractMesh) -> int:
  """The number of parts into which the rows of a batch are split."""
  return math.prod(mesh.shape[axis] for axis in ROW_AXES)


def replicated(mesh: Mesh) -> NamedSharding:
  """The sharding with a copy on every device."""
  return NamedSharding(mesh, P())


def by_rows(mesh: Mesh) -> NamedSharding:
  """The sharding of the leading axis over the devices that share rows."""
  return _compact(mesh, P(ROW_AXES))


def _compact(mesh: Mesh, spec: P) -> NamedSharding:
  """The sharding in the form in which a compiled program returns it.

  That form leaves out axes of one device. With another form the second step of
  a run would not fit the program of the first, and would be compiled again.
  """
  entries: list[Any] = []
  for axes in spec:
    names = () if axes is None else (axes,) if isinstance(axes, str) else axes
    names = tuple(name for name in names if mesh.shape[name] > 1)
    entries.append(names[0] if len(names) == 1 else names or None)
  while entries and entries[-1] is None:
    entries.pop()
  return NamedSharding(mesh, P(*entries))


def row_constraint(mesh: Mesh) -> Callable[[PyTree], PyTree]:
  """Inside jit: keeps the leading axis of every array split by rows.

  Scalars are left as they are.
  """
  if mesh.size == 1:
    return lambda rows: rows
  sharding = by_rows(mesh)
  return lambda rows: jax.tree.map(
    lambda x: lax.with_sharding_constraint(x, sharding) if x.ndim else x, rows
  )


def episodes_constraint(
  mesh: Mesh,
) -> Callable[[host_state.HostEpisodes], host_state.HostEpisodes]:
  """Inside jit: keeps episodes between turns on the devices of their rows."""
  if mesh.size == 1:
    return lambda episodes: episodes
  of_rows = row_constraint(mesh)

  def constrain(episodes):
    cache = lax.with_sharding_constraint(
      episodes.cache, of_cache(mesh, episodes.cache)
    )
    episodes = dataclasses.replace(of_rows(episodes), cache=cache)
    if episodes.contexts is None:
      return episodes
    prefix = episodes.contexts.prefix
    prefix = lax.with_sharding_constraint(prefix, of_cache(mesh, prefix))
    return dataclasses.replace(
      episodes, contexts=dataclasses.replace(episodes.contexts, prefix=prefix)
    )

  return constrain


def constrain_written(mesh: Mesh, rows: PyTree) -> PyTree:
  """Inside jit: keeps the rows that a step returns split by rows.

  Arrays that batches share, such as the state of an algorithm, are on every
  device.
  """
  shared = {
    name.rpartition(".")[2] for name in fields_where(TrainBatch, kind="shared")
  }

  def place(path, x):
    is_shared = any(getattr(key, "name", None) in shared for key in path)
    is_replicated = is_shared or not x.ndim
    return lax.with_sharding_constraint(
      x, replicated(mesh) if is_replicated else by_rows(mesh)
    )

  return jax.tree_util.tree_map_with_path(place, rows)


def of_rows(mesh: Mesh, tree: PyTree) -> PyTree:
  """Shardings of a tree whose arrays, except scalars, have rows first."""
  rows, everywhere = by_rows(mesh), replicated(mesh)
  return jax.tree.map(lambda x: rows if x.ndim else everywhere, tree)


def spec_of(path: str, shape: Sequence[int]) -> P | None:
  """The partition of the parameter at a path; None if no rule matches."""
  is_scale = _SCALE.fullmatch(path)
  if is_scale:
    path = path.removesuffix("/int8").removesuffix("/scale")
  for pattern, spec in _COMPILED:
    if pattern.fullmatch(path):
      if not spec:
        return spec
      spec = P(*[None] * (len(shape) - len(spec)), *spec)
      if is_scale:
        spec = P(
          *(a if n > 1 else None for a, n in zip(spec, shape, strict=True))
        )
      return spec
  return None


def _name(path) -> str:
  return jax.tree_util.keystr(path, simple=True, separator="/")


def of_params(mesh: Mesh, params: PyTree) -> PyTree:
  """Shardings of policy parameters, or of a tree with the same paths.

  Args:
    params: Arrays, or their shapes.

  Raises:
    KeyError: No rule matches a parameter, and there are several devices.
    ValueError: A parameter does not split as its rule says.
  """
  if mesh.size == 1:
    return jax.tree.map(lambda _: replicated(mesh), params)

  def place(path, leaf):
    return _compact(mesh, _spec(mesh, path, leaf))

  return jax.tree_util.tree_map_with_path(place, params)


def _spec(mesh: Mesh, path, leaf) -> P:
  name = _name(path)
  spec = spec_of(name, leaf.shape)
  if spec is None:
    raise KeyError(
      f"sharding: no rule says how to split {name} {list(leaf.shape)}; add one"
      " to RULES."
    )
  _check_even(mesh, name, leaf.shape, spec)
  return spec


def _check_even(mesh: Mesh, name: str, shape: Sequence[int], spec: P) -> None:
  for i, axes in enumerate(spec):
    if axes is None:
      continue
    axes = (axes,) if isinstance(axes, str) else axes
    parts = math.prod(mesh.shape[axis] for axis in axes)
    if shape[i] % parts:
      product = " × ".join(f"{axis} {mesh.shape[axis]}" for axis in axes)
      raise ValueError(
        f"config.mesh: axis {i} of {name} {list(shape)} does not split over"
        f" {product}: {shape[i]} / {parts} is not a whole number. Change"
        f" {' or '.join(f'config.mesh.{axis}' for axis in axes)}."
      )


def of_state(mesh: Mesh, state: TrainState) -> TrainState:
  """Shardings of a whole state: parameters by `RULES`, moments like them.

  Arrays that belong to no parameter, or that lack an axis of it (factored
  moments), are on every device. Queued rollouts, old completions and groups
  that wait are split by rows.

  Args:
    state: Arrays, or their shapes.

  Raises:
    KeyError, ValueError: As `of_params` does.
  """
  everywhere = replicated(mesh)

  shardings: Any = jax.tree.map(lambda _: everywhere, state)
  return dataclasses.replace(
    shardings,
    models={
      name: of_model(mesh, model) for name, model in state.models.items()
    },
    reservoir=of_rows(mesh, state.reservoir),
    waiting=of_rows(mesh, state.waiting),
    queue=of_rows(mesh, state.queue),
  )


def of_model(mesh: Mesh, model: ModelState) -> ModelState:
  """Shardings of a model: parameters, moments and averages by `RULES`.

  Args:
    model: Arrays, or their shapes.

  Raises:
    KeyError, ValueError: As `of_params` does.
  """
  everywhere = replicated(mesh)
  shapes: dict[str, set] = {}
  for path, leaf in jax.tree_util.tree_leaves_with_path(model.params):
    shapes.setdefault(_name(path[1:]), set()).add(leaf.shape)

  def moment(path, leaf):
    names = _name(path).split("/")
    for start in range(len(names)):
      if leaf.shape in shapes.get("/".join(names[start:]), ()):
        spec = spec_of("/".join(names[start:]), leaf.shape)
        return everywhere if spec is None else _compact(mesh, spec)
    return everywhere

  return ModelState(
    params={
      group: of_params(mesh, params) for group, params in model.params.items()
    },
    opt_state=jax.tree_util.tree_map_with_path(moment, model.opt_state),
    average=None if model.average is None else of_params(mesh, model.average),
  )


def constrain_state(mesh: Mesh, state: TrainState) -> TrainState:
  """Inside jit: keeps the state on the shardings of `of_state`."""
  return lax.with_sharding_constraint(state, of_state(mesh, state))


def trained_constraint(mesh: Mesh) -> Callable[[PyTree], PyTree]:
  """Inside jit: keeps {model: its trained leaves} on the parameters' shardings.

  Otherwise gradients that are added up in a loop would be whole on every
  device.
  """
  if mesh.size == 1:
    return lambda trained: trained
  return lambda trained: {
    name: lax.with_sharding_constraint(tree, of_params(mesh, tree))
    for name, tree in trained.items()
  }


def on_mesh(policy: Policy, mesh: Mesh) -> Policy:
  """The policy with its parameters and caches on their shardings.

  While sampling, parameters are whole along the axes of FSDP: they are gathered
  once, in the dtype of the computation, before the loop over tokens. Otherwise
  every decode step would gather them again.
  """
  if mesh.size == 1:
    return policy

  def constrained(tree, of):
    return lax.with_sharding_constraint(tree, of(mesh, tree))

  def prefill(params, *prompts):
    h, prefix, routing = policy.prefill(params, *prompts)
    return h, constrained(prefix, of_cache), routing

  return dataclasses.replace(
    policy,
    init=lambda key: constrained(policy.init(key), of_params),
    weights=lambda params: constrained(policy.weights(params), of_weights),
    prefill=prefill,
    allocate=lambda *sizes: constrained(policy.allocate(*sizes), of_cache),
    admit=lambda *of: constrained(policy.admit(*of), of_cache),
  )


def of_weights(mesh: Mesh, weights: PyTree) -> PyTree:
  """Shardings of parameters that a whole rollout reads."""

  def place(path, leaf):
    spec = _spec(mesh, path, leaf)
    entries = (None if axes in ("fsdp", _FSDP) else axes for axes in spec)
    return _compact(mesh, P(*entries))

  return jax.tree_util.tree_map_with_path(place, weights)


def of_cache(mesh: Mesh, cache: PyTree) -> PyTree:
  """Shardings of keys and values [B, C, …, …], pages of both, masks [B, S]."""
  heads = {4: P(ROW_AXES, "tensor"), 5: P(ROW_AXES, None, None, "tensor")}

  def place(x):
    # Latent vectors have one head, which every device has.
    is_latent = x.ndim == 4 and x.shape[1] % mesh.shape["tensor"]
    return _compact(
      mesh, P(ROW_AXES) if is_latent else heads.get(x.ndim, P(ROW_AXES))
    )

  return jax.tree.map(place, cache)


def abstract(tree: PyTree, where: PyTree) -> PyTree:
  """Shapes and dtypes of a tree, with their shardings.

  Args:
    tree: Arrays, or their shapes.
    where: A sharding for all, or a tree of them.
  """
  if isinstance(where, NamedSharding):
    where = jax.tree.map(lambda _: where, tree)
  return jax.tree.map(
    lambda x, place: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=place),
    tree,
    where,
  )


def local_rows(rows: NamedSharding, num_rows: int) -> np.ndarray:
  """The rows that this process holds and has to feed, ascending.

  They are not always a block: neighbours in the mesh may belong to other
  processes. Processes that hold parts of the same rows, as along `tensor`, feed
  the same rows.

  Args:
    rows: Sharding that splits a leading axis. For devices that are elsewhere
      all rows count.
    num_rows: Length of the axis.
  """
  if isinstance(rows.mesh, AbstractMesh):
    return np.arange(num_rows)
  numbers: set[int] = set()
  for index in rows.addressable_devices_indices_map((num_rows,)).values():
    assert index is not None  # Only devices of this process are asked.
    numbers.update(range(*index[0].indices(num_rows)))
  return np.array(sorted(numbers))


def num_rows(rows: NamedSharding, num_local: int) -> int:
  """Total rows over all processes, from the `num_local` of this one."""
  size = rows.mesh.size
  return num_local * size // len(local_rows(rows, size))


def by_rows_once(mesh: Mesh) -> NamedSharding:
  """The sharding that splits rows so that no two processes hold the same row.

  It is for results of the host about rows: two hosts may find different ones.
  """
  rows = by_rows(mesh)
  holders: dict[str, set[int]] = {}
  index_of: Mapping[Any, Any] = rows.devices_indices_map((mesh.size,))
  for device, index in index_of.items():
    holders.setdefault(str(index), set()).add(device.process_index)
  if all(len(processes) == 1 for processes in holders.values()):
    return rows
  return NamedSharding(mesh, P(AXES))


def from_local(tree: PyTree, rows: NamedSharding) -> PyTree:
  """Makes arrays on all devices, from the rows that each process has.

  Args:
    tree: NumPy arrays with the rows of `local_rows`, in that order; scalars are
      the same in every process.
    rows: Sharding that splits a leading axis.
  """
  everywhere = NamedSharding(rows.mesh, P())
  # This transfer is intended; a caller's guard is there for accidental ones.
  with jax.transfer_guard_host_to_device("allow"):
    return jax.tree.map(
      lambda x: jax.make_array_from_process_local_data(
        rows if np.ndim(x) else everywhere, x
      ),
      tree,
    )


def to_local(tree: PyTree) -> PyTree:
  """The inverse of `from_local`: the rows on the devices of this process."""

  def fetch(x):
    shards = {
      shard.index[0].start or 0: shard.data for shard in x.addressable_shards
    }
    return np.concatenate([shards[start] for start in sorted(shards)])

  # This transfer is intended too.
  with jax.transfer_guard_device_to_host("allow"):
    jax.tree.map(lambda x: x.copy_to_host_async(), tree)
    return jax.tree.map(fetch, tree)
