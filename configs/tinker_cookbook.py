"""Two recipes of tinker-cookbook 0.6.1, each as one program.

    python -m experiments.train --config=configs/tinker_cookbook.py:chat_sl \
        --workdir=runs/chat_sl
    python -m experiments.train --config=configs/tinker_cookbook.py \
        --workdir=runs/math_rl

"chat_sl" imitates the conversations of runs/sums.jsonl, a file that
docs/guides/tinker.md makes. That page has the commands of the recipes, and
compares the curves. Otherwise the argument is an algorithm for the sums of
`recipes/math_rl`, which come behind an example: Dr. GRPO, whose advantages are
rewards less the mean of their group, and whose loss is a sum over tokens, as in
the recipe. Adapters, optimizer and tokens are those of the recipes with
`qwen3_instruct`, a renderer that writes ChatML without a system message.

Differences: adapters begin with other random numbers, records come in another
order, and sums of the loss are means, which AdamW does not notice. Imitation is
a mean over tokens; in the recipe it is one over rows, which have three each.
"""

import re

import numpy as np

from grpo_jax import algorithms
from grpo_jax.settings import config as config_lib
from grpo_jax.settings import overrides

_NUM_STEPS, _NUM_PROMPTS = 12, 4
_ASKED = "<|im_start|>user\n{prompt}<|im_end|>\n<|im_start|>assistant\n"
_SHOWN = _ASKED.replace("{prompt}", "What is 4 + 5?") + "9<|im_end|>\n"


def sums() -> list[dict[str, str]]:
  """Returns the sums of the recipe's first steps, in its order."""
  rows = []
  for step in range(_NUM_STEPS):
    random = np.random.RandomState(step)
    for _ in range(_NUM_PROMPTS):
      a, b = random.randint(0, 101), random.randint(0, 101)
      rows.append({"prompt": f"What is {a} + {b}?", "answer": str(a + b)})
  return rows


def last_number(prompts, completions, ids, extras, *, tokens, tokenizer):
  """1 if the last number is right, and −0.1 without an end token."""
  scores = []
  for text, extra, row in zip(completions, extras, tokens, strict=True):
    numbers = re.findall(r"-?\d+", text.replace(",", ""))
    right = bool(numbers) and int(numbers[-1]) == int(extra["answer"])
    ended = bool(row) and row[-1] in tokenizer.end_ids
    scores.append(right - 0.1 * (not ended))
  return scores


def get_config(recipe: str = "dr_grpo"):
  """The config of "chat_sl", or of "math_rl" with an algorithm."""
  imitates = recipe == "chat_sl"
  algorithm = "dr_grpo" if imitates else recipe
  config = config_lib.default_config(algorithm)
  config.model.checkpoint = "runs/weights/SmolLM2-135M-Instruct.Q4_1.gguf"
  config.model.lora_rank = 8
  if imitates:
    config.phases = ("sft",)
    config.data.source = "jsonl"
    config.data.train_path = "runs/sums.jsonl"
    config.data.format = "trl"
    config.data.template = _ASKED
    config.data.max_prompt_len = 20
  else:
    config.phases = ("rl",)
    overrides.apply(config, overrides.with_rows({"data": sums()}))
    config.data.template = _SHOWN + _ASKED
    config.data.max_prompt_len = 41
  config.sampling.max_new_tokens = 5
  config.rewards.functions = ("grpo_jax.configs.tinker_cookbook:last_number",)

  config.sft.steps, config.sft.num_prompts = 20, 8
  config.sft.optimizer.schedule = "linear"
  config.rl.steps = _NUM_STEPS
  config.rl.group_size = algorithms.group_size(algorithm, 4)
  config.rl.num_prompts = 16 // config.rl.group_size
  config.algorithm.kl_coef = 0.0
  config.sft.optimizer.learning_rate = 1e-3
  config.rl.optimizer.learning_rate = 3e-4
  for optimizer in (config.sft.optimizer, config.rl.optimizer):
    optimizer.b2 = 0.95
    optimizer.clip_norm = 1e6  # The recipes do not clip.

  config.eval.num_prompts = config.eval.batch_size = 48
  config.eval.temperature = 1.0
  return config
