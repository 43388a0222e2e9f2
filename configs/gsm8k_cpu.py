"""GSM8K with a small model from scratch, on a CPU: the whole path on real text.

    TFDS_DATA_DIR=... make gsm8k
    TFDS_DATA_DIR=... python -m experiments.train \
        --config=configs/gsm8k_cpu.py --workdir=runs/gsm8k

Reads the 7 473 training questions through tfds.data_source (no TensorFlow).
The warm start passes over all of them once, with worked answers from a sloppy
teacher that drops a closing or answer tag in 60 % of them; then GRPO rewards
accuracy + 0.5 · format on as many as time allows. The answers are read inside
the compiled program; --config.rewards.in_graph=False reads them on the host.
An algorithm with process supervision, --config=configs/gsm8k_cpu.py:grpo_ps,
also gets a score for each line of the thought with a sum in it, from the host.
Expected: the share of well-formed completions, sampled at temperature 1, rises
from below a half to above 0.9. Accuracy stays near zero: a model of a million
parameters does not learn arithmetic in words from 7 473 examples.
Time: under 20 minutes on 2 CPU cores.
"""

from grpo_jax import algorithms
from grpo_jax.settings import config as config_lib


def get_config(algorithm: str = "grpo"):
  """The small GSM8K run, with any algorithm of the table."""
  config = config_lib.default_config(algorithm)
  config.phases = ("sft", "rl")

  config.data.source = "tfds"
  config.data.name = "gsm8k"
  config.data.tokenizer = "gsm8k"
  config.data.template = "Question: {prompt}\nAnswer: "
  config.data.max_prompt_len = 336  # The longest training question has 318.
  config.data.drop_tag_probability = 0.6

  config.model.width = 128
  config.model.num_layers = 3
  config.model.num_heads = 4
  config.model.num_kv_heads = 2
  config.model.mlp_width = 384

  config.sampling.max_new_tokens = 192

  config.rewards.functions = ("math_accuracy", "think_answer_format")
  config.rewards.weights = (1.0, 0.5)
  config.rewards.correct = "math_accuracy"
  if "step_rewards" in algorithms.get_algorithm(algorithm).needs:
    config.rewards.steps = "arithmetic_steps"
  else:
    config.rewards.in_graph = True

  config.sft.steps = 468
  config.sft.num_prompts = 16  # 467.1 batches hold all 7 473 questions.
  config.sft.optimizer.learning_rate = 2e-3
  config.sft.optimizer.schedule = "cosine"
  config.sft.optimizer.warmup_steps = 30

  config.rl.steps = 120
  config.rl.group_size = algorithms.group_size(algorithm, 8)
  config.rl.num_prompts = 64 // config.rl.group_size
  config.rl.max_prompt_len = 128  # 92 % of the questions; the rest is counted.
  config.rl.optimizer.learning_rate = 3e-4
  config.rl.optimizer.schedule = "linear"
  config.rl.optimizer.warmup_steps = 10
  config.rl.optimizer.final_fraction = 0.1
  config.algorithm.kl_coef = 0.0

  config.eval.num_prompts = 256
  config.eval.batch_size = 64
  config.eval.temperature = 1.0
  config.eval.every = 40
  config.checkpoint.every = 60
  return config
