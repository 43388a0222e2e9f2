"""GRPO from a Hugging Face checkpoint, on your own prompts.

    python -m experiments.train --config=configs/checkpoint.py \
        --workdir=runs/mine \
        --config.model.checkpoint=path/of/checkpoint \
        --config.data.train_path=prompts.jsonl \
        --config.rewards.functions="('my_rewards:brevity',)"
    python -m experiments.export --workdir=runs/mine --out=runs/exported/mine

A checkpoint is a folder as save_pretrained writes it, or a name on the hub;
docs/checkpoints.md lists the families. --config.model.revision=COMMIT pins a
version there, and --config.model.adapter_checkpoint=DIR starts from adapters of
PEFT over it. Its config.json decides the architecture, and its tokenizer the
vocabulary; --config.data.template=chat writes prompts with its chat template.
Each line of the file is a JSON object with `prompt`; the reward function reads
`answer` and `extras`.

Parameters and matmuls are bfloat16, as in published files, and small updates
are kept by stochastic rounding. With --config.model.param_dtype=float32 they
are exact and take twice the memory. For mixtures of experts consider
--config.algorithm.keep_routing=true and --config.algorithm.balance_coef.
"""

from grpo_jax import algorithms
from grpo_jax.settings import config as config_lib


def get_config(algorithm: str = "grpo"):
  """A run from a checkpoint, with any algorithm of the table."""
  config = config_lib.default_config(algorithm)
  config.phases = ("rl",)

  config.data.source = "jsonl"
  config.data.max_prompt_len = 256
  config.sampling.max_new_tokens = 512

  config.model.checkpoint = "Qwen/Qwen2.5-0.5B-Instruct"
  config.model.dtype = "bfloat16"
  config.model.param_dtype = "bfloat16"
  config.model.remat = "full"

  # Built in, so that the file alone is complete; name your own.
  config.rewards.functions = ("math_accuracy",)

  config.rl.steps = 200
  config.rl.group_size = algorithms.group_size(algorithm, 8)
  config.rl.num_prompts = 128 // config.rl.group_size
  config.rl.optimizer.learning_rate = 1e-6
  config.rl.optimizer.warmup_steps = 10
  config.rl.optimizer.stochastic_rounding = True

  config.eval.num_prompts = 64
  config.eval.batch_size = 64
  config.eval.temperature = 1.0
  config.eval.every = 50
  config.checkpoint.every = 50
  return config
