"""Programs rewarded by hidden tests, which are run in a sandbox.

    python -m experiments.rewards.code_task --out=runs/code_task
    python -m experiments.train --config=configs/code.py --workdir=runs/code

"Add 3, then multiply by 2." → `def f(x): return (x+3)*2`. The warm start
imitates a teacher that does the two steps in the wrong order seven times out of
ten; then GRPO rewards the share of hidden tests that a program passes, in a box
of its own (docs/sandbox.md). Needs the extra `code` on Linux; without it, and
for a policy that you trust, set --config.rewards.sandbox=process.
"""

from grpo_jax import algorithms
from grpo_jax.settings import config as config_lib


def get_config(algorithm: str = "grpo"):
  """The small code task, with any algorithm of the table."""
  config = config_lib.default_config(algorithm)
  config.phases = ("sft", "rl")

  config.data.source = "jsonl"
  config.data.train_path = "runs/code_task/train.jsonl"
  config.data.eval_path = "runs/code_task/test.jsonl"
  config.data.tokenizer = "gsm8k"
  config.data.template = "{prompt}\n"
  config.data.max_prompt_len = 24

  config.model.width = 128
  config.model.num_layers = 2
  config.model.num_heads = 4
  config.model.num_kv_heads = 2
  config.model.mlp_width = 384

  config.sampling.max_new_tokens = 24

  config.rewards.functions = ("code",)

  config.sft.steps = 120
  config.sft.num_prompts = 64
  config.sft.optimizer.learning_rate = 2e-3
  config.sft.optimizer.schedule = "cosine"
  config.sft.optimizer.warmup_steps = 20

  config.rl.steps = 30
  config.rl.group_size = algorithms.group_size(algorithm, 8)
  config.rl.num_prompts = 128 // config.rl.group_size
  config.rl.optimizer.learning_rate = 5e-4
  config.rl.optimizer.schedule = "linear"
  config.rl.optimizer.warmup_steps = 5
  config.rl.optimizer.final_fraction = 0.1
  config.algorithm.kl_coef = 0.0  # The habit to unlearn is the reference's.

  config.eval.num_prompts = 64
  config.eval.batch_size = 64
  config.eval.every = 10
  config.checkpoint.every = 30
  return config
