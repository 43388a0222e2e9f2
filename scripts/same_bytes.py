r"""Proves that a restructuring changes no byte of any run.

  python scripts/same_bytes.py record --tree=BEFORE --out=/tmp/before
  python scripts/same_bytes.py record --out=/tmp/after
  python scripts/same_bytes.py compare \
      /tmp/before/fingerprints.json /tmp/after/fingerprints.json

`record` trains every case of the table `CASES` for a few steps, with the code
in --tree and the sizes of a toy, and writes the results of the runs: the lines
of metrics.jsonl and samples.jsonl without fields that a clock decides, and
shape, dtype and SHA-256 of every array in the last checkpoint. A case that is
in the file already is left alone, so the command goes on where it was stopped.
`compare` exits with 1 if a case differs or is missing. Both take --only=REGEX.

Runs are compared byte for byte, so both recordings belong on the same machine
with the same versions of the libraries. Metrics must keep their names. Arrays
may get other paths: they are compared as a multiset, and paths that differ are
only mentioned. If settings get other names, `CASES` has the new names and
`RENAMED` the old ones; --old-names records a tree that knows only the old ones.

A training is started by `python -m experiments.train` in a process of its own,
on the CPU, one after the other. All together they take about ten minutes on one
core, and less where JAX_COMPILATION_CACHE_DIR is set and programs are equal.
The case `gsm8k_tfds` reads TFDS_DATA_DIR and is left out where that is not set.
"""

from __future__ import annotations

import argparse
import collections
import dataclasses
import hashlib
import importlib.metadata
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from typing import Any

# Old prefix of a setting -> its new one.
RENAMED = {
  "rl.reference_workdir": "rl.reference_workdirs",
  "sweep": "sweeps.run",
}

_ROOT = pathlib.Path(__file__).resolve().parents[1]
_TIMEOUT_S = 600.0  # Of one process.
# Fields of metrics.jsonl that differ between equal runs.
_CLOCK = ("time/", "tokens_per_second")
# Compile in less than half the time, as in tests/conftest.py.
_XLA_FLAGS = (
  "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
)
if importlib.metadata.version("jaxlib").startswith("0.10."):
  # Others do not know it.
  _XLA_FLAGS += " --xla_cpu_use_fusion_emitters=false"


@dataclasses.dataclass(frozen=True)
class Case:
  """Run to compare, and the way to start it.

  In settings, $OUT stands for the folder of all runs and $INPUTS for that of
  `_write_inputs`.

  Attributes:
    config: FILE or FILE:ARGUMENT.
    settings: Name -> value of --config.NAME=VALUE.
    after: Case whose run this one reads; it is recorded before.
    kill: Step of a checkpoint. The run is killed when the checkpoint is
      written, and started again. 0: never.
    devices: Number of devices of each process.
    processes: Number of processes of the run.
    program: Module in `experiments`; a sweep is one program of all its cells.
    environment: Variables that must be set, or the case is left out.
  """

  config: str
  settings: Mapping[str, Any]
  after: str = ""
  kill: int = 0
  devices: int = 1
  processes: int = 1
  program: str = "train"
  environment: tuple[str, ...] = ()


# --- cases -------------------------------------------------------------------

_SMALL = {
  "sft.steps": 2,
  "sft.num_prompts": 8,
  "sft.optimizer.warmup_steps": 0,
  "rl.steps": 3,
  "rl.num_prompts": 4,
  "rl.group_size": 4,
  "rl.optimizer.warmup_steps": 0,
  "rl.optimizer.learning_rate": 1e-3,
  "eval.num_prompts": 4,
  "eval.batch_size": 4,
  "eval.every": 0,
  "checkpoint.every": 0,
  "log.samples_every": 1,
  "log.trackers": (),
}
_MODEL = {
  "model.width": 16,
  "model.num_layers": 1,
  "model.num_heads": 2,
  "model.num_kv_heads": 1,
  "model.mlp_width": 32,
}
# Scores that are rarely equal, so that gradients are not zero.
_SORT = {
  **_SMALL,
  **_MODEL,
  "data.task_options.min_len": 2,
  "data.task_options.max_len": 3,
  "data.task_options.num_letters": 3,
  "rewards.functions": "('f1',)",
  "required_accuracy": 0.0,
  "sft.steps": 10,
  "sft.optimizer.learning_rate": 5e-2,
  "sft.optimizer.schedule": "constant",
}
# Without a warm start a phase less is compiled.
_RL = {"phases": "('rl',)"}
# Enough of a warm start that something is right now and then.
_TURNS = {
  **_SMALL,
  **_MODEL,
  "model.width": 32,
  "model.mlp_width": 64,
  "sft.steps": 120,
  "sft.num_prompts": 32,
  "sft.num_lengths": 1,
  "sft.optimizer.learning_rate": 1e-2,
  "rl.num_prompts": 8,
  "rl.num_lengths": 1,
}
_ADD = {
  **_TURNS,
  "data.task_options.level": 1,
  "data.task_options.teacher_error": 0.1,
}
_CRITIC = {
  "phases": "('sft','value','rl')",
  "value.steps": 2,
  "value.num_prompts": 8,
  "value.num_lengths": 1,
  "rl.group_size": 1,
  "rl.num_prompts": 8,
}
_TEXT = {
  **_SMALL,
  **_MODEL,
  "data.train_path": "$INPUTS/prompts.jsonl",
  "data.tokenizer": "$INPUTS/qwen2/tokenizer.json",
  "sampling.max_new_tokens": 6,
  "rewards.functions": "('same_bytes_rewards:varied',)",
  "rewards.num_workers": 1,
}
_CHECKPOINT = {
  **_SMALL,
  "data.train_path": "$INPUTS/prompts.jsonl",
  "data.max_prompt_len": 16,
  "sampling.max_new_tokens": 4,
  "rewards.functions": "('same_bytes_rewards:varied',)",
  "rewards.num_workers": 1,
}
_FLOAT32 = {
  "model.dtype": "float32",
  "model.param_dtype": "float32",
  "rl.optimizer.stochastic_rounding": False,
}
_GSM8K = {
  **_TEXT,
  "data.tokenizer": "gsm8k",
  "data.max_prompt_len": 320,
  "rl.max_prompt_len": 128,
  "rl.num_lengths": 1,
  "sft.num_lengths": 1,
  "rewards.functions": "('same_bytes_rewards:varied','think_answer_format')",
  "rewards.correct": "same_bytes_rewards:varied",
}
_QUICKSTART = "configs/quickstart.py"

CASES = {
  "quickstart_grpo": Case(
    f"{_QUICKSTART}:grpo",
    {**_SORT, "model.num_layers": 2, "eval.every": 2, "rl.num_minibatches": 2},
  ),
  "quickstart_dapo": Case(
    f"{_QUICKSTART}:dapo",
    {
      **_SORT,
      "rl.max_rounds": 3,
      "rl.group_size": 2,
      "algorithm.dynamic_sampling": True,
      "algorithm.overlong_cache": 0.5,
    },
  ),
  "quickstart_gspo": Case(
    f"{_QUICKSTART}:gspo",
    {**_SORT, "rl.num_epochs": 2, "rl.micro_batch_size": 4},
  ),
  "quickstart_two_grpo_dpo": Case(
    f"{_QUICKSTART}:two_grpo_dpo", {**_SORT, "rl.group_size": 2}
  ),
  "quickstart_remax": Case(
    f"{_QUICKSTART}:remax", {**_SORT, "rl.group_size": 1}
  ),
  "quickstart_lambda_grpo": Case(
    f"{_QUICKSTART}:lambda_grpo",
    {**_SORT, "rl.num_minibatches": 2, "rl.optimizer.name": "muon"},
  ),
  "quickstart_state": Case(
    f"{_QUICKSTART}:grpo",
    {
      **_SORT,
      "algorithm.kl_coef": 0.1,
      "algorithm.kl_target": 0.01,
      "rl.ema_decay": 0.5,
      "rl.optimizer.name": "adafactor",
      "rl.steps": 20,
      "checkpoint.every": 2,
    },
    kill=14,
  ),
  "quickstart_lanes": Case(
    f"{_QUICKSTART}:grpo",
    {
      **_SORT,
      **_RL,
      "model.num_layers": 2,
      "sampling.lanes": 5,
      "sampling.top_k": 5,
      "start_workdir": "$OUT/quickstart_grpo",
    },
    after="quickstart_grpo",
  ),
  "quickstart_devices": Case(
    f"{_QUICKSTART}:grpo",
    {
      **_SORT,
      "model.num_kv_heads": 2,
      "eval.num_prompts": 8,
      "eval.batch_size": 8,
      "mesh.fsdp": 2,
      "mesh.tensor": 2,
      "algorithm.kl_coef": 0.1,
    },
    devices=8,
  ),
  "quickstart_vmap": Case(
    "$INPUTS/two_seeds.py", {**_SORT}, program="sweeps.run"
  ),
  "add_steps_grpo_ps": Case("configs/add_steps.py:grpo_ps", _ADD),
  "calc_tool": Case(
    "configs/calc_tool_grpo.py",
    {
      **_TURNS,
      "rewards.functions": "('return','malformed')",
      "rewards.weights": "(1.0,1.0)",
      "rewards.correct": "return",
    },
  ),
  "calc_python": Case(
    "configs/calc_python_grpo.py",
    {
      **_TURNS,
      "rewards.functions": "('return','malformed')",
      "rewards.weights": "(1.0,1.0)",
      "rewards.correct": "return",
    },
  ),
  "distill": Case(
    "configs/distill.py",
    {
      **_SORT,
      "model.num_layers": 2,
      "rl.reference_workdirs": "('$OUT/quickstart_grpo',)",
    },
    after="quickstart_grpo",
  ),
  "grid_gagpo": Case(
    "configs/grid.py:gagpo",
    {
      **_TURNS,
      "data.task_options.teacher_error": 0.0,
      "sft.steps": 300,
      "rl.group_size": 8,
    },
  ),
  "memchain_ppo": Case(
    "configs/memchain_ppo.py",
    {
      **_TURNS,
      **_CRITIC,
      "rewards.functions": "('return','semicolons')",
      "rewards.weights": "(1.0,1.0)",
      "rewards.correct": "return",
      "data.task_options.num_steps": 8,
      "data.task_options.every": 3,
      "critic.freeze": "('attention',)",
      "critic.num_updates": 2,
    },
  ),
  "ppo_add": Case(
    "configs/ppo_add.py", {**_ADD, **_CRITIC, "critic.trunk": "shared"}
  ),
  "recipe_r1_zero": Case(
    "configs/recipes/r1_zero.py:toy", {**_ADD, "rl.num_minibatches": 2}
  ),
  "recipe_v32_math": Case("configs/recipes/v32_math.py:toy", _ADD),
  "jsonl": Case("configs/jsonl.py", _TEXT),
  "jsonl_stale": Case(
    "configs/jsonl.py",
    {
      **_TEXT,
      **_RL,
      "rl.steps": 4,
      "rl.staleness": 1,
      "algorithm.importance_mode": "truncate",
    },
  ),
  "jsonl_processes": Case(
    "configs/jsonl.py",
    {
      **_TEXT,
      **_RL,
      "model.num_kv_heads": 2,
      "mesh.tensor": 2,
      "rl.staleness": 1,
      "algorithm.importance_mode": "mask",
    },
    processes=2,
  ),
  "gsm8k_sample": Case(
    "configs/gsm8k_cpu.py",
    {
      **_GSM8K,
      "data.source": "jsonl",
      "data.format": "gsm8k",
      "data.train_path": "$INPUTS/gsm8k_sample/train.jsonl",
      "data.eval_path": "$INPUTS/gsm8k_sample/test.jsonl",
    },
  ),
  "gsm8k_tfds": Case(
    "configs/gsm8k_cpu.py",
    {k: v for k, v in _GSM8K.items() if k != "data.train_path"},
    environment=("TFDS_DATA_DIR",),
  ),
  "checkpoint": Case(
    "configs/checkpoint.py",
    {**_CHECKPOINT, "model.checkpoint": "$INPUTS/qwen2"},
  ),
  "checkpoint_adapters": Case(
    "configs/checkpoint.py",
    {
      **_CHECKPOINT,
      **_FLOAT32,
      "model.checkpoint": "$INPUTS/qwen3",
      "model.lora_rank": 2,
      "model.quantization": "int8",
    },
  ),
  "checkpoint_experts": Case(
    "configs/checkpoint.py",
    {
      **_CHECKPOINT,
      **_FLOAT32,
      "model.checkpoint": "$INPUTS/qwen3_moe",
      "algorithm.keep_routing": True,
      "algorithm.balance_coef": 0.01,
    },
  ),
}

# --- inputs ------------------------------------------------------------------

_REWARDS = '''
def varied(prompts, completions, ids, extras):
  """Rarely equal, so that there is something to learn."""
  return [sum(map(ord, text)) % 11 / 10 for text in completions]
'''
_TWO_SEEDS = """
from configs.quickstart import get_config

def sweep(add):
  for seed in range(2):
    add(seed=seed)
"""


def _write_inputs(folder: pathlib.Path) -> None:
  """Writes the inputs that are not part of the tree, equal for all trees."""
  import tokenizers

  folder.mkdir(parents=True, exist_ok=True)
  (folder / "same_bytes_rewards.py").write_text(_REWARDS, encoding="utf-8")
  (folder / "two_seeds.py").write_text(_TWO_SEEDS, encoding="utf-8")
  names = ("Ada", "Bela", "Carl", "Dora", "Emil", "Fay", "Gus", "Hana")
  rows = [
    {"prompt": f"Greet {name}: ", "completion": name, "answer": name}
    for name in names
  ]
  (folder / "prompts.jsonl").write_text(
    "".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8"
  )
  # One token for each character, 64 in all; the checkpoints have room for 96.
  letters = [chr(i) for i in range(ord("A"), ord("z") + 1)]
  tokens = ["<pad>", "<bos>", "<eos>", " ", ":", ".", *letters]
  tokenizer = tokenizers.Tokenizer(
    tokenizers.models.WordLevel(
      {token: i for i, token in enumerate(tokens)}, unk_token="<pad>"
    )
  )
  tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Split(
    tokenizers.Regex("."), "isolated"
  )
  tokenizer.decoder = tokenizers.decoders.Fuse()
  data = _ROOT / "tests" / "data"
  for family in ("qwen2", "qwen3", "qwen3_moe"):
    copy = folder / family
    shutil.copytree(data / "checkpoints" / family, copy, dirs_exist_ok=True)
    tokenizer.save(str(copy / "tokenizer.json"))
    (copy / "tokenizer_config.json").write_text(
      json.dumps({"eos_token": "<eos>", "pad_token": "<pad>"}),
      encoding="utf-8",
    )
  shutil.copytree(
    data / "gsm8k_sample", folder / "gsm8k_sample", dirs_exist_ok=True
  )


# --- record ------------------------------------------------------------------


def _old_name(name: str) -> str:
  for old, new in RENAMED.items():
    if name == new or name.startswith(f"{new}."):
      return old + name.removeprefix(new)
  return name


def _command(
  case: Case, workdir: pathlib.Path, inputs: pathlib.Path, old_names: bool
) -> list[str]:
  def filled(text: str) -> str:
    return text.replace("$INPUTS", str(inputs)).replace(
      "$OUT", str(workdir.parent)
    )

  program = _old_name(case.program) if old_names else case.program
  command = [
    *(sys.executable, "-m", f"experiments.{program}"),
    f"--config={filled(case.config)}",
  ]
  if case.program == "sweeps.run":
    command += [f"--root={workdir}", "--launcher=vmap"]
  else:
    command += [f"--workdir={workdir}"]
  for name, value in case.settings.items():
    if old_names:
      name = _old_name(name)
      # A single text was not a tuple before.
      value = str(value).removeprefix("('").removesuffix("',)")
    command.append(f"--config.{name}={filled(str(value))}")
  return command


def _steps(workdir: pathlib.Path) -> list[pathlib.Path]:
  """Complete checkpoints, ascending."""
  steps = []
  # A run may be deleting old ones meanwhile; `os.walk` passes over the gaps.
  for folder, names, _ in os.walk(workdir):
    if pathlib.Path(folder).name == "checkpoints":
      paths = [pathlib.Path(folder, name) for name in names if name.isdecimal()]
      steps += [p for p in paths if (p / "_CHECKPOINT_METADATA").exists()]
      names.clear()
  return sorted(steps, key=lambda path: int(path.name))


def _run(
  case: Case,
  workdir: pathlib.Path,
  command: list[str],
  tree: pathlib.Path,
  inputs: pathlib.Path,
) -> None:
  """Runs a case to its end; raises RuntimeError if it fails."""
  xla_flags = _XLA_FLAGS
  if case.devices > 1:
    xla_flags += f" --xla_force_host_platform_device_count={case.devices}"
  environment = {
    **os.environ,
    "PYTHONPATH": os.pathsep.join([str(tree), str(inputs)]),
    "JAX_PLATFORMS": "cpu",
    "XLA_FLAGS": xla_flags,
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
  }

  def start(number: int, *arguments: str) -> subprocess.Popen:
    with log_path(number).open("a", encoding="utf-8") as log:
      return subprocess.Popen(
        [*command, *arguments],
        cwd=tree,
        env=environment,
        stdout=log,
        stderr=subprocess.STDOUT,
      )

  def log_path(number: int) -> pathlib.Path:
    return workdir.parent / f"{workdir.name}.{number}.log"

  def finish(number: int, process: subprocess.Popen) -> None:
    try:
      status = process.wait(_TIMEOUT_S)
    except subprocess.TimeoutExpired:
      status = f"none after {_TIMEOUT_S:.0f} s"
    if status != 0:
      lines = log_path(number).read_text(encoding="utf-8").splitlines()
      raise RuntimeError(
        "\n".join([f"exit status {status} of process {number}", *lines[-30:]])
      )

  log_path(0).unlink(missing_ok=True)
  if case.kill:
    process = start(0)
    try:
      while process.poll() is None and not any(
        int(step.name) >= case.kill for step in _steps(workdir)
      ):
        time.sleep(0.02)
    finally:
      process.kill()
    if process.wait() != -signal.SIGKILL:
      raise RuntimeError(
        f"the run ended before it could be killed; see {log_path(0)}"
      )
  if case.processes == 1:
    finish(0, start(0))
    return
  with socket.socket() as free:
    free.bind(("localhost", 0))
    port = free.getsockname()[1]
  running = []
  for number in range(case.processes):
    log_path(number).unlink(missing_ok=True)
    running.append(
      start(
        number,
        f"--coordinator=localhost:{port}",
        f"--num_processes={case.processes}",
        f"--process_id={number}",
      )
    )
  try:
    for number, process in enumerate(running):
      finish(number, process)
  finally:
    for process in running:
      process.kill()


def _lines(path: pathlib.Path) -> list[str]:
  """Objects of a JSON-lines file with sorted keys, without clocks."""
  result = []
  for line in path.read_text(encoding="utf-8").splitlines():
    fields = json.loads(line)
    kept = {k: v for k, v in fields.items() if not k.startswith(_CLOCK)}
    result.append(json.dumps(kept, sort_keys=True, ensure_ascii=False))
  return result


def _arrays(step: pathlib.Path) -> list[tuple[str, list[int], str, str]]:
  """Path, shape, dtype and SHA-256 of every array of a checkpoint."""
  import jax
  import numpy as np
  import orbax.checkpoint.experimental.v1 as ocp

  # The arrays may have been saved from other devices.
  place = jax.sharding.SingleDeviceSharding(jax.devices()[0])
  with ocp.training.Checkpointer(step.parent) as checkpointer:
    number = int(step.name)
    wanted = jax.tree.map(
      lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=place),
      checkpointer.metadata(number).metadata,
    )
    tree = checkpointer.load(number, wanted)
  result = []
  for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
    array = np.asarray(leaf)
    name = jax.tree_util.keystr(path, simple=True, separator="/")
    digest = hashlib.sha256(array.tobytes()).hexdigest()
    result.append((name, list(array.shape), array.dtype.name, digest))
  return sorted(result)


def _fingerprint(workdir: pathlib.Path) -> dict[str, Any]:
  """Files and arrays that the runs in a folder left; a sweep has several."""
  metrics, samples, arrays = [], [], []
  for path in sorted(workdir.rglob("metrics.jsonl")):
    metrics += _lines(path)
    samples += _lines(path.with_name("samples.jsonl"))
  for folder in sorted({step.parent for step in _steps(workdir)}):
    arrays += _arrays(_steps(folder.parent)[-1])
  return {
    "metrics": metrics,
    "samples": samples,
    "arrays": arrays,
  }


def _largest(metrics: list[str], name: str) -> float:
  """Largest value of a metric over the steps that draw, without NaN (null)."""
  steps = [json.loads(line) for line in metrics]
  return max(x.get(name) or 0.0 for x in steps if x["phase"] != "sft")


def _selected(only: str) -> list[str]:
  """Names of the cases, and of those that they read."""
  names = {name for name in CASES if re.search(only, name)}
  names |= {CASES[name].after for name in names} - {""}
  return [name for name in CASES if name in names]


def record(
  tree: pathlib.Path, out: pathlib.Path, only: str, old_names: bool
) -> int:
  """Runs the cases and writes their fingerprints; returns the exit status."""
  out.mkdir(parents=True, exist_ok=True)
  inputs = out / "inputs"
  _write_inputs(inputs)
  path = out / "fingerprints.json"
  cases = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
  failed = []
  for name in _selected(only):
    case = CASES[name]
    missing = [x for x in case.environment if not os.environ.get(x)]
    if missing:
      print(f"{name:26} left out: {', '.join(missing)} is not set", flush=True)
      continue
    if name in cases:
      print(f"{name:26} is there already", flush=True)
      continue
    workdir = out / name
    shutil.rmtree(workdir, ignore_errors=True)
    started = time.monotonic()
    try:
      command = _command(case, workdir, inputs, old_names)
      _run(case, workdir, command, tree, inputs)
      found = _fingerprint(workdir)
      if not found["arrays"] or not found["metrics"]:
        raise RuntimeError(f"no metrics or no arrays in {workdir}")
    except RuntimeError as error:
      print(f"{name:26} FAILED: {error}", flush=True)
      failed.append(name)
      continue
    seconds = time.monotonic() - started
    cases[name] = {"seconds": round(seconds, 1), **found}
    partial = path.with_suffix(".tmp")
    partial.write_text(json.dumps(cases, indent=1), encoding="utf-8")
    partial.replace(path)
    print(
      f"{name:26} {seconds:6.1f} s, {len(found['metrics'])} lines,"
      f" {len(found['arrays'])} arrays, gradient norm up to"
      f" {_largest(found['metrics'], 'gradient_norm'):.3g}, reward deviation"
      f" up to {_largest(found['metrics'], 'reward/std'):.3g}",
      flush=True,
    )
  total = sum(case["seconds"] for case in cases.values())
  print(f"{len(cases)} cases, {total:.0f} s: {path}")
  if failed:
    print(f"failed: {', '.join(failed)}")
  return int(bool(failed))


# --- compare -----------------------------------------------------------------


def _first_difference(before: list[str], after: list[str]) -> str:
  """The first line that differs; for an object, the fields that differ."""
  for number, (a, b) in enumerate(zip(before, after, strict=False), start=1):
    if a == b:
      continue
    a, b = json.loads(a), json.loads(b)
    fields = [
      f"{name}: {a.get(name, 'absent')!r} -> {b.get(name, 'absent')!r}"
      for name in sorted(a.keys() | b.keys())
      if a.get(name, "absent") != b.get(name, "absent")
    ]
    more = f", and {len(fields) - 4} more" if len(fields) > 4 else ""
    step = f"step {a.get('step')}, phase {a.get('phase', 'of a sample')}"
    return f"line {number} ({step}): {', '.join(fields[:4])}{more}"
  return f"{len(before)} lines -> {len(after)} lines"


def _array_differences(before: list, after: list) -> list[str]:
  """Describes arrays that are on one side only, by shape, dtype and content."""
  counts = [
    collections.Counter((tuple(a[1]), a[2], a[3]) for a in side)
    for side in (before, after)
  ]
  result = []
  for side, surplus, where in (
    (before, counts[0] - counts[1], "only before"),
    (after, counts[1] - counts[0], "only after"),
  ):
    for name, shape, dtype, digest in side:
      key = (tuple(shape), dtype, digest)
      if surplus[key]:
        surplus[key] -= 1
        result.append(f"{where}: {name} {dtype}{shape}")
  return result


def compare(before: pathlib.Path, after: pathlib.Path, only: str) -> int:
  """Prints how the cases of two recordings differ; returns the exit status."""
  sides = [
    {
      name: case
      for name, case in json.loads(path.read_text(encoding="utf-8")).items()
      if re.search(only, name)
    }
    for path in (before, after)
  ]
  names = [*sides[0], *(sides[1].keys() - sides[0].keys())]
  num_same = 0
  print(
    f"{'case':26} {'metrics':8} {'samples':8} {'arrays':8} number of arrays"
  )
  for name in names:
    if not all(name in side for side in sides):
      print(f"{name:26} missing in {after if name in sides[0] else before}")
      continue
    a, b = (side[name] for side in sides)
    arrays = _array_differences(a["arrays"], b["arrays"])
    same = {
      "metrics": a["metrics"] == b["metrics"],
      "samples": a["samples"] == b["samples"],
      "arrays": not arrays,
    }
    num_same += all(same.values())
    words = " ".join(f"{'same' if x else 'DIFFERS':8}" for x in same.values())
    print(f"{name:26} {words} {len(a['arrays'])} -> {len(b['arrays'])}")
    for what in ("metrics", "samples"):
      if not same[what]:
        print(f"  {what}: {_first_difference(a[what], b[what])}")
    for line in arrays[:6]:
      print(f"  {line}")
    if len(arrays) > 6:
      print(f"  and {len(arrays) - 6} more arrays")
    paths = [{array[0] for array in side["arrays"]} for side in (a, b)]
    if paths[0] != paths[1]:
      gone, new = sorted(paths[0] - paths[1]), sorted(paths[1] - paths[0])
      print(
        f"  paths, for information: {len(gone)} gone, as {gone[:1]};"
        f" {len(new)} new, as {new[:1]}"
      )
  print(f"{num_same} of {len(names)} cases are the same.")
  return int(num_same != len(names) or not names)


def main() -> int:
  parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
  )
  commands = parser.add_subparsers(dest="command", required=True)
  recorder = commands.add_parser("record")
  recorder.add_argument("--tree", type=pathlib.Path, default=_ROOT)
  recorder.add_argument("--out", type=pathlib.Path, required=True)
  recorder.add_argument("--old-names", action="store_true")
  comparer = commands.add_parser("compare")
  comparer.add_argument("before", type=pathlib.Path)
  comparer.add_argument("after", type=pathlib.Path)
  for command in (recorder, comparer):
    command.add_argument("--only", default="", metavar="REGEX")
  given = parser.parse_args()
  if given.command == "compare":
    return compare(given.before, given.after, given.only)
  os.environ["JAX_PLATFORMS"] = "cpu"  # Of this process, which reads arrays.
  return record(
    given.tree.resolve(), given.out.resolve(), given.only, given.old_names
  )


if __name__ == "__main__":
  sys.exit(main())
