"""An agent that searches, in the format of a chat template, on a CPU.

    python -m experiments.rewards.search_task --out=runs/search_task
    python -m experiments.train --config=configs/search_agent.py \
        --workdir=runs/search_agent

A question is answered after a call of the tool `search`, whose schema the chat
template puts into the prompt. The warm start imitates a teacher that searches
in one episode of three, guesses in another, and writes a call that cannot be
read in the third; then GRPO rewards right answers. Needs the extra `tools`.
The run takes two to three minutes on two cores.

A checkpoint with a chat template learns to search likewise. Your questions are
JSON lines with `prompt` and `answer`, and your passages JSON lines with `text`:

    python -m experiments.train --config=configs/checkpoint.py \
        --workdir=runs/mine \
        --config.data.template=chat \
        --config.data.train_path=questions.jsonl \
        --config.data.environment=grpo_jax.rewards.agents.tools:make \
        --config.environment.options="{'tools': ('search',), \
          'corpus': 'passages.jsonl', 'grade': 'exact'}" \
        --config.environment.max_turns=4 \
        --config.environment.max_action_len=256 \
        --config.environment.max_observation_len=512 \
        --config.sampling.max_new_tokens=2048 \
        --config.data.max_prompt_len=512 \
        --config.rewards.functions="('accuracy',)"
"""

from grpo_jax import algorithms
from grpo_jax.settings import config as config_lib

TASK = "runs/search_task"


def get_config(algorithm: str = "grpo"):
  """Config of the small search task, with any algorithm for several turns."""
  config = config_lib.default_config(algorithm)
  config.phases = ("sft", "rl")

  config.data.source = "jsonl"
  config.data.train_path = f"{TASK}/train.jsonl"
  config.data.eval_path = f"{TASK}/test.jsonl"
  config.data.tokenizer = f"{TASK}/tokenizer"
  config.data.template = "chat"
  config.data.max_prompt_len = 96

  config.data.environment = "grpo_jax.rewards.agents.tools:make"
  config.environment.options = {
    "format": "qwen",
    "tools": ("search",),
    "corpus": f"{TASK}/passages.jsonl",
    "grade": "exact",
    "top_k": 1,
    "max_calls": 2,
    "max_parallel": 1,
  }
  config.environment.max_turns = 3
  config.environment.max_action_len = 24
  config.environment.max_observation_len = 48
  config.sampling.max_new_tokens = 96
  config.rewards.functions = ("accuracy",)

  config.model.width = 64
  config.model.num_layers = 2
  config.model.num_heads = 4
  config.model.num_kv_heads = 2
  config.model.mlp_width = 192

  config.sft.demonstrations = (f"{TASK}/demonstrations.jsonl",)
  config.sft.steps = 800
  config.sft.num_prompts = 32
  config.sft.optimizer.learning_rate = 3e-3
  config.sft.optimizer.schedule = "cosine"
  config.sft.optimizer.warmup_steps = 20

  config.rl.steps = 30
  config.rl.group_size = algorithms.group_size(algorithm, 8)
  config.rl.num_prompts = 128 // config.rl.group_size
  config.rl.optimizer.learning_rate = 5e-4
  config.rl.optimizer.schedule = "linear"
  config.rl.optimizer.warmup_steps = 3
  config.rl.optimizer.final_fraction = 0.1
  config.algorithm.kl_coef = 0.0  # The habit to unlearn is the reference's.

  config.eval.num_prompts = 64
  config.eval.batch_size = 64
  config.eval.temperature = 1.0
  config.eval.every = 10
  config.checkpoint.every = 30
  return config
