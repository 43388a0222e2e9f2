"""Reads and writes adapters in the files of PEFT.

PEFT's files for the base's Hugging Face checkpoint, and those of `save`, have
matrices A [r, in] and B [out, r] for each projection of each layer.
"""

from __future__ import annotations

import functools
import os
import pathlib
import re
import reprlib
from typing import Any, NamedTuple

import jax
import numpy as np

from grpo_jax.models.architecture import TransformerConfig
from grpo_jax.models.hf import safetensors
from grpo_jax.models.policies import lora
from grpo_jax.types import PyTree

# Names of an MLP without a gate, in nanochat and in towers.
_NO_GATE = {"up": "mlp.fc1", "down": "mlp.fc2"}
# Layers of a tower in transformers' models, and names of its adapters there.
_BLOCKS = "model.visual.blocks"
_QWEN = {"qkv": "attn.qkv", "out": "attn.proj"}
_GATED = {x: f"mlp.{x}_proj" for x in ("gate", "up", "down")}
_SIGLIP = {"query": "self_attn.q_proj", "key": "self_attn.k_proj"}
_SIGLIP |= {"value": "self_attn.v_proj", "out": "self_attn.out_proj"}
_TOWERS = {
  "qwen2_5_vl": (_BLOCKS, _QWEN | _GATED),
  "qwen2_vl": (_BLOCKS, _QWEN | _NO_GATE),
  "qwen3_vl": (
    _BLOCKS,
    _QWEN | {"up": "mlp.linear_fc1", "down": "mlp.linear_fc2"},
  ),
  "siglip": ("model.vision_model.encoder.layers", _SIGLIP | _NO_GATE),
}


class _Model(NamedTuple):
  """Properties of the base on which the names of adapters depend.

  Attributes:
    num_apart: Number of first layers of the base that have a stack of their
      own.
    layers: Name of the language model's layers in transformers' model.
    modules: Names of their modules that are not those of `lora.MODULES`.
    tower: Name of the tower's layers there, and names of their modules.
    beside: Whether transformers' model has further parts, which are not run
      here and have modules of the same names.
  """

  num_apart: int
  layers: str
  modules: dict[str, str]
  tower: tuple[str, dict[str, str]]
  beside: bool = False


def _model(params: PyTree, nested: bool) -> _Model:
  """The properties of the base of a `lora_policy`, from its parameters."""
  frozen = params["frozen"]
  if "linear_layers" in frozen["base"]:
    raise ValueError(
      "peft: layers with the gated delta rule have one adapter for projections"
      " that are several modules in PEFT; merge the adapters (lora.merge), or"
      " start with fresh ones."
    )
  apart = frozen["base"].get("dense_layers")
  num_apart = 0 if apart is None else len(jax.tree.leaves(apart)[0])
  tower = {**frozen, **frozen["base"]}.get("tower")
  has_gate = {"gate", "router"} & frozen["base"]["layers"]["mlp"].keys()
  modules = {} if has_gate else _NO_GATE
  if tower is None:
    layers = "model.language_model.layers" if nested else "model.layers"
    return _Model(num_apart, layers, modules, ("", {}), nested)
  if "connector" in tower:
    layers = "model.text_model.layers"
    return _Model(num_apart, layers, modules, _TOWERS["siglip"])
  kind = "qwen3_vl" if "places" in tower else "qwen2_vl"
  if "gate" in tower["layers"]["mlp"]:
    kind = "qwen2_5_vl"
  layers = "model.language_model.layers"
  return _Model(num_apart, layers, modules, _TOWERS[kind])


_WEIGHTS, _CONFIG = "adapter_model.safetensors", "adapter_config.json"


def check(model: TransformerConfig) -> None:
  """Raises ValueError if PEFT's files cannot hold adapters of the model."""
  if any((model.llama4, model.gemma4, model.deepseek4)):
    raise ValueError(
      "peft: adapters of Llama 4, Gemma 4 and DeepSeek-V4 are neither read nor"
      " written in the format of PEFT, where other modules have their names;"
      " start from fresh adapters, and export them merged, without --adapters."
    )


def save(
  directory: str | os.PathLike,
  params: PyTree,
  config: lora.LoRAConfig,
  base_model: str = "",
  revision: str = "",
  *,
  nested: bool = False,
) -> None:
  """Writes the adapters as PEFT does, for the base's Hugging Face checkpoint.

  Args:
    directory: Folder for adapter_config.json and adapter_model.safetensors.
    base_model, revision: Folder or hub name of the base's checkpoint, and its
      revision on the hub; both are noted in the config file.
    nested: True if the base is part of a model with images (`Family.nested`).

  Raises:
    ValueError: The directory has one of the files already.
  """
  directory = pathlib.Path(directory)
  for name in (_WEIGHTS, _CONFIG):
    if (directory / name).exists():
      raise ValueError(
        f"{directory / name} exists already; nothing was changed. Pass another"
        " directory."
      )
  directory.mkdir(parents=True, exist_ok=True)
  model = _model(params, nested)
  tensors = _to_peft(jax.device_get(params["trained"]), model)
  names = {value: name for name, value in safetensors.DTYPES.items()}
  outputs = [
    safetensors.Output(
      name,
      names[value.dtype],
      value.shape,
      value.nbytes,
      functools.partial(np.ascontiguousarray, value),
    )
    for name, value in sorted(tensors.items())
  ]
  safetensors.write_file(directory / _WEIGHTS, outputs)
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
    "target_modules": _targets(params, model),
  }
  safetensors.write_json(directory / _CONFIG, settings)


def config_of(
  directory: str | os.PathLike, quantization: str = "none"
) -> lora.LoRAConfig:
  """The config of the adapters that PEFT, or `save`, wrote.

  Args:
    directory: Folder with adapter_config.json and adapter_model.safetensors.
    quantization: Quantization of the base, which is not in the file.

  Raises:
    FileNotFoundError: A file is missing.
    ValueError: adapter_config.json is damaged, or has a setting that a
      `lora.LoRAConfig` cannot express.
  """
  settings = _read_settings(directory)
  path = pathlib.Path(directory) / _CONFIG
  targets = settings.get("target_modules")
  listed = [] if targets == "all-linear" else targets
  if not isinstance(listed, list) or not all(
    isinstance(name, str) and _adapter_of(name) for name in listed
  ):
    raise ValueError(
      f"{path} has target_modules {reprlib.repr(targets)}; needs"
      " 'all-linear', or a list of modules such as q_proj, o_proj and gate_proj"
      " (the table in models/policies/lora.py has all). Write the modules out"
      " of which the file has adapters."
    )
  named = {_adapter_of(name) for name in listed}
  rank: Any = settings.get("r")
  alpha: Any = settings.get("lora_alpha")
  if type(rank) is not int or type(alpha) not in (int, float):
    raise ValueError(
      f"{path} has r {reprlib.repr(rank)} and lora_alpha {reprlib.repr(alpha)};"
      " needs a whole number and a number."
    )
  try:
    config = lora.LoRAConfig(
      rank=rank,
      alpha=alpha,
      modules=tuple(name for name in lora.NAMES if name in named),
      quantization=quantization,
    )
  except ValueError as error:
    raise ValueError(f"{path}: {error}") from error
  _check_settings(path, settings, config)
  return config


def load(
  directory: str | os.PathLike,
  params: PyTree,
  config: lora.LoRAConfig,
  *,
  nested: bool = False,
) -> PyTree:
  """Replaces the adapters in `params` by those that PEFT, or `save`, wrote.

  Args:
    directory: Folder with adapter_config.json and adapter_model.safetensors.
    nested: True if the base is part of a model with images (`Family.nested`).

  Raises:
    FileNotFoundError: A file is missing.
    ValueError: The files have other settings or tensors than the config, or
      are damaged; the message names them.
  """
  settings = _read_settings(directory)
  directory = pathlib.Path(directory).expanduser()
  _check_settings(directory / _CONFIG, settings, config)
  tensors = safetensors.read_header(directory / _WEIGHTS)
  for name, tensor in tensors.items():
    if tensor.dtype not in safetensors.DTYPES:
      raise ValueError(
        f"{name} in {directory / _WEIGHTS} is {tensor.dtype}; supported are"
        f" {', '.join(safetensors.DTYPES)}. Convert the adapters to one of"
        " these."
      )
  model = _model(params, nested)
  shapes = jax.eval_shape(
    lambda adapters: _to_peft(adapters, model), params["trained"]
  )
  differ = [
    f"{name} is {_shape(tensors, name)} in the file and"
    f" {_shape(shapes, name)} here"
    for name in sorted(tensors.keys() | shapes.keys())
    if _shape(tensors, name) != _shape(shapes, name)
  ]
  if differ:
    raise ValueError(
      f"{len(differ)} tensors of {directory / _WEIGHTS} do not fit this policy:"
      f" {'; '.join(differ[:3])}. Use the modules, the rank and the base that"
      " they were trained with."
    )
  arrays = {name: tensor.map() for name, tensor in tensors.items()}
  return {**params, "trained": _from_peft(arrays, params, model)}


def _read_settings(directory: str | os.PathLike) -> dict[str, Any]:
  """Settings in adapter_config.json; raises if either file is missing."""
  directory = pathlib.Path(directory).expanduser()
  for name in (_WEIGHTS, _CONFIG):
    if not (directory / name).is_file():
      raise FileNotFoundError(
        f"{directory / name} is missing; needs a folder as PEFT's"
        " save_pretrained writes it."
      )
  return safetensors.read_object(directory / _CONFIG)


def _shape(arrays: dict[str, Any], name: str) -> Any:
  return tuple(arrays[name].shape) if name in arrays else "absent"


def _check_settings(
  path: pathlib.Path, settings: dict[str, Any], config: lora.LoRAConfig
) -> None:
  """Raises unless a `lora.LoRAConfig` can express the settings."""
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
    # Adapters that are active only from the middle of a text on.
    "alora_invocation_tokens": None,
  }
  # Other initializations, such as PiSSA, change the base's weights.
  if settings.get("init_lora_weights") not in (None, True, False, "gaussian"):
    plain["init_lora_weights"] = True
  differ = [
    f"{name} is {reprlib.repr(settings[name])}, needs {value!r}"
    for name, value in plain.items()
    if settings.get(name, value) not in (value, value or None)
  ]
  if differ:
    raise ValueError(f"{path} does not fit this policy: {'; '.join(differ)}.")


def _targets(params: PyTree, model: _Model) -> list[str]:
  """Ends of names that match the adapted modules and no other module."""
  base = params["frozen"]["base"]
  is_mixture = "experts" in base["layers"]["mlp"]
  targets: dict[str, None] = {}
  ends_of_tower = {name.rsplit(".")[-1] for name in model.tower[1].values()}
  for stack, adapters in lora.of_stacks(params["trained"]).items():
    for name, adapter in adapters.items():
      prefix, module = _module(stack, name, model)
      part, *rest = module.split(".")
      is_own = stack == lora.TOWER or name in model.modules or model.beside
      if "{expert}" in rest:
        _, num_experts, *_ = adapter["a"].shape
        pattern = ".".join(rest)
        ends = [pattern.format(expert=i) for i in range(num_experts)]
      elif is_own or rest[-1] in ends_of_tower:
        # Modules of the other part, or of mergers, could have the same end.
        first = model.num_apart if stack == "layers" else 0
        ends = [
          f"{prefix}.{first + i}.{module}" for i in range(len(adapter["a"]))
        ]
      elif part == "mlp" and is_mixture and stack != lora.TOWER:
        # Experts also have modules of such names.
        ends = [".".join(rest) if len(rest) > 1 else f"{part}.{rest[0]}"]
      else:
        ends = rest[-1:]
      targets |= dict.fromkeys(ends)
  return list(targets)


def _adapter_of(target: str) -> str | None:
  """The adapter of a target module, the first of several; or None."""
  for layers, modules in _TOWERS.values():
    short = layers.removeprefix("model.")  # Also the name in transformers < 5.
    for name, module in modules.items():
      in_tower = re.search(rf"(^|\.){re.escape(short)}\.\d+\.", f".{target}")
      if in_tower and target.endswith(f".{module}"):
        return f"tower_{name}"
  for name, module in _NO_GATE.items():
    if re.search(rf"(^|\.)layers\.\d+\.{re.escape(module)}$", target):
      return name
  target = re.sub(r"\.\d+\.", ".{expert}.", f".{target}")
  for name, (_, module) in lora.MODULES.items():
    is_match = f".{module}".endswith(target) or target.endswith(f".{module}")
    if is_match and name in lora.NAMES:
      return name
  for _, modules in _TOWERS.values():
    for name, module in modules.items():
      if f".{module}".endswith(target):
        return f"tower_{name}"
  return None


def _module(stack: str, name: str, model: _Model) -> tuple[str, str]:
  """Name of the layers that have a module, and its name in a layer."""
  if stack == lora.TOWER:
    layers, modules = model.tower
    return layers, modules[name]
  return model.layers, model.modules.get(name, lora.MODULES[name][1])


def _adapters(params_or_adapters: PyTree, model: _Model):
  """Tuples of name here, adapter, index in its arrays, and name in PEFT."""
  for stack, adapters in lora.of_stacks(params_or_adapters).items():
    first = model.num_apart if stack == "layers" else 0
    for name, adapter in adapters.items():
      layers, template = _module(stack, name, model)
      num_layers, num_experts, *_ = adapter["a"].shape
      places: list[tuple[int, ...]] = [(layer,) for layer in range(num_layers)]
      if "{expert}" in template:
        places = [(*x, e) for x in places for e in range(num_experts)]
      for layer, *expert in places:
        module = template.format(expert=expert[0]) if expert else template
        yield (
          name,
          adapter,
          (layer, *expert),
          f"base_model.model.{layers}.{first + layer}.{module}",
        )


def _to_peft(adapters: PyTree, model: _Model) -> dict[str, jax.Array]:
  """Converts adapters to PEFT's names: A [r, inputs] and B [outputs, r]."""
  tensors = {}
  for name, adapter, place, module in _adapters(adapters, model):
    a, b = adapter["a"][place], adapter["b"][place]
    rank = a.shape[-1]
    if name == "qkv":  # [r, H, 3, K]; in PEFT queries of all heads come first.
      b = b.swapaxes(1, 2)
    tensors[f"{module}.lora_A.weight"] = a.reshape(-1, rank).T
    tensors[f"{module}.lora_B.weight"] = b.reshape(rank, -1).T
  return tensors


def _from_peft(
  tensors: dict[str, np.ndarray], params: PyTree, model: _Model
) -> PyTree:
  """The reverse of `_to_peft`, in the shapes and dtypes of the adapters."""
  like = params["trained"]
  leaves, treedef = jax.tree.flatten(like)
  # The arrays are filled in place; they are the leaves of the tree.
  arrays = [np.empty(leaf.shape, leaf.dtype) for leaf in leaves]
  tree = jax.tree.unflatten(treedef, arrays)
  for name, adapter, place, module in _adapters(tree, model):
    for which, array in adapter.items():
      tensor = tensors[f"{module}.lora_{which.upper()}.weight"]
      into = array[place]
      if name == "qkv" and which == "b":
        into = into.swapaxes(1, 2)
      into[...] = tensor.T.reshape(into.shape)
  return jax.device_put(tree)
