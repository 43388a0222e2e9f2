"""Sums of two numbers: GRPO on a published model, on a CPU.

    make smollm2
    python -m experiments.train --config=configs/published.py:smollm2 \
        --workdir=runs/smollm2

`make smollm2` fetches SmolLM2-135M-Instruct, a GGUF file, and runs the command
with it. In the place of "smollm2", "gemma3-270m" and "qwen2.5-0.5b" name models
on the Hugging Face hub; --config.model.checkpoint takes any other name there, a
folder, or a GGUF file. Another algorithm follows a comma: "smollm2,gspo".

A completion is right if the number behind its last "=" is, as in "7 + 9 = 16".
The published model seldom writes that at temperature 1, and greedily it often
adds wrongly. docs/guides/checkpoint.md has the measured accuracies, and says
how the task was chosen.
"""

import zlib

import ml_collections

from grpo_jax import algorithms
from grpo_jax.settings import config as config_lib
from grpo_jax.settings import overrides

# A name -> hub name, folder or GGUF file. `make smollm2` fetches the first.
CHECKPOINTS = {
  "smollm2": "runs/weights/SmolLM2-135M-Instruct.Q4_1.gguf",
  "gemma3-270m": "google/gemma-3-270m-it",
  "qwen2.5-0.5b": "Qwen/Qwen2.5-0.5B-Instruct",
}
_NUM_HELD_OUT = 100


def sums() -> dict[str, list[dict[str, str]]]:
  """Returns the sums of two numbers from 1 to 20, in two parts.

  The order is that of a checksum, so the held-out sums are the same in every
  run, whatever its seed.
  """
  rows = [
    {
      "prompt": f"What is {a} + {b}? Answer with the number only.",
      "answer": str(a + b),
    }
    for a in range(1, 21)
    for b in range(1, 21)
  ]
  rows.sort(key=lambda row: zlib.crc32(row["prompt"].encode()))
  return {"train": rows[_NUM_HELD_OUT:], "test": rows[:_NUM_HELD_OUT]}


def get_config(model: str = "smollm2") -> ml_collections.ConfigDict:
  """Sums with a model of `CHECKPOINTS`, and perhaps another algorithm.

  Args:
    model: "smollm2", an algorithm, "gspo", or both, "smollm2,gspo".

  Raises:
    KeyError: There is no such model.
  """
  name, _, algorithm = model.partition(",")
  if not algorithm and (name in algorithms.ALGORITHMS or ":" in name):
    name, algorithm = "smollm2", name
  if name not in CHECKPOINTS:
    raise KeyError(
      f"there is no model {name!r}; choose one of {', '.join(CHECKPOINTS)}. For"
      " another checkpoint take one of them and set --config.model.checkpoint."
    )
  config = config_lib.default_config(algorithm or "grpo")
  config.phases = ("rl",)

  overrides.apply(config, overrides.with_rows({"data": sums()}))
  config.data.template = "chat"
  config.data.max_prompt_len = 48  # In tokens of these models.
  config.sampling.max_new_tokens = 12
  config.rewards.functions = ("math_accuracy",)
  config.rewards.answer_after = "="
  config.rewards.in_graph = True

  config.model.checkpoint = CHECKPOINTS[name]

  config.rl.steps = 15
  config.rl.group_size = algorithms.group_size(algorithm or "grpo", 8)
  config.rl.num_prompts = 64 // config.rl.group_size
  config.rl.optimizer.learning_rate = 2e-5
  config.rl.optimizer.schedule = "linear"
  config.rl.optimizer.warmup_steps = 2
  config.rl.optimizer.final_fraction = 0.1
  config.algorithm.kl_coef = 0.0

  config.eval.num_prompts = _NUM_HELD_OUT
  config.eval.batch_size = 50
  config.checkpoint.every = 10
  config.checkpoint.keep = 1
  if name == "smollm2":  # The published model has 0.37.
    config.required_accuracy = 0.67
  return config
