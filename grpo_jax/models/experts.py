"""Mixture of experts: the router's choice, and the experts' weighted sum.

Array functions of one layer. `N` tokens, `E` experts of width `F`, of which a
token takes `k`. The same sum in four forms:

| form     | how                                           | multiplications |
|----------|-----------------------------------------------|-----------------|
| dense    | every expert on every token; the definition   | E / k           |
| blocked  | tokens sorted by expert, in blocks of one     | 1 to 2          |
| ragged   | tokens sorted by expert, `jax.lax.ragged_dot` | 1 on TPU, or E  |
| megablox | the same, with JAX's Pallas kernel for TPUs   | 1, whole tiles  |

(as multiples of N·k·D·F). If libtpu 0.0.42 compiles `ragged_dot` for TPU v5e,
the product and its gradient by the tokens are kernels. The gradient by the
experts' parameters is not: it multiplies all tokens for every expert, which is
8.0 times the multiplications needed with 8 experts and 32.1 times with 32.
Megablox has 1.0, and so is the default on TPUs. No form was run on a TPU.

CPUs have no instruction for `ragged_dot`, and NVIDIA GPUs have none in JAX
0.10: they multiply a copy of the tokens, mostly zeros, for each expert.
Milliseconds of a forward pass + its gradient, and MB that the gradient needs,
on 2 CPU cores in float32:

|    N |  D, F   |  E, k |     dense      |    blocked    |      ragged      |
|------|---------|-------|----------------|---------------|------------------|
|   64 | 128, 64 | 32, 4 |  2.6 + 7,    5 | 0.7 + 2,    7 |   5.6 + 25,   18 |
| 2048 | 128, 64 |  8, 2 |   21 + 71,  52 |   6 + 18,  26 |    20 + 96,   69 |
| 2048 | 128, 64 | 32, 4 | 141 + 432, 209 |  14 + 65,  57 |  223 + 887,  511 |
| 2048 | 256,128 | 64, 8 | 558 +1298, 840 | 112 +270, 255 | 1433 +5887, 4024 |
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax, nn
from jax.sharding import PartitionSpec as P

from grpo_jax.models import mesh
from grpo_jax.types import ROW_AXES

_LANES = 128  # The sizes that a TPU kernel takes are multiples of this.
_TILE = 512  # Largest tile of a product: 4 MiB of VMEM in float32, twice.


class Routed(NamedTuple):
  """A router's choice of experts for tokens.

  Attributes:
    ids: Experts of each token, by falling score unless they were given.
    weights: Factor of the output of each chosen expert.
    probs: The router's distribution over all experts.
  """

  ids: jax.Array  # [N, k] int32
  weights: jax.Array  # [N, k]
  probs: jax.Array  # [N, E]


# (gate, up) -> the hidden vector that an expert multiplies by `down`; it is
# computed elementwise.
Gated = Callable[[jax.Array, jax.Array], jax.Array]


class Kernels(NamedTuple):
  """Parameters of all experts of a layer; a mesh may split the first axis.

  Attributes:
    gate, up, down: Kernels.
    gate_bias, up_bias, down_bias: Biases of the three products; all or none.
    adapters: Name of a kernel -> matrices A [E, in, r] and B [E, r, out], whose
      product is added to the kernel.
  """

  gate: jax.Array  # [E, D, F]
  up: jax.Array  # [E, D, F]
  down: jax.Array  # [E, F, D]
  gate_bias: jax.Array | None = None  # [E, F]
  up_bias: jax.Array | None = None  # [E, F]
  down_bias: jax.Array | None = None  # [E, D]
  adapters: dict[str, tuple[jax.Array, jax.Array]] | None = None


def route(
  logits: jax.Array,  # [N, E]
  num_chosen: int,
  normalize: bool,
  choices: jax.Array | None = None,  # [N, k] int32
  bias: jax.Array | None = None,  # [E]
  *,
  scores: str = "softmax",
  groups: tuple[int, int] = (1, 1),
  scale: float = 1.0,
) -> Routed:
  """Chooses `num_chosen` experts for each token and weighs them.

      s = softmax(logits), σ(logits) or √softplus(logits),  p = s / Σ_i s_i
      w_j = scale · s_{e_j},  normalised: scale · s_{e_j} / Σ_i s_{e_i}

  Args:
    logits: Logits of the router, at least float32.
    num_chosen: k. Equal scores go to the lowest expert id.
    normalize: Whether the weights of a token add up to `scale` (Qwen3-MoE).
    choices: Experts to take instead of the best ones. Their weights still come
      from `logits`, so that the router has a gradient.
    bias: Added to s for the choice only, never to the weights.
    scores: "softmax", "sigmoid" or "sqrtsoftplus".
    groups: Number of groups of neighbouring experts, and the number of groups
      from which experts are taken. The groups taken are those with the largest
      sums of their two largest scores.
    scale: Factor of the weights.

  Source: Yang et al., "Qwen3 Technical Report", arXiv:2505.09388; bias, sigmoid
  and groups from DeepSeek-AI, "DeepSeek-V3", arXiv:2412.19437, Eqs. 12 to 16
  and Section 2.1.2; `choices` from "DeepSeek-V3.2", arXiv:2512.02556 (keep
  routing).
  """
  logs, shares = logits, nn.softmax(logits, axis=-1)
  if scores == "sigmoid":
    logs, shares = nn.log_sigmoid(logits), nn.sigmoid(logits)
  elif scores == "sqrtsoftplus":
    logs, shares = _log_root_softplus(logits), jnp.sqrt(nn.softplus(logits))
  if choices is None:
    ranked = lax.stop_gradient(shares)
    ranked = ranked if bias is None else ranked + bias
    _, choices = lax.top_k(_of_best_groups(ranked, *groups), num_chosen)
  if normalize:
    # From the logits: all kept experts of an old choice may now be so unlikely
    # that a quotient of their probabilities would be 0 / 0.
    weights = nn.softmax(_gather(logs, choices), axis=-1)
  else:
    weights = _gather(shares, choices)
  if scores != "softmax":
    shares = nn.softmax(logs, axis=-1)
  if scale != 1:
    weights = scale * weights
  return Routed(choices.astype(jnp.int32), weights, shares)


def _log_root_softplus(x):
  """ln √softplus(x), which is x / 2 where softplus would underflow."""
  is_small = x < -15
  return 0.5 * jnp.where(
    is_small, x, jnp.log(nn.softplus(jnp.where(is_small, 0, x)))
  )


def _of_best_groups(scores, num_groups, num_taken):  # [N, E]
  """Scores of the experts of the best groups; −inf for all other experts."""
  if num_taken == num_groups:
    return scores
  grouped = scores.reshape(len(scores), num_groups, -1)
  best, _ = lax.top_k(grouped, 2)
  _, group_ids = lax.top_k(best.sum(axis=-1), num_taken)  # [N, num_taken]
  allowed = nn.one_hot(group_ids, num_groups, dtype=bool).any(axis=1)
  return jnp.where(allowed[..., None], grouped, -jnp.inf).reshape(scores.shape)


def _gather(x, ids):  # [N, E], [N, k] -> [N, k]
  return jnp.take_along_axis(x, ids, axis=-1)


def dense(
  x: jax.Array,  # [N, D]
  ids: jax.Array,  # [N, k] int32
  weights: jax.Array,  # [N, k]
  kernels: Kernels,
  gated: Gated,
) -> jax.Array:  # [N, D]
  """Σ_j w_j · down_{e_j}(gated(gate_{e_j} x, up_{e_j} x)).

  The biases of `down` are left out here; `mix` adds them in every form.
  """
  share = _shares(ids, weights, kernels.gate.shape[0])  # [N, E]

  def product(rows, kernel):  # [N, D] or [N, E, F]
    equation = "nd,edf->nef" if rows.ndim == 2 else "nef,efd->ned"
    return jnp.einsum(equation, rows, kernel)

  y = _expert(x, kernels, gated, product, lambda bias: bias)
  return (share[..., None] * y).sum(axis=1).astype(x.dtype)


def _shares(ids, weights, num_experts):  # [N, k], [N, k] -> [N, E]
  """The weight of each expert for each token; 0 if it is not chosen."""
  one_hot = nn.one_hot(ids, num_experts, dtype=weights.dtype)  # [N, k, E]
  return (one_hot * weights[..., None]).sum(axis=1)


def _expert(x, kernels, gated, product, bias_of):
  """Outputs of experts for rows, without the biases of `down`.

  Args:
    x: Rows.
    kernels: The experts' parameters.
    gated: As in `dense`.
    product: (rows, kernel [E, in, out]) -> each row times its expert's kernel.
    bias_of: A bias [E, out] -> the bias of each row.
  """

  def through(name, rows):
    y = product(rows, getattr(kernels, name))
    if kernels.adapters and name in kernels.adapters:
      a, b = kernels.adapters[name]
      y = y + product(product(rows, a), b)
    bias = getattr(kernels, f"{name}_bias")
    return y if bias is None or name == "down" else y + bias_of(bias)

  return through("down", gated(through("gate", x), through("up", x)))


def ragged(x, ids, weights, kernels, gated):
  """Computes the sum of `dense` with `jax.lax.ragged_dot`."""
  layout = _layout(ids, kernels.gate.shape[0], 1)

  def matmul(rows, kernel):
    return lax.ragged_dot(rows, kernel, layout.sizes)

  return _sorted_mix(x, weights, kernels, gated, layout, matmul)


def blocked(x, ids, weights, kernels, gated):
  """Computes the sum of `dense` as a batched matmul, one kernel a block."""
  num_experts = kernels.gate.shape[0]
  # The size of a block is the mean load of an expert: there are at most twice
  # as many blocks as experts, and at most half of their rows are empty.
  size = -(-ids.size // num_experts)
  layout = _layout(ids, num_experts, size)

  # Recomputed in the backward pass: the kernels of the blocks are up to two
  # copies of all parameters of the experts.
  @jax.checkpoint
  def matmul(rows, kernel):
    blocks = rows.reshape(-1, size, rows.shape[-1])
    y = blocks @ kernel[layout.expert_of_block]
    return y.reshape(rows.shape[0], -1)

  return _sorted_mix(x, weights, kernels, gated, layout, matmul)


def megablox(x, ids, weights, kernels, gated):
  """Computes what `dense` computes, with JAX's Pallas kernel `megablox.gmm`.

  Tiles that no token fills are neither read nor multiplied, in the gradient
  either. The kernel leaves their results unwritten, and nothing reads them.
  """
  # Other forms need not import Pallas.
  from jax.experimental.pallas.ops.tpu import megablox as megablox_kernel

  num_experts = kernels.gate.shape[0]
  load = -(-ids.size // num_experts)
  # Every expert multiplies whole tiles of rows.
  tile = _tile(load)
  layout = _layout(ids, num_experts, 1)
  num_slots = layout.tokens.size
  missing = -num_slots % tile
  layout = layout._replace(
    tokens=jnp.pad(layout.tokens, (0, missing), constant_values=ids.shape[0]),
    # Choices of an expert on another device stay behind the last slot.
    slots=jnp.where(
      layout.slots < num_slots, layout.slots, num_slots + missing
    ),
  )

  def matmul(rows, kernel):
    _, inner, outer = kernel.shape
    return megablox_kernel.gmm(
      rows,
      kernel,
      layout.sizes.astype(jnp.int32),
      preferred_element_type=rows.dtype,
      tiling=(tile, _tile(inner), _tile(outer)),
      interpret=mesh.platform() == "cpu",
    )

  return _sorted_mix(x, weights, kernels, gated, layout, matmul)


def _tile(size: int) -> int:
  """Size of a kernel's tile along an axis; it may exceed the axis."""
  return min(_TILE, -(-size // _LANES) * _LANES)


_BY_NAME = {
  "dense": dense,
  "blocked": blocked,
  "ragged": ragged,
  "megablox": megablox,
}


def form(name: str, dtype) -> str:
  """Resolves the name of a form; "auto" is megablox on TPUs, else blocked.

  "auto" is blocked on TPUs too if megablox cannot compute in `dtype`.

  Raises:
    ValueError: `name` asks for a kernel that cannot run here.
  """
  lacks = ""
  if mesh.platform() not in ("tpu", "cpu"):
    lacks = f"a TPU (or a CPU, to be interpreted), and not a {mesh.platform()}"
  elif jnp.dtype(dtype) == jnp.float64:
    lacks = "dtype 'bfloat16' or 'float32', and not 'float64'"
  if name == "megablox" and lacks:
    raise ValueError(
      f"model: experts is 'megablox', which needs {lacks}; change that, or use"
      " 'auto', 'blocked' or 'ragged'."
    )
  if name != "auto":
    return name
  return "megablox" if mesh.platform() == "tpu" and not lacks else "blocked"


def mix(
  x: jax.Array,  # [N, D]
  ids: jax.Array,  # [N, k] int32
  weights: jax.Array,  # [N, k]
  kernels: Kernels,
  gated: Gated,
  name: str = "auto",
) -> jax.Array:  # [N, D]
  """Computes the experts' weighted sum in the form of this name, on a mesh.

  Within `jax.set_mesh(mesh)` each device sorts tokens of its own. Otherwise
  the compiler gathers them for one sort, and every device computes every
  block. The mesh axes split these:

  - `data`, `fsdp` and `expert` split the tokens.
  - `expert` also splits the experts. The tokens of all its devices are
    gathered, each device computes the outputs of its own experts, and these
    parts are added up and scattered. No token is dropped, however uneven the
    load. Each token travels to all devices of the axis, and not only to those
    that have its experts.
  - `tensor` splits the width of each expert, and the parts are added up.

  A kernel that is also split over `fsdp` is gathered along that axis, once for
  each use. An array that does not divide evenly is on every device; the number
  of experts must divide. A split of the experts saves `blocked` memory and no
  time, because the number of blocks is that of the worst case; it saves
  `ragged` and `megablox` both.

  Raises:
    ValueError: The experts do not split over the axis `expert`; or an error of
      `form`.
  """
  function = _BY_NAME[form(name, x.dtype)]
  # The biases of `down` are added once, and not by every device of `tensor`.
  here = {
    name: value
    for name, value in kernels._asdict().items()
    if value is not None and name != "down_bias"
  }
  num_experts, _, inner = kernels.gate.shape
  num_parts = jax.sharding.get_abstract_mesh().shape.get("expert", 1)
  if num_experts % num_parts:
    raise ValueError(
      f"experts: {num_experts} experts do not split over the {num_parts}"
      " devices of the mesh axis `expert`; needed: num_experts = expert × (a"
      " whole number)."
    )
  rows = mesh.split(x.shape[0], *ROW_AXES)
  parts = mesh.split(num_experts, "expert")
  width = mesh.split(inner, "tensor")
  travels = parts is not None and rows is not None

  def local(x, ids, weights, kernels):
    kernels = Kernels(**kernels)
    if travels:
      x, ids, weights = (
        lax.all_gather(z, "expert", tiled=True) for z in (x, ids, weights)
      )
    if parts:
      # Experts of other devices get an id that no expert has here, and weight
      # 0.
      num_here = kernels.gate.shape[0]
      here = ids - lax.axis_index("expert") * num_here
      is_local = (here >= 0) & (here < num_here)
      ids = jnp.where(is_local, here, num_here)
      weights = jnp.where(is_local, weights, 0)
    y = function(x, ids, weights, kernels, gated)
    if travels:
      y = lax.psum_scatter(y, "expert", tiled=True)
    sums = (() if travels else parts or ()) + (width or ())
    return lax.psum(y, sums) if sums else y

  if mesh.size() > 1:
    local = jax.shard_map(
      local,
      in_specs=(*(P(rows),) * 3, _specs(here, parts, width)),
      out_specs=P(rows),
      # The kernel does not say over which axes its results vary.
      check_vma=function is not megablox,
    )
  y = local(x, ids, weights, here)
  if kernels.down_bias is not None:
    share = _shares(ids, weights, num_experts).astype(y.dtype)
    y = y + share @ kernels.down_bias
  return y


def _specs(kernels: dict[str, Any], parts, width) -> dict[str, Any]:
  """Partition specs of the parameters of experts, by name."""
  spread: Any = P(parts, None, width)
  narrow: Any = P(parts, width)
  by_name = {"gate": spread, "up": spread, "down": narrow}
  by_name |= {"gate_bias": narrow, "up_bias": narrow}
  by_name["adapters"] = {
    name: (narrow, P(parts)) if name == "down" else (P(parts), spread)
    for name in kernels.get("adapters", {})
  }
  return {name: by_name[name] for name in kernels}


class _Layout(NamedTuple):
  """Tokens sorted by expert into M slots; each expert begins a new block.

  Choices of E, an id that no expert has, have a slot behind the last one.

  Attributes:
    slots: Slot of each choice.
    tokens: Token in each slot; N where the slot is empty.
    sizes: Number of choices of each expert.
    expert_of_block: Expert of each block; any for the empty blocks at the end.
  """

  slots: jax.Array  # [N, k]
  tokens: jax.Array  # [M]
  sizes: jax.Array  # [E]
  expert_of_block: jax.Array  # [M / block]


def _layout(ids: jax.Array, num_experts: int, block: int) -> _Layout:
  """Sorts choices [N, k] into blocks of `block` slots."""
  flat = ids.reshape(-1)
  num_choices = len(flat)
  # Each expert with a token may leave all but one slot of a block empty.
  most = num_choices + min(num_experts, num_choices) * (block - 1)
  num_blocks = most // block
  sizes = jnp.bincount(flat, length=num_experts)  # [E]
  room = -(-sizes // block) * block
  order = jnp.argsort(flat, stable=True)
  # Distance from the place of an expert's choice in the order to its slot.
  shift = (jnp.cumsum(room) - room) - (jnp.cumsum(sizes) - sizes)
  slots = jnp.arange(num_choices) + shift.at[flat[order]].get(mode="clip")
  slots = jnp.where(flat[order] < num_experts, slots, num_blocks * block)
  tokens = jnp.full(num_blocks * block, ids.shape[0])
  expert_of_block = jnp.searchsorted(
    jnp.cumsum(room), jnp.arange(num_blocks) * block, side="right"
  )
  return _Layout(
    slots=jnp.zeros_like(slots).at[order].set(slots).reshape(ids.shape),
    tokens=tokens.at[slots].set(order // ids.shape[1]),
    sizes=sizes,
    expert_of_block=jnp.minimum(expert_of_block, num_experts - 1),
  )


def _sorted_mix(x, weights, kernels, gated, layout, matmul):
  rows = x.at[layout.tokens].get(mode="fill", fill_value=0)  # [M, D]
  block = len(rows) // len(layout.expert_of_block)

  def bias_of(bias):  # [E, F] -> [M, F]
    return bias[jnp.repeat(layout.expert_of_block, block)]

  y = _expert(rows, kernels, gated, matmul, bias_of)  # [M, D]
  y = y.at[layout.slots].get(mode="fill", fill_value=0)  # [N, k, D]
  return (weights[..., None] * y).sum(axis=1).astype(x.dtype)
