"""A small text model learns to use Python, in a sandbox, on word problems.

    pip install 'grpo-jax[code,hf]'
    python -m experiments.rewards.word_problems --out=runs/python_agent
    python -m experiments.train --config=configs/python_agent.py \
        --workdir=runs/python_agent/run

"Ann has 274 pens and buys 455 more. Ann gives 88 away. How many are left?" The
numbers are too large for the model. The warm start imitates traces of a teacher
who does not use the tool in four of ten problems, and calls it wrongly in three
more; then GRPO rewards right answers. The tool is an interpreter of Python, one
for each episode, which keeps names from one call to the next.

Measured over 128 held-out problems sampled at temperature 1, before and after
40 steps of GRPO. A run took 160 s, with 160 s of a core, on 2 cores that other
programs used too, and 300 s with all compilations.

| seed                        | 0             | 1             | 2             |
|-----------------------------|---------------|---------------|---------------|
| right answers               | 0.242 → 0.953 | 0.195 → 0.914 | 0.242 → 0.961 |
| episodes that used the tool | 0.578 → 0.969 | 0.547 → 0.984 | 0.594 → 0.992 |
| calls in an episode         | 0.83 → 1.53   | 0.79 → 1.87   | 0.84 → 1.95   |

A run of seed 0 that was killed (SIGKILL) after step 20 of GRPO and started
again had the same metrics, samples and parameters, byte for byte.
"""

from grpo_jax import algorithms
from grpo_jax.settings import config as config_lib

FOLDER = "runs/python_agent"


def get_config(algorithm: str = "grpo"):
  """Config of the word problems, with any algorithm for several turns."""
  config = config_lib.default_config(algorithm)
  config.phases = ("sft", "rl")

  config.data.source = "jsonl"
  config.data.train_path = f"{FOLDER}/train.jsonl"
  config.data.eval_path = f"{FOLDER}/test.jsonl"
  config.data.tokenizer = f"{FOLDER}/tokenizer.json"
  config.data.max_prompt_len = 28
  config.data.environment = "grpo_jax.rewards.agents.python_session:make"

  config.environment.max_turns = 4
  config.environment.max_action_len = 20
  config.environment.max_observation_len = 16
  config.environment.action_ends = ("</tool>", "</answer>")
  config.environment.options = {
    "call_s": 5.0,
    "max_calls": 3,
    "max_bytes": 200,
  }

  config.model.width = 128
  config.model.num_layers = 2
  config.model.num_heads = 4
  config.model.num_kv_heads = 2
  config.model.mlp_width = 384

  config.sampling.max_new_tokens = 64

  config.rewards.functions = ("accuracy", "used_tool", "tool_errors")
  config.rewards.weights = (1.0, 0.0, 0.0)
  config.rewards.correct = "accuracy"
  config.rewards.row_timeout_s = 60.0

  config.sft.steps = 500
  config.sft.num_prompts = 64
  config.sft.demonstrations = (f"{FOLDER}/traces.jsonl",)
  config.sft.optimizer.learning_rate = 3e-3
  config.sft.optimizer.schedule = "cosine"
  config.sft.optimizer.warmup_steps = 20

  config.rl.steps = 40
  config.rl.group_size = algorithms.group_size(algorithm, 8)
  config.rl.num_prompts = 96 // config.rl.group_size
  config.rl.optimizer.learning_rate = 5e-4
  config.rl.optimizer.schedule = "linear"
  config.rl.optimizer.warmup_steps = 5
  config.rl.optimizer.final_fraction = 0.1
  config.algorithm.kl_coef = 0.0  # The habit to unlearn is the reference's.

  config.eval.num_prompts = 128
  config.eval.batch_size = 128
  config.eval.temperature = 1.0
  config.eval.every = 10
  config.checkpoint.every = 20
  return config
