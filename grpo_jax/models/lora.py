"""Low-rank adapters over a frozen transformer, as a `Policy` of its own.

    y = W x + (α / r) · B A x,    A ~ U(−1/√in, 1/√in),    B = 0 at the start

for the projections named in the config. Only A and B are trained: gradients and
optimizer state exist for them alone, the backward pass makes no gradient of W,
and W is never copied, whatever runs beside the policy (reference, average).

The layers of the transformer stay as they are: the second term is added where
Flax calls a projection. Queries, keys and values have adapters of their own
although their kernels are one, as in PEFT, whose files are read and written.

Source: Hu et al., "LoRA: Low-Rank Adaptation of Large Language Models",
arXiv:2106.09685, Eq. 3; the distribution of A is PEFT's.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import pathlib
import reprlib
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from grpo_jax import ranges
from grpo_jax.models import quantization
from grpo_jax.types import Policy, PyTree

# Adapter -> (module in a layer, its name in Hugging Face's models).
_MODULES = {
  "query": (("attention", "qkv"), "self_attn.q_proj"),
  "key": (("attention", "qkv"), "self_attn.k_proj"),
  "value": (("attention", "qkv"), "self_attn.v_proj"),
  "out": (("attention", "out"), "self_attn.o_proj"),
  "gate": (("mlp", "gate"), "mlp.gate_proj"),
  "up": (("mlp", "up"), "mlp.up_proj"),
  "down": (("mlp", "down"), "mlp.down_proj"),
}
# Their places in the axis R + 2 of the fused kernel.
_FUSED = {
  "query": slice(None, -2),
  "key": slice(-2, -1),
  "value": slice(-1, None),
}
RANKS = ranges.Range(1, 2**16)
_WEIGHTS, _CONFIG = "adapter_model.safetensors", "adapter_config.json"


@dataclasses.dataclass(frozen=True, kw_only=True)
class LoRAConfig:
  """Which projections are adapted, and how.

  Attributes:
    rank: Of each adapter, r ≥ 1.
    alpha: α > 0; the adapters' term is multiplied by α / r.
    modules: Projections with an adapter: "query", "key", "value", "out",
      "gate", "up", "down"; empty: all that the layers have. Experts of a
      mixture have none.
    quantization: How the kernels of all layers are kept: "none" (as they
      are), "int8" or "nf4"; see `quantization.py`.
  """

  rank: int = 16
  alpha: float = 32.0
  modules: tuple[str, ...] = ()
  quantization: str = "none"

  def __post_init__(self):
    if self.rank not in RANKS:
      raise ValueError(
        f"lora: rank is {self.rank}, but must be {RANKS}; leave the adapters"
        " out to train all parameters."
      )
    if self.alpha not in ranges.POSITIVE:
      raise ValueError(
        f"lora: alpha is {self.alpha}, but must be {ranges.POSITIVE}; else the"
        " adapters have no effect."
      )
    if {*self.modules} - {*_MODULES} or len({*self.modules}) < len(
      self.modules
    ):
      raise ValueError(
        f"lora: modules is {self.modules}; known are {', '.join(_MODULES)}."
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
  """A transformer with adapters, of which nothing else is trained.

  Args:
    policy: Of `transformer.py`.
    config: The config of the adapters.

  Returns:
    A policy with the parameters of `wrap`. Fresh ones give exactly the
    numbers of `policy`, unless its kernels are quantized.
  """

  def adding(function: Callable) -> Callable:
    def call(*args, **kwargs):
      with nn.intercept_methods(functools.partial(_add_adapter, config)):
        return function(*args, **kwargs)

    return call

  def adapted(function: Callable) -> Callable:
    def call(params, *args, **kwargs):
      return adding(function)(_joined(params), *args, **kwargs)

    return call

  def init(key):
    base_key, adapter_key = jax.random.split(key)
    return wrap(policy.init(base_key), config, adapter_key)

  def step(function: Callable) -> Callable:
    def call(weights, tokens, *state):
      if config.quantization != "none":
        # Tied to the step. A compiler that sees that all steps have the same
        # kernels unpacks them before the loop and holds every one as floats: in
        # a rollout with 25 MB of int8, 105 MB of temporaries instead of 8.
        weights, tokens = lax.optimization_barrier((weights, tokens))
      return adding(function)(weights, tokens, *state)

    return call

  def embeddings(params):
    assert policy.embeddings is not None
    return policy.embeddings(_joined(params))

  return dataclasses.replace(
    policy,
    init=init,
    hidden=adapted(policy.hidden),
    prefix=adapted(policy.prefix),
    head=adapted(policy.head),
    prefill=adapted(policy.prefill),
    weights=lambda params: policy.weights(_joined(params)),
    decode=step(policy.decode),
    extend=step(policy.extend),
    embeddings=embeddings,
  )


def wrap(params: PyTree, config: LoRAConfig, key: jax.Array) -> PyTree:
  """Frozen parameters of a transformer with fresh adapters.

  Args:
    params: Of the transformer; none of its arrays is copied unless it is
      quantized here. Its kernels may be so already.
    config: The config of the adapters.
    key: Draws every A.

  Returns:
    {"trained": {name: {"a": [layers, *inputs, r], "b": [layers, r,
    *outputs]}}, "frozen": {"base": what the transformer trains, and what it
    freezes itself}}. Adapters are at least float32.

  Raises:
    ValueError: `params` have adapters already; or `config.modules` names what
      the layers do not have.
  """
  if "base" in params["frozen"]:
    raise ValueError(
      "lora.wrap: received parameters that have adapters already; pass those"
      " of the transformer, which merge() returns."
    )
  base = params["trained"]
  adapters = {}
  for name, (inputs, outputs, dtype) in _shapes(base, config).items():
    key, draw = jax.random.split(key)
    layers, *sizes = inputs
    bound = float(np.prod(sizes)) ** -0.5
    adapters[name] = {
      "a": jax.random.uniform(
        draw, (layers, *sizes, config.rank), dtype, -bound, bound
      ),
      "b": jnp.zeros((layers, config.rank, *outputs), dtype),
    }
  base = quantization.quantize(base, config.quantization)
  return {"trained": adapters, "frozen": {**params["frozen"], "base": base}}


def _shapes(base: PyTree, config: LoRAConfig) -> dict[str, tuple]:
  """Adapter -> ((layers, *inputs), outputs, dtype); raises for unknown ones."""
  known = {}
  for name, ((part, module), _) in _MODULES.items():
    if module not in base["layers"][part]:
      continue
    kernel = quantization.abstract(base["layers"][part][module]["kernel"])
    if name in _FUSED:
      kernel = jax.eval_shape(lambda x, s=_FUSED[name]: x[..., s, :], kernel)
    num_inputs = len(quantization.INPUT_AXES[module])
    known[name] = (
      kernel.shape[: 1 + num_inputs],
      kernel.shape[1 + num_inputs :],
      jnp.promote_types(kernel.dtype, jnp.float32),
    )
  if unknown := [name for name in config.modules if name not in known]:
    raise ValueError(
      f"lora: modules has {', '.join(unknown)}, which the layers do not have;"
      f" known are {', '.join(known)}."
    )
  return {name: known[name] for name in config.modules or known}


def _joined(params: PyTree) -> PyTree:
  """Parameters as the transformer gets them: adapters beside the kernels."""
  if "base" not in params["frozen"]:
    return params  # They are joined already, for decoding.
  frozen = dict(params["frozen"])
  base = quantization.boxed(frozen.pop("base"))
  layers = {name: dict(part) for name, part in base["layers"].items()}
  for name, adapter in params["trained"].items():
    (part, module), _ = _MODULES[name]
    beside = layers[part][module]
    layers[part][module] = {
      **beside,
      "lora": {**beside.get("lora", {}), name: adapter},
    }
  return {"trained": {**base, "layers": layers}, "frozen": frozen}


def _add_adapter(config, next_function, args, kwargs, context):
  """Calls a module of Flax; where adapters lie beside its kernel, adds them."""
  y = next_function(*args, **kwargs)
  module = context.module
  if context.method_name != "__call__" or not module.has_variable(
    "params", "lora"
  ):
    return y
  (x,) = args

  def term(adapter):
    a, b = adapter["a"].astype(y.dtype), adapter["b"].astype(y.dtype)
    inner = jnp.tensordot(x.astype(y.dtype), a, axes=a.ndim - 1)  # [..., r]
    return jnp.tensordot(config.scale * inner, b, axes=1)

  adapters = module.get_variable("params", "lora")
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
  """Parameters of the plain transformer, with the adapters in its kernels.

  Args:
    params: Of a `lora_policy`.
    config: Its config.

  Returns:
    What `wrap` got, changed by the adapters; in its dtype, so that a bfloat16
    kernel loses changes below 1/256 of a weight. Kernels that were quantized
    are what their codes stand for, in the dtype of the embeddings.
  """
  frozen = dict(params["frozen"])
  base = frozen.pop("base")
  base = quantization.dequantize(base, base["embed"]["embedding"].dtype)
  layers = {name: dict(part) for name, part in base["layers"].items()}
  for name, adapter in params["trained"].items():
    (part, module), _ = _MODULES[name]
    kernel = layers[part][module]["kernel"]
    change = config.scale * jax.vmap(lambda a, b: jnp.tensordot(a, b, axes=1))(
      adapter["a"], adapter["b"]
    )
    place = (..., _FUSED[name], slice(None)) if name in _FUSED else ...
    wide = kernel.astype(change.dtype)
    kernel = wide.at[place].add(change).astype(kernel.dtype)
    layers[part][module] = {**layers[part][module], "kernel": kernel}
  return {"trained": {**base, "layers": layers}, "frozen": frozen}


def save_peft(
  directory: str | os.PathLike,
  params: PyTree,
  config: LoRAConfig,
  base_model: str = "",
  revision: str = "",
) -> None:
  """Writes the adapters as PEFT does, for the base's Hugging Face checkpoint.

  Args:
    directory: Gets adapter_config.json and adapter_model.safetensors.
    params: Of a `lora_policy`.
    config: Its config.
    base_model, revision: Folder or hub name of the checkpoint of the base, and
      which one it is on the hub, noted in the config file.

  Raises:
    ValueError: The directory has one of the files already.
    ModuleNotFoundError: safetensors is not installed.
  """
  safetensors = _safetensors()
  directory = pathlib.Path(directory)
  for name in (_WEIGHTS, _CONFIG):
    if (directory / name).exists():
      raise ValueError(
        f"save_peft: {directory / name} exists already; nothing was changed."
        " Pass another directory."
      )
  directory.mkdir(parents=True, exist_ok=True)
  tensors = {
    name: np.ascontiguousarray(value)
    for name, value in _to_peft(jax.device_get(params["trained"])).items()
  }
  safetensors.save_file(
    tensors, directory / _WEIGHTS, metadata={"format": "pt"}
  )
  settings = {
    "peft_type": "LORA",
    "task_type": "CAUSAL_LM",
    "base_model_name_or_path": base_model,
    "revision": revision or None,
    "inference_mode": True,
    "r": config.rank,
    "lora_alpha": config.alpha,
    "lora_dropout": 0.0,
    "bias": "none",
    "fan_in_fan_out": False,
    "target_modules": [
      _MODULES[name][1].split(".")[-1] for name in params["trained"]
    ],
  }
  text = json.dumps(settings, indent=2) + "\n"
  (directory / _CONFIG).write_text(text, encoding="utf-8")


def peft_config(
  directory: str | os.PathLike, quantization: str = "none"
) -> LoRAConfig:
  """The config of the adapters that PEFT, or `save_peft`, wrote.

  Args:
    directory: Has adapter_config.json and adapter_model.safetensors.
    quantization: Of the base, which the file does not say.

  Raises:
    FileNotFoundError: A file is missing.
    ValueError: adapter_config.json is damaged, or says what a `LoRAConfig`
      cannot.
  """
  settings = _read_settings(directory)
  path = pathlib.Path(directory) / _CONFIG
  targets = settings.get("target_modules")
  ours = {theirs.split(".")[-1]: name for name, (_, theirs) in _MODULES.items()}
  listed = [] if targets == "all-linear" else targets
  if not isinstance(listed, list) or not all(
    isinstance(name, str) and name.split(".")[-1] in ours for name in listed
  ):
    raise ValueError(
      f"peft_config: {path} has target_modules {reprlib.repr(targets)}; needed"
      f" is 'all-linear', or a list of {', '.join(ours)}. Write the modules out"
      " of which the file has adapters."
    )
  named = {ours[name.split(".")[-1]] for name in listed}
  rank: Any = settings.get("r")
  alpha: Any = settings.get("lora_alpha")
  if type(rank) is not int or type(alpha) not in (int, float):
    raise ValueError(
      f"peft_config: {path} has r {reprlib.repr(rank)} and lora_alpha"
      f" {reprlib.repr(alpha)}; needed are a whole number and a number."
    )
  try:
    config = LoRAConfig(
      rank=rank,
      alpha=alpha,
      modules=tuple(name for name in _MODULES if name in named),
      quantization=quantization,
    )
  except ValueError as error:
    raise ValueError(f"peft_config: {path}: {error}") from error
  _check_settings(path, settings, config)
  return config


def load_peft(
  directory: str | os.PathLike, params: PyTree, config: LoRAConfig
) -> PyTree:
  """`params` with the adapters that PEFT, or `save_peft`, wrote.

  Args:
    directory: Has adapter_config.json and adapter_model.safetensors.
    params: Of a `lora_policy` over the base that the adapters belong to.
    config: Its config; must have the rank, α and modules of the file.

  Raises:
    FileNotFoundError: A file is missing.
    ValueError: The files have other settings or tensors than the config, or
      are damaged; the message says which.
    ModuleNotFoundError: safetensors is not installed.
  """
  safetensors = _safetensors()
  settings = _read_settings(directory)
  directory = pathlib.Path(directory).expanduser()
  _check_settings(directory / _CONFIG, settings, config)
  try:
    tensors = safetensors.load_file(directory / _WEIGHTS)
  except Exception as error:
    raise ValueError(
      f"load_peft: {directory / _WEIGHTS} cannot be read ({error}); copy it"
      " again."
    ) from error
  shapes = jax.eval_shape(_to_peft, params["trained"])
  differ = [
    f"{name} is {_shape(tensors, name)} in the file and"
    f" {_shape(shapes, name)} here"
    for name in sorted(tensors.keys() | shapes.keys())
    if _shape(tensors, name) != _shape(shapes, name)
  ]
  if differ:
    raise ValueError(
      f"load_peft: {len(differ)} tensors of {directory / _WEIGHTS} do not fit"
      f" this policy: {'; '.join(differ[:3])}. Use the modules, the rank and"
      " the base that they were trained with."
    )
  return {**params, "trained": _from_peft(tensors, params["trained"])}


def _read_settings(directory: str | os.PathLike) -> dict[str, Any]:
  """What adapter_config.json says; both files are there."""
  directory = pathlib.Path(directory).expanduser()
  for name in (_WEIGHTS, _CONFIG):
    if not (directory / name).is_file():
      raise FileNotFoundError(
        f"load_peft: {directory / name} is missing; needed is a folder as"
        " PEFT's save_pretrained writes it."
      )
  path = directory / _CONFIG
  try:
    settings = json.loads(path.read_text(encoding="utf-8"))
  except (ValueError, RecursionError) as error:
    raise ValueError(
      f"load_peft: {path} is no JSON: {error}. Copy the file again."
    ) from error
  if not isinstance(settings, dict):
    raise ValueError(
      f"load_peft: {path} holds no object of keys. Copy the file again."
    )
  return settings


def _safetensors():
  try:
    from safetensors import numpy as safetensors
  except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
      "lora: adapter files need the package safetensors; install the extra:"
      " pip install -e '.[hf]'."
    ) from error
  return safetensors


def _shape(arrays: dict[str, Any], name: str) -> Any:
  return tuple(arrays[name].shape) if name in arrays else "absent"


def _check_settings(
  path: pathlib.Path, settings: dict[str, Any], config: LoRAConfig
) -> None:
  """Raises unless the adapters mean what a `LoRAConfig` can say."""
  plain = {
    "peft_type": "LORA",
    "r": config.rank,
    "lora_alpha": config.alpha,
    "bias": "none",
    "use_rslora": False,
    "use_dora": False,
    "fan_in_fan_out": False,
    "rank_pattern": {},
    "alpha_pattern": {},
    "modules_to_save": None,
    "layers_to_transform": None,
    "layer_replication": None,
    "lora_bias": False,
    "use_qalora": False,
    "target_parameters": None,
    "trainable_token_indices": None,
    # Adapters that begin to work in the middle of a text.
    "alora_invocation_tokens": None,
  }
  # Other ways to start, like PiSSA, take a part out of the base's weights.
  if settings.get("init_lora_weights") not in (None, True, False, "gaussian"):
    plain["init_lora_weights"] = True
  differ = [
    f"{name} is {reprlib.repr(settings[name])}, needed is {value!r}"
    for name, value in plain.items()
    if settings.get(name, value) not in (value, value or None)
  ]
  if differ:
    raise ValueError(
      f"load_peft: {path} does not fit this policy: {'; '.join(differ)}."
    )


def _peft_name(layer: int, name: str, which: str) -> str:
  module = _MODULES[name][1]
  return f"base_model.model.model.layers.{layer}.{module}.lora_{which}.weight"


def _to_peft(adapters: PyTree) -> dict[str, jax.Array]:
  """Adapters under PEFT's names: A [r, inputs] and B [outputs, r]."""
  tensors = {}
  for name, adapter in adapters.items():
    rank = adapter["a"].shape[-1]
    for layer in range(len(adapter["a"])):
      a = adapter["a"][layer].reshape(-1, rank)
      b = adapter["b"][layer].reshape(rank, -1)
      tensors[_peft_name(layer, name, "A")] = a.T
      tensors[_peft_name(layer, name, "B")] = b.T
  return tensors


def _from_peft(tensors: dict[str, np.ndarray], like: PyTree) -> PyTree:
  """The reverse, in the shapes and dtypes of `like`."""

  def stacked(name, which, leaf):
    layers = [
      tensors[_peft_name(layer, name, which.upper())].T
      for layer in range(len(leaf))
    ]
    return jnp.asarray(np.stack(layers).reshape(leaf.shape), leaf.dtype)

  return {
    name: {which: stacked(name, which, leaf) for which, leaf in adapter.items()}
    for name, adapter in like.items()
  }
