"""A coding agent that runs tests and repairs faults, on a CPU.

    python -m experiments.rewards.coding_task --out=runs/coding_task
    python -m experiments.train --config=configs/coding_agent.py \
        --workdir=runs/coding_agent

The repository has one line, in which an operator is wrong. The warm start
imitates a teacher that runs the tests in one episode of three; then GRPO
rewards what passes the hidden tests. Needs the extra `tools`. The run took nine
minutes on two cores that other programs used.

A checkpoint with a chat template repairs the packages that
the first command writes:

    python -m experiments.rewards.coding_task --out=runs/repositories \
        --packages=toolz,humanize,sortedcontainers
    python -m experiments.train --config=configs/checkpoint.py \
        --workdir=runs/mine \
        --config.data.template=chat \
        --config.data.train_path=runs/repositories/train.jsonl \
        --config.data.environment=grpo_jax.rewards.agents.coding:make \
        --config.environment.options="{'format': 'qwen'}" \
        --config.environment.max_turns=12 \
        --config.environment.max_action_len=512 \
        --config.environment.max_observation_len=1024 \
        --config.sampling.max_new_tokens=8192 \
        --config.data.max_prompt_len=1024 \
        --config.rewards.functions="('accuracy',)"
"""

from grpo_jax.configs import search_agent

TASK = "runs/coding_task"


def get_config(algorithm: str = "grpo"):
  """Config of the small task, with any algorithm for several turns."""
  config = search_agent.get_config(algorithm)
  config.data.train_path = f"{TASK}/train.jsonl"
  config.data.eval_path = f"{TASK}/test.jsonl"
  config.data.tokenizer = f"{TASK}/tokenizer"
  config.data.chat_options = {"tools": None}  # The warm start shows them.
  config.data.max_prompt_len = 32
  config.data.environment = "grpo_jax.rewards.agents.coding:make"
  config.environment.options = {
    "format": "qwen",
    "max_calls": 3,
    "max_parallel": 1,
  }
  config.environment.max_turns = 4
  config.environment.max_action_len = 40
  config.sampling.max_new_tokens = 160
  config.sft.demonstrations = (f"{TASK}/demonstrations.jsonl",)
  config.sft.steps = 300

  config.rl.steps = 20
  config.rl.num_prompts = 64 // config.rl.group_size
  config.checkpoint.every = 20
  return config
