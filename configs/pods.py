"""A step with a published model, all of it in one program: for pods.

    python -m experiments.pods.report --config=configs/pods.py \
        --config.model.checkpoint=Qwen/Qwen2.5-7B \
        --topology=v5p-128 --mesh=fsdp:16,tensor:4

The step that benchmarks/pods.md compiles for pods of TPUs: 512 slots for a
prompt, 1024 for a completion, 8 completions each, one update per batch, and
with GRPO a KL term and thus a reference. Answers are verified in the program,
so that rollout, reward and update are one; the questions are sums in the task's
own 13 ids, which a published model does not know. It is a config to compile,
and a run of it trains on nothing of use: for questions in words see
configs/checkpoint.py and configs/recipes/. These verify text on the host, or
with --config.rewards.in_graph=True numbers and formats in the program.
"""

from grpo_jax import algorithms
from grpo_jax.settings import config as config_lib


def get_config(algorithm: str = "grpo"):
  """The step of any algorithm of the table."""
  config = config_lib.default_config(algorithm)
  config.phases = ("rl",)
  config.data.max_prompt_len = 512
  config.sampling.max_new_tokens = 1024
  config.model.checkpoint = "Qwen/Qwen2.5-0.5B"
  config.model.dtype = "bfloat16"
  # An update of 1e-6 is below the rounding of a bfloat16 parameter.
  config.model.param_dtype = "float32"
  config.model.remat = "full"
  config.rl.group_size = algorithms.group_size(algorithm, 8)
  config.rl.num_prompts = 128 // config.rl.group_size
  config.rl.micro_batch_size = 32
  config.rl.optimizer.learning_rate = 1e-6
  if algorithm == "grpo":
    config.algorithm.kl_coef = 0.001
  return config
