r"""Reads the settings of a run of TRL's GRPO as settings of this library.

    grpo-from-trl grpo.yaml
    grpo-from-trl grpo.yaml --num_devices=8 --config_file=my_config.py

The file is YAML or JSON, as `trl grpo --config` takes it, or a GRPOConfig that
was written with `to_json_string`. TRL need not be installed. Without
--config_file the program prints the command that trains. With it, it writes a
config file: --config=my_config.py. Fields that the file leaves out have TRL's
defaults, those of 1.16.0.

Each field without a counterpart gets a line that says why, and so does a value
that is meant otherwise here. A field that is null is not set. A name that TRL
does not have is refused. docs/start/switching.md has the table of all fields.
"""

from __future__ import annotations

import functools
import json
import pathlib
import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

import yaml
from absl import flags

from grpo_jax.cli import flags as flags_lib
from grpo_jax.rewards import registry
from grpo_jax.settings import groups, overrides

_CONFIG_FILE = flags.DEFINE_string(
  "config_file", "", "Config file to write; empty: none."
)
_NUM_DEVICES = flags.DEFINE_integer(
  "num_devices", 1, "Devices of the run of TRL, which its batch counts.", 1
)

# Field of TRL -> (its default, the setting with the same meaning).
SAME: dict[str, tuple[Any, str]] = {
  "num_generations": (8, "rl.group_size"),
  "num_iterations": (1, "rl.num_epochs"),
  "learning_rate": (1e-6, "rl.optimizer.learning_rate"),
  "warmup_steps": (0, "rl.optimizer.warmup_steps"),
  "weight_decay": (0.0, "rl.optimizer.weight_decay"),
  "adam_beta1": (0.9, "rl.optimizer.b1"),
  "adam_beta2": (0.999, "rl.optimizer.b2"),
  "adam_epsilon": (1e-8, "rl.optimizer.eps"),
  "max_grad_norm": (1.0, "rl.optimizer.clip_norm"),
  "beta": (0.0, "algorithm.kl_coef"),
  "epsilon": (0.2, "algorithm.clip_low"),
  "delta": (None, "algorithm.ratio_cap"),
  "mask_truncated_completions": (False, "algorithm.overlong_filter"),
  "top_entropy_quantile": (1.0, "algorithm.top_entropy_fraction"),
  "entropy_coef": (0.0, "algorithm.entropy_coef"),
  "sapo_temperature_neg": (1.05, "algorithm.tau_negative"),
  "sapo_temperature_pos": (1.0, "algorithm.tau_positive"),
  "vespo_k_pos": (2.0, "algorithm.k_positive"),
  "vespo_lambda_pos": (3.0, "algorithm.lambda_positive"),
  "vespo_k_neg": (3.0, "algorithm.k_negative"),
  "vespo_lambda_neg": (2.0, "algorithm.lambda_negative"),
  "off_policy_mask_threshold": (None, "algorithm.off_policy_threshold"),
  "max_completion_length": (512, "sampling.max_new_tokens"),
  "temperature": (1.0, "sampling.temperature"),
  "min_p": (None, "sampling.min_p"),
  "chat_template_kwargs": (None, "data.chat_options"),
  "reward_weights": (None, "rewards.weights"),
  "seed": (42, "seed"),
  "save_total_limit": (None, "checkpoint.keep"),
  "run_name": (None, "log.name"),
  "num_completions_to_print": (None, "log.num_samples"),
}
# Fields of TRL's command line and of its ModelConfig, in the same form.
BESIDE: dict[str, tuple[Any, str]] = {
  "model_name_or_path": (None, "model.checkpoint"),
  "model_revision": (None, "model.revision"),
  "dataset_train_split": (None, "data.train_split"),
  "dataset_test_split": (None, "data.eval_split"),
  "dataset_streaming": (None, "data.streaming"),
  "max_prompt_length": (None, "data.max_prompt_len"),  # Until TRL 0.24.
}
# Fields that `Converted` reads one by one -> TRL's default.
READ: dict[str, Any] = {
  "per_device_train_batch_size": 8,
  "gradient_accumulation_steps": 1,
  "generation_batch_size": None,
  "steps_per_generation": None,
  "max_steps": -1,
  "num_train_epochs": 3.0,
  "lr_scheduler_type": "linear",
  "optim": "adamw_torch_fused",
  "loss_type": "dapo",
  "importance_sampling_level": "token",
  "multi_objective_aggregation": "sum_then_normalize",
  "scale_rewards": "group",
  "epsilon_high": None,
  "use_bias_correction_kl": True,
  "use_adaptive_entropy": False,
  "entropy_target": 0.2,
  "entropy_coef_delta": 0.005,
  "router_aux_loss_coef": None,
  "top_p": 1.0,
  "top_k": 0,
  "bf16": None,
  "gradient_checkpointing": True,
  "eval_strategy": "no",
  "eval_steps": None,
  "per_device_eval_batch_size": 8,
  "save_strategy": "steps",
  "save_steps": 500,
  "report_to": "none",
  "project": "huggingface",
  "log_completions": False,
  "output_dir": None,
  "dataset_name": None,
  "dataset_config": None,
  "reward_funcs": None,
  "use_peft": False,
  "lora_r": 16,
  "lora_alpha": 32,
  "lora_target_modules": None,
  "dtype": None,
  "torch_dtype": None,
}
# Why fields have no counterpart -> their names.
WITHOUT: dict[str, str] = {
  "losses here do not depend on how rows are split, and memory is planned by"
  " the compiler; `experiments.pods.memory` says what fits": (
    "auto_find_batch_size average_tokens_across_devices torch_empty_cache_steps"
    " torch_compile torch_compile_backend torch_compile_mode use_liger_kernel"
    " liger_kernel_config pad_to_multiple_of ds3_gather_for_generation"
    " ddp_find_unused_parameters ddp_bucket_cap_mb ddp_broadcast_buffers"
    " ddp_static_graph ddp_backend ddp_timeout local_rank use_cache"
  ),
  "devices are split by config.mesh": (
    "fsdp fsdp_config deepspeed parallelism_config accelerator_config"
  ),
  "an optimizer has the settings of config.rl.optimizer alone, as"
  " final_fraction of its schedule": (
    "optim_args optim_target_modules lr_scheduler_kwargs"
  ),
  "it is of losses that are not here": (
    "label_smoothing_factor neftune_noise_alpha"
  ),
  "the weight of the entropy is at least 0, without an upper bound": (
    "entropy_coef_min entropy_coef_max"
  ),
  "the reference is the policy at the start of a phase; several phases renew"
  " it": "sync_ref_model ref_model_mixup_alpha ref_model_sync_steps",
  "the sampler has the settings of config.sampling alone, because the update"
  " needs its log-probs": (
    "repetition_penalty generation_kwargs vllm_structured_outputs_regex"
  ),
  "config.model.cache_dtype and config.sampling.num_cache_sizes are of the"
  " cache": "cache_implementation",
  "the turns of an environment are config.environment.max_turns": (
    "max_tool_calling_iterations"
  ),
  "config.sampling.lanes begins a completion where another has ended": (
    "use_transformers_continuous_batching"
    " transformers_continuous_batching_config use_transformers_paged"
  ),
  "the compiled step samples, and there is no other program; the gap between"
  " sampler and update is corrected by config.algorithm.importance_mode": (
    "use_vllm vllm_mode vllm_model_impl vllm_enable_sleep_mode"
    " vllm_server_base_url vllm_server_host vllm_server_port"
    " vllm_server_timeout vllm_group_port vllm_gpu_memory_utilization"
    " vllm_max_model_length vllm_tensor_parallel_size"
    " vllm_importance_sampling_correction vllm_importance_sampling_mode"
    " vllm_importance_sampling_clip_max vllm_importance_sampling_clip_min"
    " vllm_importance_sampling_cap"
  ),
  "the seed decides the order of prompts, and config.data.num_threads reads"
  " them": (
    "shuffle_dataset train_sampling_strategy length_column_name"
    " dataloader_num_workers dataloader_prefetch_factor dataloader_drop_last"
    " dataloader_pin_memory dataloader_persistent_workers"
    " dataloader_multiprocessing_context dataloader_in_order ignore_data_skip"
    " data_seed"
  ),
  "every column beside those of a record reaches the reward functions": (
    "remove_unused_columns label_names"
  ),
  "the config.json of the checkpoint and config.model say how a model is"
  " loaded, and no code of a checkpoint is run": (
    "model_init_kwargs trust_remote_code disable_dropout cast_lm_head_to_fp32"
    " attn_implementation"
  ),
  "numbers are config.model.dtype and param_dtype": "fp16 tf32",
  "the environment variable JAX_PLATFORMS chooses devices": "use_cpu",
  "config.model.remat says what is computed again": (
    "gradient_checkpointing_kwargs activation_checkpointing"
    " activation_checkpointing_kwargs"
  ),
  "the same seed on the same machine always gives the same bytes": (
    "full_determinism"
  ),
  "config.phases and `experiments.evaluate` say what is done": (
    "do_train do_eval do_predict eval_on_start eval_delay num_generations_eval"
  ),
  "an evaluation samples and verifies, and has no loss": (
    "bf16_full_eval fp16_full_eval prediction_loss_only eval_do_concat_batches"
    " eval_use_gather_object eval_accumulation_steps include_for_metrics"
    " batch_eval_metrics"
  ),
  "a checkpoint is the whole state; the same command goes on, and"
  " `experiments.export` writes a folder that can be uploaded": (
    "save_only_model save_on_each_node enable_jit_checkpoint"
    " resume_from_checkpoint restore_callback_states_from_checkpoint"
    " load_best_model_at_end metric_for_best_model greater_is_better"
    " push_to_hub hub_token hub_private_repo hub_model_id hub_strategy"
    " hub_always_push hub_revision"
  ),
  "every step is in metrics.jsonl, and config.log has the rest": (
    "logging_strategy logging_steps logging_first_step logging_nan_inf_filter"
    " trackio_space_id trackio_bucket_id trackio_static_space_id"
    " log_multimodal log_unique_prompts log_completions_hub_repo log_level"
    " log_level_replica log_on_each_node disable_tqdm"
    " include_num_input_tokens_seen debug skip_memory_metrics"
  ),
  "adapters are those of config.model.lora_rank, lora_alpha and lora_modules,"
  " on a base in the format of config.model.quantization": (
    "lora_dropout lora_modules_to_save lora_task_type use_rslora use_dora"
    " lora_target_parameters load_in_8bit load_in_4bit bnb_4bit_quant_type"
    " use_bnb_nested_quant bnb_4bit_quant_storage"
  ),
  "a reward model is a member of the run (config.reward_model)": (
    "reward_model_name_or_path"
  ),
  "a run has one dataset here, or several as config.data.source='mixture'": (
    "datasets streaming test_split_size"
  ),
}
_NO_COUNTERPART = {
  name: reason for reason, names in WITHOUT.items() for name in names.split()
}
# Fields that count something.
_COUNTS = (
  *("per_device_train_batch_size", "gradient_accumulation_steps"),
  *("generation_batch_size", "steps_per_generation", "num_generations"),
  *("num_iterations", "max_steps", "per_device_eval_batch_size"),
)
# Reward functions of TRL -> those of this library.
_REWARDS = {
  "accuracy_reward": "math_accuracy",
  "think_format_reward": "think_answer_format",
}
# Algorithms by the loss type of the same name.
_LOSSES = ("grpo", "dapo", "dr_grpo", "cispo", "sapo", "luspo", "vespo")
_HEAD = '''"""Settings of {source}, as grpo-from-trl reads them.

    python -m experiments.train --config={out} --workdir={workdir}

{notes}"""

from grpo_jax.configs import checkpoint


def get_config():
  """TRL's run as a run of this library."""
  config = checkpoint.get_config({algorithm!r})
{lines}
  return config
'''


class Converted:
  """A run of TRL in settings of this library.

  Attributes:
    settings: Values by the names of settings.
    notes: Lines about fields that have no counterpart.
  """

  def __init__(self, fields: Mapping[str, Any], num_devices: int = 1):
    """Reads the fields of a GRPOConfig.

    Args:
      fields: Values by the names of TRL's fields.

    Raises:
      KeyError: A name is not a field of TRL; the message has the nearest.
      ValueError: A value has no counterpart without which nothing can be
        trained, such as a batch that is not a number of whole groups.
    """
    _check_names(fields)
    self._fields = {k: x for k, x in fields.items() if x is not None}
    _check_counts(self._fields)
    self.notes: list[str] = []
    self.settings: dict[str, Any] = {}
    self._origin: dict[str, str] = {}  # Setting -> field.
    self.workdir = str(self._fields.get("output_dir", "runs/from_trl"))
    self.algorithm = self._algorithm()
    self._batches(num_devices)
    for name, (default, setting) in (SAME | BESIDE).items():
      value = self._fields.get(name, default)
      if value is not None:
        self._set(name, setting, value)
    self._loss()
    self._optimizer()
    self._rest()
    for name in sorted(self._fields.keys() & _NO_COUNTERPART.keys()):
      self._note(name, _NO_COUNTERPART[name])
    self._drop_missing()

  def _value(self, name: str) -> Any:
    return self._fields.get(name, READ[name])

  def _note(self, name: str, reason: str) -> None:
    value = self._fields.get(name, READ.get(name))
    self.notes.append(f"{name}={value!r:.60}: no counterpart: {reason}.")

  def _set(self, name: str, setting: str, value: Any) -> None:
    """Sets a setting from a field, which the message of an error names."""
    self.settings[setting] = tuple(value) if isinstance(value, list) else value
    self._origin[setting] = name

  def _algorithm(self) -> str:
    loss = self._value("loss_type")
    if loss not in _LOSSES:
      raise ValueError(
        f"loss_type={loss!r}: this library has {', '.join(_LOSSES)}"
        f"{groups.nearest(str(loss), _LOSSES)}. 'bnpo' depends on how a batch"
        " is split; take 'dapo', the mean over all tokens."
      )
    if self._value("importance_sampling_level") == "sequence":
      if loss != "grpo":
        self._note(
          "loss_type",
          "a ratio of whole sequences is the algorithm gspo, a mean over"
          " sequences",
        )
      return "gspo"
    if self._value("multi_objective_aggregation") == "normalize_then_sum":
      self._note("loss_type", "rewards that are normalised one by one are gdpo")
      return "gdpo"
    return loss

  def _batches(self, num_devices: int) -> None:
    rows = self._value("per_device_train_batch_size") * num_devices
    accumulated = self._value("gradient_accumulation_steps")
    per_step = rows * accumulated
    steps = self._value("steps_per_generation") or accumulated
    total = self._value("generation_batch_size") or rows * steps
    group = self._fields.get("num_generations", SAME["num_generations"][0])
    if total % group or total % per_step:
      raise ValueError(
        f"per_device_train_batch_size={rows // num_devices}, num_devices="
        f"{num_devices}, gradient_accumulation_steps={accumulated},"
        f" num_generations={group}: a step draws {total} completions, and need"
        f" are whole groups of {group} and whole batches of {per_step}. Set"
        " --num_devices to that of the run."
      )
    name = "per_device_train_batch_size"
    self._set(name, "rl.num_prompts", total // group)
    self._set(name, "rl.num_minibatches", total // per_step)
    if size := self._fields.get("per_device_eval_batch_size"):
      name = "per_device_eval_batch_size"
      self._set(name, "eval.batch_size", size * num_devices)
    # TRL counts gradient steps.
    self._each = total // per_step * self._fields.get("num_iterations", 1)
    if self._value("max_steps") > 0:
      steps = max(self._value("max_steps") // self._each, 1)
      self._set("max_steps", "rl.steps", steps)
    else:
      self._note(
        "num_train_epochs",
        "set config.rl.steps to epochs × prompts of the data /"
        f" {total // group}, which is config.rl.num_prompts",
      )

  def _loss(self) -> None:
    high = self._fields.get("epsilon_high", self.settings["algorithm.clip_low"])
    self._set("epsilon_high", "algorithm.clip_high", high)
    scale = self._value("scale_rewards")
    scale = {True: "group", False: "none"}.get(scale, scale)
    self._set("scale_rewards", "algorithm.advantage_scale", scale)
    self._set("scale_rewards", "algorithm.advantage_eps", 1e-4)
    unbiased = self._value("use_bias_correction_kl")
    kind = "k3_unbiased" if unbiased else "k3"
    self._set("use_bias_correction_kl", "algorithm.kl_kind", kind)
    if self.algorithm == "dapo":  # Only the mean over tokens is TRL's.
      self._set("loss_type", "algorithm.dynamic_sampling", False)
      self._set("loss_type", "algorithm.overlong_cache", 0.0)
    if self._value("use_adaptive_entropy"):
      for name in ("entropy_target", "entropy_coef_delta"):
        setting = name.replace("delta", "step")
        self._set(name, f"algorithm.{setting}", self._value(name))
    if (balance := self._value("router_aux_loss_coef")) is not None:
      self._set("router_aux_loss_coef", "algorithm.balance_coef", balance)

  def _optimizer(self) -> None:
    optim = str(self._value("optim"))
    names = ("adamw", "adafactor")
    name = next((x for x in names if optim.startswith(x)), None)
    if name is None:
      self._note("optim", "config.rl.optimizer.name is adamw; muon is there")
    else:
      self._set("optim", "rl.optimizer.name", name)
    schedule = str(self._value("lr_scheduler_type")).partition("_with_")[0]
    if schedule not in ("constant", "linear", "cosine"):
      self._note(
        "lr_scheduler_type", "config.rl.optimizer.schedule is linear here"
      )
      schedule = "linear"
    self._set("lr_scheduler_type", "rl.optimizer.schedule", schedule)
    if self._value("lr_scheduler_type") == "constant":  # It has no warm-up.
      self._set("lr_scheduler_type", "rl.optimizer.warmup_steps", 0)
    self._set("optim", "rl.optimizer.stochastic_rounding", False)
    warmup = self.settings["rl.optimizer.warmup_steps"]
    if not float(warmup).is_integer():
      del self.settings["rl.optimizer.warmup_steps"]
      self._note(
        "warmup_steps", "a share of all steps; set the number of steps"
      )
    else:
      self._set("warmup_steps", "rl.optimizer.warmup_steps", int(warmup))

  def _rest(self) -> None:
    if (top_p := self._value("top_p")) < 1:
      self._set("top_p", "sampling.top_p", top_p)
    if (top_k := self._value("top_k")) > 0:
      self._set("top_k", "sampling.top_k", top_k)
    half = self._value("bf16") is not False
    self._set("bf16", "model.dtype", "bfloat16" if half else "float32")
    dtype = self._value("dtype") or self._value("torch_dtype")
    dtype = dtype if dtype in ("bfloat16", "float32") else "float32"
    self._set("dtype", "model.param_dtype", dtype)
    remat = "full" if self._value("gradient_checkpointing") else "none"
    self._set("gradient_checkpointing", "model.remat", remat)
    # TRL evaluates as often as it logs, every 10 steps, unless it is set.
    logs = self._fields.get("logging_steps", 10)
    self._every("eval", self._value("eval_steps") or logs, "eval.every")
    self._every("save", self._value("save_steps"), "checkpoint.every")
    reported = self._value("report_to")
    reported = [reported] if isinstance(reported, str) else list(reported)
    if {"wandb", "trackio", "all"} & {*reported}:
      used = [x for x in groups.TRACKERS if x in reported or "all" in reported]
      self._set("report_to", "log.trackers", used)
      self._set("project", "log.project", self._value("project"))
    if not self._value("log_completions"):
      self._set("log_completions", "log.samples_every", 0)
    self._data()
    if self._value("use_peft"):
      self._set("lora_r", "model.lora_rank", self._value("lora_r"))
      alpha = float(self._value("lora_alpha"))
      self._set("lora_alpha", "model.lora_alpha", alpha)
      if (modules := self._value("lora_target_modules")) not in (
        *(None, "all-linear"),
        ["all-linear"],
      ):
        self._set("lora_target_modules", "model.lora_modules", modules)

  def _every(self, what: str, steps: float, setting: str) -> None:
    """Sets how often something is done, in steps of this library."""
    strategy = f"{what}_strategy"
    kind = self._value(strategy)
    if kind == "no":
      self._set(strategy, setting, 0)
    elif kind != "steps":
      self._note(strategy, f"set config.{setting}, in steps")
    elif steps < 1 and self._value("max_steps") <= 0:
      self._note(f"{what}_steps", f"a share of all steps; set config.{setting}")
    else:
      steps = steps if steps >= 1 else steps * self._value("max_steps")
      every = max(round(steps / self._each), 1)
      self._set(f"{what}_steps", setting, every)

  def _data(self) -> None:
    self._set("dataset_name", "data.template", "chat")
    if name := self._value("dataset_name"):
      subset = self._value("dataset_config")
      self._set("dataset_name", "data.source", "datasets")
      self._set("dataset_name", "data.format", "trl")
      is_local = pathlib.Path(name).exists()
      full = f"{name}:{subset}" if subset and not is_local else name
      setting = "data.train_path" if is_local else "data.name"
      self._set("dataset_name", setting, full)
      if subset and is_local:
        self._note("dataset_config", f"{name} is read as it is here")
      if "max_prompt_length" not in self._fields:
        self.notes.append(
          "max_prompt_length: TRL has no limit; here longer prompts than"
          " config.data.max_prompt_len, 256 tokens, are left out."
        )
    if functions := self._value("reward_funcs"):
      names = [functions] if isinstance(functions, str) else functions
      paths = []
      for path in names:
        module, dot, last = str(path).rpartition(".")
        name = f"{module}:{last}" if dot else _REWARDS.get(path, path)
        if "/" in name or (not dot and name not in registry.BUILTIN):
          raise ValueError(
            f"reward_funcs={path!r}: need an import path, as my_pkg.rewards.f,"
            f" or one of {', '.join([*_REWARDS, *registry.BUILTIN])}. Take it"
            " out; here a reward model is config.reward_model, and a penalty of"
            " long completions config.algorithm.overlong_cache."
          )
        paths.append(name)
      self._set("reward_funcs", "rewards.functions", tuple(paths))

  def _drop_missing(self) -> None:
    """Leaves out settings that the algorithm does not have, with a note."""
    base = self.config(())
    for setting, value in [*self.settings.items()]:
      problem = overrides.complaint(base, setting, lambda name: name)
      name = self._origin[setting]
      if problem:
        del self.settings[setting]
        if name in self._fields:
          self._note(
            name, f"the algorithm {self.algorithm!r} has no setting {setting}"
          )
      elif name not in self._fields and overrides.at(base, setting) == value:
        del self.settings[setting]  # The default of both.

  def config(self, names: Sequence[str] | None = None) -> Any:
    """Makes the config `checkpoint` with these settings; None: with all.

    Raises:
      KeyError, TypeError, ValueError: A setting does not take its value.
    """
    path = str(overrides.find("checkpoint"))
    values = overrides.load(path, self.algorithm)
    keys = self.settings if names is None else names
    overrides.apply(values, {name: self.settings[name] for name in keys})
    return values

  def command(self) -> str:
    """The command that trains, with a flag for each setting."""
    lines = [
      "python -m experiments.train"
      f" --config=configs/checkpoint.py:{self.algorithm}",
      f"  --workdir={shlex.quote(self.workdir)}",
    ]
    for name, value in sorted(self.settings.items()):
      text = value if isinstance(value, str) else repr(value)
      lines.append(f"  --config.{name}={shlex.quote(text)}")
    return " \\\n".join(lines)

  def file(self, source: str, out: str) -> str:
    """The text of a config file."""
    lines = [f"  config.{k} = {x!r}" for k, x in sorted(self.settings.items())]
    notes = "".join(f"{note}\n" for note in self.notes)
    return _HEAD.format(
      source=source,
      out=out,
      workdir=self.workdir,
      notes=notes.replace("\\", "\\\\").replace('"', "'"),
      algorithm=self.algorithm,
      lines="\n".join(lines),
    )


def _check_names(fields: Mapping[str, Any]) -> None:
  names = [*SAME, *BESIDE, *READ, *_NO_COUNTERPART]
  extra = [
    f"{x}{groups.nearest(str(x), names)}" for x in fields if x not in names
  ]
  if extra:
    raise KeyError(
      f"TRL's GRPOConfig has no field {', '.join(extra)}. Correct the name, or"
      " take the field out. Names are those of TRL 1.16.0 and of `trl grpo`."
    )


def _check_counts(fields: Mapping[str, Any]) -> None:
  for name in _COUNTS:
    value = fields.get(name, 1)
    minimum = -1 if name == "max_steps" else 1
    if type(value) is not int or value < minimum:
      raise ValueError(
        f"{name}={value!r:.40}: need a whole number from {minimum} on, without"
        " quotes."
      )


class _Loader(yaml.SafeLoader):
  """Reads 1e-6, without a point, as a number, which YAML 1.1 does not."""


_Loader.add_implicit_resolver(
  "tag:yaml.org,2002:float",
  re.compile(r"[-+]?[0-9]+(\.[0-9]*)?[eE][-+]?[0-9]+"),
  list("-+0123456789"),
)


def read(path: str) -> dict[str, Any]:
  """Reads the fields of a file.

  Raises:
    FileNotFoundError: There is no such file.
    ValueError: The file is neither YAML nor JSON, or has no fields.
  """
  place = pathlib.Path(path)
  if not place.is_file():
    raise FileNotFoundError(
      f"from_trl: there is no file {path}; name the YAML or JSON file of a run"
      " of TRL."
    )
  text = place.read_text(encoding="utf-8")
  try:
    is_json = place.suffix == ".json"
    fields = json.loads(text) if is_json else yaml.load(text, _Loader)
  except (ValueError, yaml.YAMLError) as error:
    raise ValueError(
      f"from_trl: {path} is neither YAML nor JSON: {error}."
    ) from error
  if not isinstance(fields, dict) or not fields:
    raise ValueError(
      f"from_trl: {path} holds {fields!r:.60}; need fields, as 'beta: 0.04'."
    )
  return {str(name): value for name, value in fields.items()}


def main(argv: Sequence[str]) -> int:
  """Prints the command, or writes the file; notes come first."""
  if len(argv) != 2:
    raise ValueError(
      f"from_trl: got {argv[1:]!r}; need one file: grpo-from-trl grpo.yaml."
    )
  out = flags_lib.file_to_write("config_file", _CONFIG_FILE.value)
  converted = Converted(read(argv[1]), _NUM_DEVICES.value)
  converted.config()  # Raises if a setting does not take its value.
  for note in converted.notes:
    print(f"# {note}")
  if out is None:
    print(converted.command())
    return 0
  out.write_text(converted.file(argv[1], str(out)), encoding="utf-8")
  print(
    f"python -m experiments.train --config={shlex.quote(str(out))}"
    f" --workdir={shlex.quote(converted.workdir)}"
  )
  return 0


run = functools.partial(
  flags_lib.run, main, needs_config=False, takes_arguments=True
)
