"""Preferences that come with the data: DPO, or a reward model, on pairs.

    python scripts/make_pairs.py --output=runs/pairs.jsonl
    python -m experiments.train --config=configs/pairs.py --workdir=runs/pairs \
        --config.data.train_path=runs/pairs.jsonl

Each line has `prompt`, `chosen` and `rejected`, as text or as lists of messages
(`data/formats.py`). The made file has small sums: chosen is a thought with an
answer in tags, rejected the same with a tag missing. The warm start imitates
both alike, and DPO learns which of them is preferred. Expected: the share of
well-formed completions, sampled at temperature 1, rises from about 0.4 to 0.9
in less than a minute of a CPU core.

With an algorithm that draws completions, as --config=configs/pairs.py:grpo, a
reward model learns from the same file in a phase of the kind "comparison", and
its score is then the whole reward of the policy, in two minutes.
"""

from grpo_jax import algorithms
from grpo_jax.settings import config as config_lib


def get_config(algorithm: str = "dpo"):
  """A small run on pairs, with an algorithm that compares two or draws."""
  config = config_lib.default_config(algorithm)
  compares = algorithms.get_algorithm(algorithm).couples_group
  config.phases = ("sft", "pairs") if compares else ("sft", "comparison", "rl")

  config.data.source = "jsonl"
  config.data.format = "pairs"
  config.data.train_path = "runs/pairs.jsonl"
  config.data.rejected_share = 0.5
  config.data.tokenizer = "gsm8k"
  config.data.max_prompt_len = 16

  config.model.width = 64
  config.model.num_layers = 2
  config.model.num_heads = 4
  config.model.num_kv_heads = 2
  config.model.mlp_width = 192

  config.sampling.max_new_tokens = 32

  config.rewards.functions = ("think_answer_format",)

  config.sft.steps = 150
  config.sft.num_prompts = 32
  config.sft.optimizer.learning_rate = 2e-3
  config.sft.optimizer.warmup_steps = 10

  config.pairs = config_lib.phase_config("pairs", steps=40, num_prompts=32)
  config.pairs.optimizer.learning_rate = 1e-4
  config.pairs.optimizer.warmup_steps = 5

  if not compares:
    config.comparison = config_lib.phase_config(
      "comparison", steps=60, num_prompts=32
    )
    config.reward_model.optimizer.learning_rate = 1e-3
    config.rl.steps = 40
    config.rl.group_size = algorithms.group_size(algorithm, 8)
    config.rl.num_prompts = 128 // config.rl.group_size
    config.rl.optimizer.learning_rate = 3e-4
    config.rl.optimizer.warmup_steps = 5
    config.rewards.functions = ("think_answer_format", "reward_model")
    config.rewards.weights = (0.0, 1.0)
    config.rewards.correct = "think_answer_format"

  config.eval.num_prompts = 128
  config.eval.batch_size = 128
  config.eval.temperature = 1.0
  config.eval.every = 20
  config.checkpoint.every = 20
  return config
