"""Settings of TRL become settings of this library, or lines that say why."""

import ast
import json
import pathlib
import re
import shlex

import pytest

from grpo_jax.cli import from_trl
from grpo_jax.settings import config as config_lib
from grpo_jax.settings import overrides

_ROOT = pathlib.Path(__file__).resolve().parents[2]
YAML = """\
model_name_or_path: Qwen/Qwen2.5-0.5B-Instruct
dataset_name: openai/gsm8k
dataset_config: main
reward_funcs: [accuracy_reward, my_pkg.rewards.brevity]
reward_weights: [1.0, 0.5]
output_dir: runs/mine
learning_rate: 2e-6
lr_scheduler_type: cosine
per_device_train_batch_size: 4
gradient_accumulation_steps: 4
num_generations: 8
max_steps: 100
beta: 0.04
loss_type: grpo
scale_rewards: false
epsilon_high: 0.28
max_completion_length: 256
chat_template_kwargs: {enable_thinking: false}
save_steps: 25
bf16: true
use_peft: true
lora_r: 32
logging_steps: 1
deepspeed: zero3.json
hub_token: null
"""


@pytest.fixture
def file(tmp_path):
  path = tmp_path / "grpo.yaml"
  path.write_text(YAML)
  return path


def test_a_file_of_trl_becomes_a_config(file, tmp_path):
  made = from_trl.Converted(from_trl.read(str(file)), num_devices=2)
  assert made.algorithm == "grpo"
  wanted = {
    "rl.num_prompts": 4,  # 4 rows × 4 × 2 devices, in groups of 8.
    "rl.num_minibatches": 1,
    "rl.steps": 100,
    "rl.optimizer.learning_rate": 2e-6,
    "rl.optimizer.b2": 0.999,  # TRL's default, which is not ours.
    "rl.optimizer.schedule": "cosine",
    "algorithm.kl_coef": 0.04,
    "algorithm.clip_high": 0.28,
    "algorithm.advantage_scale": "none",
    "data.name": "openai/gsm8k:main",
    "data.chat_options": {"enable_thinking": False},
    "rewards.functions": ("math_accuracy", "my_pkg.rewards:brevity"),
    "rewards.weights": (1.0, 0.5),
    "model.lora_rank": 32,
    "checkpoint.every": 25,
  }
  assert wanted.items() <= made.settings.items()
  # Every field of the file is a setting or a line.
  assert [re.match(r"\w+", note)[0] for note in made.notes] == [
    "max_prompt_length",
    "deepspeed",
    "logging_steps",
  ]
  # The file, the flags and the object are the same config.
  out = tmp_path / "mine.py"
  out.write_text(made.file(str(file), str(out)))
  written = overrides.load(str(out))
  assert written.to_dict() == made.config().to_dict()
  config_lib.resolve(written)
  flags = shlex.split(made.command().replace("\\\n", " "))
  assert "--config=configs/checkpoint.py:grpo" in flags
  assert (
    "--config.rewards.functions=('math_accuracy', 'my_pkg.rewards:brevity')"
  )


@pytest.mark.parametrize(
  ("fields", "algorithm", "settings", "notes"),
  [
    ({}, "dapo", {"algorithm.dynamic_sampling": False}, ["num_train_epochs"]),
    ({"loss_type": "sapo", "delta": 2.0}, "sapo", {}, ["delta"]),
    (
      {"importance_sampling_level": "sequence", "loss_type": "grpo"},
      "gspo",
      {"algorithm.clip_low": 0.2},
      [],
    ),
    (
      {"steps_per_generation": 4, "max_steps": 8, "num_iterations": 2},
      "dapo",
      {"rl.num_prompts": 4, "rl.num_minibatches": 4, "rl.steps": 1},
      [],
    ),
    (
      {
        **{"steps_per_generation": 4, "max_steps": 800, "num_iterations": 2},
        **{"save_steps": 0.1, "eval_strategy": "steps", "logging_steps": 16},
      },
      "dapo",
      {"rl.steps": 100, "checkpoint.every": 10, "eval.every": 2},
      [],
    ),
    (
      {"save_strategy": "epoch", "eval_strategy": "epoch", "max_steps": 8},
      "dapo",
      {},
      ["save_strategy", "eval_strategy"],
    ),
    ({"save_steps": 0.1}, "dapo", {}, ["save_steps"]),
    (
      {"lr_scheduler_type": "constant", "warmup_steps": 5},
      "dapo",
      {"rl.optimizer.warmup_steps": 0},
      [],
    ),
    ({"optim": "lion_8bit"}, "dapo", {}, ["optim"]),
    ({"warmup_steps": 0.1}, "dapo", {}, ["warmup_steps"]),
    (
      {"use_adaptive_entropy": True},
      "dapo",
      {"algorithm.entropy_target": 0.2},
      [],
    ),
  ],
)
def test_values_that_are_meant_otherwise(fields, algorithm, settings, notes):
  made = from_trl.Converted(fields)
  assert made.algorithm == algorithm
  assert settings.items() <= made.settings.items()
  found = {note.partition("=")[0] for note in made.notes}
  assert {*notes} <= found
  # What only a line can say is left as the config has it.
  if found & {"save_strategy", "save_steps"}:
    assert "checkpoint.every" not in made.settings
  made.config()


@pytest.mark.parametrize(
  ("fields", "error", "message"),
  [
    (
      {"num_generation": 8},
      KeyError,
      r"no field num_generation \(did you mean",
    ),
    ({"loss_type": "bnpo"}, ValueError, "loss_type='bnpo': .* take 'dapo'"),
    ({"num_generations": 3}, ValueError, "whole groups of 3 .*--num_devices"),
    ({"learning_rate": "high"}, TypeError, "learning_rate='high': needs a"),
    (
      {"per_device_train_batch_size": "8"},
      ValueError,
      "size='8': need a whole number from 1 on, without quotes",
    ),
    ({"max_steps": 0.5}, ValueError, "max_steps=0.5: need a whole number"),
    (
      {"reward_funcs": ["Org/Reward-1.5B"]},
      ValueError,
      "reward_funcs='Org/Reward-1.5B': .* here a reward model is config.reward",
    ),
    ({"reward_funcs": "acuracy"}, ValueError, "one of accuracy_reward, think_"),
  ],
)
def test_what_cannot_be_read_is_refused(fields, error, message):
  with pytest.raises(error, match=message):
    from_trl.Converted(fields).config()


@pytest.mark.parametrize(
  ("name", "text", "error", "message"),
  [
    ("none.yaml", None, FileNotFoundError, "there is no file"),
    ("a.yaml", "beta: [", ValueError, "is neither YAML nor JSON"),
    ("a.json", "{", ValueError, "is neither YAML nor JSON"),
    ("a.yaml", "- beta", ValueError, r"holds \['beta'\]; need fields"),
  ],
)
def test_what_is_no_file_of_fields_is_refused(
  tmp_path, name, text, error, message
):
  if text is not None:
    (tmp_path / name).write_text(text)
  with pytest.raises(error, match=message):
    from_trl.read(str(tmp_path / name))


def test_the_page_has_the_same_table():
  names = json.loads((_ROOT / "tests/data/peer_settings.json").read_text())
  without = from_trl._NO_COUNTERPART
  known = {*from_trl.SAME, *from_trl.READ, *without}
  assert not {*names["TRL 1.16.0"].split()} - known
  assert not from_trl.SAME.keys() & {*from_trl.READ, *without}
  page = (_ROOT / "docs/start/switching.md").read_text(encoding="utf-8")
  rows = {}
  for line in page.partition("## Every setting of TRL")[2].splitlines():
    if line.startswith("| `"):
      first, default, here = line.strip("|").split("|")[:3]
      names = re.findall(r"`(\w+)`", first)
      defaults = default.split(";" if ";" in default else ",")
      for place, name in enumerate(names):
        one = defaults[place] if len(defaults) == len(names) else default
        rows.setdefault(name, (one.strip(), here))
  for name, (default, setting) in from_trl.SAME.items():
    said, here = rows[name]
    assert setting.removeprefix("algorithm.") in here, name
    try:
      value = ast.literal_eval(said.partition(":")[0])
    except (ValueError, SyntaxError):
      continue
    assert value == default, name


def test_texts_in_quotes_stay_texts(tmp_path):
  path = tmp_path / "a.yaml"
  path.write_text('learning_rate: 1e-6\nbeta: 4E-2\nrun_name: "2024"\n')
  made = from_trl.Converted(from_trl.read(str(path)))
  assert made.settings["rl.optimizer.learning_rate"] == 1e-6
  assert made.settings["algorithm.kl_coef"] == 0.04
  assert made.config().log.name == "2024"
