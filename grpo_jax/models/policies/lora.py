"""Low-rank adapters over a frozen transformer, as a `Policy` of its own.

    y = W x + (α / r) · B A x,    A ~ U(−1/√in, 1/√in),    B = 0 at the start

for the projections named in the config. Only A and B are trained: they alone
have gradients and optimizer state, the backward pass computes no gradient of W,
and W is never copied, not even for models beside the policy (reference,
average).

The layers of the transformer do not change: the second term is added where Flax
calls a projection. Queries, keys and values share a kernel here, but have
separate adapters, as in PEFT, whose files are read and written.

Source: Hu et al., "LoRA: Low-Rank Adaptation of Large Language Models",
arXiv:2106.09685, Eq. 3; the distribution of A is PEFT's.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from grpo_jax import ranges
from grpo_jax.models import architecture, experts, quantization
from grpo_jax.types import Policy, PyTree

# Adapter -> (path of its kernel in a layer, its name in Hugging Face's models).
MODULES = {
  "query": (("attention", "qkv"), "self_attn.q_proj"),
  "key": (("attention", "qkv"), "self_attn.k_proj"),
  "value": (("attention", "qkv"), "self_attn.v_proj"),
  "query_heads": (("attention", "query_heads"), "self_attn.q_proj"),
  "key_heads": (("attention", "key_heads"), "self_attn.k_proj"),
  "query_down": (("attention", "query_down"), "self_attn.q_a_proj"),
  "query_up": (("attention", "query_up"), "self_attn.q_b_proj"),
  "kv_down": (("attention", "kv_down"), "self_attn.kv_a_proj_with_mqa"),
  "kv_up": (("attention", "kv_up"), "self_attn.kv_b_proj"),
  # For the towers of Qwen, whose files have one tensor for the three.
  "qkv": (("attention", "qkv"), "attn.qkv"),
  "out": (("attention", "out"), "self_attn.o_proj"),
  # Of all four projections into the gated delta rule, which is one kernel here.
  "delta_inputs": (("delta", "inputs"), "linear_attn.in_proj_qkvz"),
  "delta_out": (("delta", "out"), "linear_attn.out_proj"),
  "gate": (("mlp", "gate"), "mlp.gate_proj"),
  "up": (("mlp", "up"), "mlp.up_proj"),
  "down": (("mlp", "down"), "mlp.down_proj"),
  "shared_gate": (("mlp", "shared", "gate"), "mlp.shared_experts.gate_proj"),
  "shared_up": (("mlp", "shared", "up"), "mlp.shared_experts.up_proj"),
  "shared_down": (("mlp", "shared", "down"), "mlp.shared_experts.down_proj"),
  "input_gate": (("inputs", "gate"), "per_layer_input_gate"),
  "input_down": (("inputs", "down"), "per_layer_projection"),
  **{
    f"expert_{name}": (
      ("mlp", "experts", name),
      f"mlp.experts.{{expert}}.{name}_proj",
    )
    for name in ("gate", "up", "down")
  },
}
# Their places in the axis R + 2 of the fused kernel.
_FUSED = {
  "query": slice(None, -2),
  "key": slice(-2, -1),
  "value": slice(-1, None),
}
_OF_EXPERTS = "expert_"
# Paths of the stacks of layers that may have adapters. A tower's modules have
# names of their own, because an empty list of modules means those of the
# language model.
TOWER = "tower/layers"
STACKS = (*quantization.STACKS, TOWER)
_OF_TOWER = "tower_"
TOWER_MODULES = tuple(
  _OF_TOWER + name
  for name in ("query", "key", "value", "qkv", "out", "gate", "up", "down")
)
NAMES = (*(name for name in MODULES if name != "qkv"), *TOWER_MODULES)


@dataclasses.dataclass(frozen=True, kw_only=True)
class LoRAConfig:
  """Adapters: their projections, rank and scale, and the base's quantization.

  Attributes:
    rank: Rank of each adapter, r ≥ 1.
    alpha: α > 0; the adapters' term is multiplied by α / r.
    modules: Projections with an adapter: "query", "key", "value", "out",
      "gate", "up", "down"; with latent attention "query_heads" or "query_down"
      and "query_up", "kv_down", "kv_up" (in DeepSeek-V4 without the last); with
      the gated delta rule "delta_inputs" and "delta_out"; in Gemma 4 also
      "query_heads" and "key_heads", of layers without a fused kernel, and
      "input_gate" and "input_down"; in mixtures "shared_gate", … and
      "expert_gate", …, where each expert has adapters of its own; in a vision
      tower "tower_out", "tower_gate", "tower_up" and "tower_down", and
      "tower_query", … or, in Qwen's towers, "tower_qkv". Empty: all projections
      of the language model's layers, except those of experts.
    quantization: Format of the kernels of all layers: "none" (floats), "int8",
      "nf4" or "nf4_double"; see `quantization.py`.
  """

  rank: int = 16
  alpha: float = 32.0
  modules: tuple[str, ...] = ()
  quantization: str = "none"

  def __post_init__(self):
    if self.rank not in architecture.LORA_RANKS:
      raise ValueError(
        f"lora: rank is {self.rank}, but must be {architecture.LORA_RANKS};"
        " leave the adapters out to train all parameters."
      )
    if self.alpha not in ranges.POSITIVE:
      raise ValueError(
        f"lora: alpha is {self.alpha}, but must be {ranges.POSITIVE}; else the"
        " adapters have no effect."
      )
    if {*self.modules} - {*NAMES} or len({*self.modules}) < len(self.modules):
      raise ValueError(
        f"lora: modules is {self.modules}; known are {', '.join(NAMES)}."
        " Name each once, or none for all."
      )
    if self.quantization not in quantization.KINDS:
      raise ValueError(
        f"lora: quantization is {self.quantization!r}; use one of"
        f" {', '.join(quantization.KINDS)}."
      )

  @property
  def scale(self) -> float:
    """Factor of the adapters' term."""
    return self.alpha / self.rank


def lora_policy(policy: Policy, config: LoRAConfig) -> Policy:
  """A transformer with adapters; only the adapters are trained.

  Args:
    policy: A policy of `transformer.py`.
    config: The config of the adapters.

  Returns:
    A policy with the parameters of `wrap`. With fresh adapters it computes
    exactly the numbers of `policy`, unless its kernels are quantized.
  """

  def adding(function: Callable) -> Callable:
    def call(*args, **kwargs):
      with nn.intercept_methods(functools.partial(_add_adapter, config)):
        return function(*args, **kwargs)

    return call

  def adapted(function: Callable) -> Callable:
    def call(params, *args, **kwargs):
      return adding(function)(_join(params), *args, **kwargs)

    return call

  def init(key):
    base_key, adapter_key = jax.random.split(key)
    return wrap(policy.init(base_key), config, adapter_key)

  def step(function: Callable) -> Callable:
    def call(weights, tokens, *state):
      if config.quantization != "none":
        # Ties the kernels to the step. If the compiler sees that all steps have
        # the same kernels, it unpacks them before the loop and holds all as
        # floats: a rollout with 25 MB of int8 had 105 MB of temporaries instead
        # of 8.
        weights, tokens = lax.optimization_barrier((weights, tokens))
      return adding(function)(weights, tokens, *state)

    return call

  def embeddings(params):
    assert policy.embeddings is not None
    return policy.embeddings(_join(params))

  return dataclasses.replace(
    policy,
    init=init,
    hidden=adapted(policy.hidden),
    prefix=adapted(policy.prefix),
    head=adapted(policy.head),
    prefill=adapted(policy.prefill),
    weights=lambda params: policy.weights(_join(params)),
    decode=step(policy.decode),
    extend=step(policy.extend),
    embeddings=embeddings,
    has_indexers=False,  # They are frozen.
  )


def wrap(params: PyTree, config: LoRAConfig, key: jax.Array) -> PyTree:
  """Frozen parameters of a transformer with fresh adapters.

  Args:
    params: Parameters of the transformer. No array is copied, unless it is
      quantized here. The kernels may be quantized already.
    config: The config of the adapters.
    key: Random key from which every A is drawn.

  Returns:
    {"trained": {name: {"a": [layers, *inputs, r], "b": [layers, r,
    *outputs]}}, "frozen": {"base": the transformer's trained parameters, …}},
    where … are its frozen parameters. Adapters are at least float32. Adapters
    of experts have an axis of experts after that of layers. Adapters of other
    stacks are under the path of the stack: {"dense_layers": {name: …}}, and
    {"tower": {"layers": {name: …}}} with names without "tower_".

  Raises:
    ValueError: `params` have adapters already; or `config.modules` names a
      projection that the layers do not have.
  """
  if "base" in params["frozen"]:
    raise ValueError(
      "lora.wrap: received parameters that have adapters already; pass those"
      " of the transformer, which merge() returns."
    )
  base = params["trained"]
  tree = {**params["frozen"], **base}  # A tower may be frozen already.
  adapters: dict[str, Any] = {}
  for (stack, name), (inputs, outputs, dtype) in _shapes(tree, config).items():
    key, draw = jax.random.split(key)
    batch = inputs[: 1 + name.startswith(_OF_EXPERTS)]
    bound = float(np.prod(inputs[len(batch) :])) ** -0.5
    of_stack = adapters
    if stack != "layers":
      for key_of_tree in stack.split("/"):
        of_stack = of_stack.setdefault(key_of_tree, {})
    of_stack[name] = {
      "a": jax.random.uniform(
        draw, (*inputs, config.rank), dtype, -bound, bound
      ),
      "b": jnp.zeros((*batch, config.rank, *outputs), dtype),
    }
  base = quantization.quantize(base, config.quantization)
  return {"trained": adapters, "frozen": {**params["frozen"], "base": base}}


def _kernel(layers: PyTree, name: str) -> PyTree:
  """Kernel of a projection in a stack of layers, or None if it is missing."""
  path, _ = MODULES[name]
  for key in path:
    layers = layers.get(key)
    if layers is None:
      return None
  return layers if name.startswith(_OF_EXPERTS) else layers["kernel"]


def _shapes(base: PyTree, config: LoRAConfig) -> dict[tuple[str, str], tuple]:
  """Maps (stack, adapter) to ((layers, *inputs), outputs, dtype)."""
  shapes = {}
  for stack in STACKS:
    # Towers of Qwen are those with a merger; their queries, keys and values
    # have one adapter.
    is_fused = stack == TOWER and "merger" in base.get("tower", {})
    for name, (path, _) in MODULES.items():
      if (name == "qkv" and not is_fused) or (name in _FUSED and is_fused):
        continue
      kernel = _kernel(_stack(base, stack), name)
      if kernel is None:
        continue
      kernel = quantization.abstract(kernel)
      if name in _FUSED:
        kernel = jax.eval_shape(lambda x, s=_FUSED[name]: x[..., s, :], kernel)
      num_inputs = 1 + len(quantization.INPUT_AXES[path[-1]])
      num_inputs += name.startswith(_OF_EXPERTS)
      shapes[stack, name] = (
        kernel.shape[:num_inputs],
        kernel.shape[num_inputs:],
        jnp.promote_types(kernel.dtype, jnp.float32),
      )
  names = dict.fromkeys(_full_name(*place) for place in shapes)
  if unknown := [name for name in config.modules if name not in names]:
    raise ValueError(
      f"lora: modules has {', '.join(unknown)}, which the layers do not have;"
      f" known are {', '.join(names)}."
    )
  modules = config.modules or [
    name for name in names if not name.startswith((_OF_EXPERTS, _OF_TOWER))
  ]
  # In the order of the config: the order decides which A is drawn from which
  # key.
  return {
    place: shapes[place]
    for stack in STACKS
    for name in modules
    if (place := (stack, name.removeprefix(_OF_TOWER))) in shapes
    and _full_name(*place) == name
  }


def _full_name(stack: str, name: str) -> str:
  """Name of a projection of a stack of layers in `LoRAConfig.modules`."""
  return _OF_TOWER + name if stack == TOWER else name


def _stack(tree: PyTree, stack: str) -> PyTree:
  """The layers at a path of a tree; {} if the path does not exist."""
  for key in stack.split("/"):
    tree = tree.get(key, {})
  return tree


def of_stacks(adapters: PyTree) -> dict[str, PyTree]:
  """Maps the path of each stack of layers to its adapters by name."""
  apart = {
    stack: subtree
    for stack in STACKS
    if stack != "layers" and (subtree := _stack(adapters, stack))
  }
  return {
    "layers": {k: v for k, v in adapters.items() if k in MODULES},
    **apart,
  }


def _join(params: PyTree) -> PyTree:
  """Parameters as the transformer reads them: adapters beside the kernels."""
  if "base" not in params["frozen"]:
    return params  # Already in this form, for decoding.
  frozen = dict(params["frozen"])
  base = dict(quantization.boxed(frozen.pop("base")))
  for stack, adapters in of_stacks(params["trained"]).items():
    for name, adapter in adapters.items():
      path, _ = MODULES[name]
      if name.startswith(_OF_EXPERTS):
        path = path[:-1]  # One module has the kernels of all three.
      path, beside = (*stack.split("/"), *path), {"lora": {name: adapter}}
      if path[0] in frozen:  # A tower that was frozen without adapters.
        frozen = _with(frozen, path, beside)
      else:
        base = _with(base, path, beside)
  return {"trained": base, "frozen": frozen}


def _with(tree: PyTree, path: tuple[str, ...], value: PyTree) -> PyTree:
  """Merges the dictionaries of `value` into a tree at a path."""
  for key in reversed(path):
    value = {key: value}

  def merged(x, y):
    if not (isinstance(x, dict) and isinstance(y, dict)):
      return y
    return {**x, **{k: merged(x.get(k), v) for k, v in y.items()}}

  return merged(tree, value)


def _add_adapter(config, next_function, args, kwargs, context):
  """Calls a Flax module, and adds the adapters that lie beside its kernel."""
  y = next_function(*args, **kwargs)
  module = context.module
  if context.method_name not in ("__call__", "matrix") or not (
    module.has_variable("params", "lora")
  ):
    return y
  adapters = module.get_variable("params", "lora")
  if isinstance(y, experts.Kernels):
    dtype = y.gate.dtype
    return y._replace(
      adapters={
        name.removeprefix(_OF_EXPERTS): (
          (config.scale * adapter["a"]).astype(dtype),
          adapter["b"].astype(dtype),
        )
        for name, adapter in adapters.items()
      }
    )
  if context.method_name == "matrix":
    (adapter,) = adapters.values()
    change = jnp.tensordot(config.scale * adapter["a"], adapter["b"], axes=1)
    return y + change.astype(y.dtype)
  (x,) = args

  def term(adapter):
    a, b = adapter["a"].astype(y.dtype), adapter["b"].astype(y.dtype)
    inner = jnp.tensordot(x.astype(y.dtype), a, axes=a.ndim - 1)  # [..., r]
    return jnp.tensordot(config.scale * inner, b, axes=1)

  if not adapters.keys() & _FUSED.keys():
    (adapter,) = adapters.values()
    return y + term(adapter)
  return jnp.concatenate(
    [
      y[..., place, :] + term(adapters[name])
      if name in adapters
      else y[..., place, :]
      for name, place in _FUSED.items()
    ],
    axis=-2,
  )


def merge(params: PyTree, config: LoRAConfig) -> PyTree:
  """Adds the adapters to the kernels of the plain transformer.

  Args:
    params: Parameters of a `lora_policy`.
    config: The config of the adapters.

  Returns:
    Parameters as `wrap` received them, changed by the adapters. They keep their
    dtype, so that a bfloat16 kernel loses changes below 1/256 of a weight.
    Quantized kernels become floats in the dtype of the embeddings.
  """
  frozen = dict(params["frozen"])
  base = frozen.pop("base")
  base = quantization.dequantize(base, base["embed"]["embedding"].dtype)
  base = dict(base)
  for stack, adapters in of_stacks(params["trained"]).items():
    for name, adapter in adapters.items():
      first, *_ = stack.split("/")
      owner = frozen if first in frozen else base
      kernel = _kernel(_stack(owner, stack), name)
      of_experts = name.startswith(_OF_EXPERTS)
      product: Callable = functools.partial(jnp.tensordot, axes=1)
      for _ in range(1 + of_experts):
        product = jax.vmap(product)
      change = config.scale * product(adapter["a"], adapter["b"])
      place = (..., _FUSED[name], slice(None)) if name in _FUSED else ...
      wide = kernel.astype(change.dtype)
      kernel = wide.at[place].add(change).astype(kernel.dtype)
      path, _ = MODULES[name]
      path = path if of_experts else (*path, "kernel")
      changed = _with(owner, (*stack.split("/"), *path), kernel)
      base, frozen = (base, changed) if owner is frozen else (changed, frozen)
  return {"trained": base, "frozen": frozen}
