"""GRPO on an environment of the package verifiers, unchanged, over HTTP.

    python -m experiments.train --config=configs/verifiers_grpo.py \
        --workdir=runs/verifiers

The environment is at the end of this file, as an author of environments writes
it: it knows nothing of grpo_jax, and asks a model by OpenAI's interface, twice
in an episode. Another one that is installed takes its place:

    --config.data.environment=verifiers:my_env \
    --config.environment.options='{"difficulty": "easy"}'

A policy of bytes, with parameters drawn at random, learns to answer in capital
letters. Measured with seed 0: their share goes from 0.13 to 1.00 in 30 steps,
in one and a half minutes on 2 CPU cores that others used too.
"""

from grpo_jax import algorithms
from grpo_jax.settings.config import default_config


def get_config(algorithm: str = "grpo"):
  """Config of the letters, with any algorithm for several turns."""
  config = default_config(algorithm)
  config.data.source = "environment"
  config.data.environment = "verifiers:configs.verifiers_grpo"
  config.data.tokenizer = "bytes"
  config.data.max_prompt_len = 24
  # Of both turns and of what is said between them.
  config.sampling.max_new_tokens = 24
  config.environment.max_action_len = 6
  config.rewards.functions = ("return",)
  config.rewards.correct = "return"
  config.phases = ("rl",)

  config.model.width = 32
  config.model.num_layers = 1
  config.model.num_heads = 2
  config.model.num_kv_heads = 1
  config.model.mlp_width = 64

  config.rl.steps = 30
  config.rl.group_size = algorithms.group_size(algorithm, 8)
  config.rl.num_prompts = 64 // config.rl.group_size
  config.rl.optimizer.learning_rate = 1e-2
  config.algorithm.kl_coef = 0.0
  config.eval.num_prompts = 8
  config.eval.batch_size = 8
  config.eval.every = 10
  config.checkpoint.every = 10
  return config


def load_environment(num_examples: int = 64):
  """Asks for a word, repeats it, and wants capital letters both times."""
  import verifiers as vf
  from datasets import Dataset

  class Again(vf.MultiTurnEnv):
    async def env_response(self, messages, state, **kwargs):
      return [{"role": "user", "content": "Again:"}]

  def capitals(completion) -> float:
    text = "".join(
      message["content"]
      for message in completion
      if message["role"] == "assistant"
    )
    return sum("A" <= letter <= "Z" for letter in text) / max(len(text), 1)

  words = [f"word {i}" for i in range(num_examples)]
  return Again(
    dataset=Dataset.from_list([{"question": x, "answer": ""} for x in words]),
    rubric=vf.Rubric(funcs=[capitals]),
    max_turns=2,
  )
