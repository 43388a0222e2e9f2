"""DeepSeek-R1-Zero (arXiv:2501.12948 v2; Nature 2025).

    python -m experiments.train \
        --config=configs/recipes/r1_zero.py:MODEL \
        --workdir=runs/r1_zero --config.allow_unpublished=True

MODEL is a name of `models.py`, or "toy". Result in the literature: AIME 2024
pass@1 from 15.6 to 71.0 % in v1 of the paper and 77.9 % in v2, 86.7 % by
majority vote, for DeepSeek-V3-Base (671 B). Not reproduced here.

Often quoted as 32 questions and one update per batch; the paper says 32 per
training step, and 16 such steps on the 8192 completions of each rollout, so
that the last one is 15 steps off-policy. The clip range is often quoted as 0.2;
the paper does not state it for R1-Zero. Here it is the 10 of R1's first stage,
whose other settings are the same; a ratio is never below 0, so the lower half
of that range is 1.

A step of `config.rl` is a rollout. The reference becomes the policy every 400
training steps, which is every 25 rollouts: 26 phases of 25 rollouts, 10 400
training steps in all. Moments are carried from phase to phase.

Deviations: the budget stays at 32 768 tokens (the paper has 65 536 from step
8200 on). Each phase draws its questions in an order of its own, and each is
evaluated at its beginning and end. For a model that already reasons, the format
reward asks for an `<answer>` after the thought.

Memory: the cache of a rollout takes 14350.0 GiB over all devices with
qwen2.5-7b; the rest is in `models.py`.
"""

from grpo_jax.configs.recipes import models

# Table 1 of the paper.
_TEMPLATE = (
  "A conversation between User and Assistant. The user asks a question, and the"
  " Assistant solves it. The assistant first thinks about the reasoning process"
  " in the mind and then provides the user with the answer. The reasoning"
  " process and answer are enclosed within <think> </think> and <answer>"
  " </answer> tags, respectively, i.e., <think> reasoning process here </think>"
  " <answer> answer here </answer>. User: {prompt}. Assistant:"
)


def base(model: str):
  """Shared config of R1-Zero and the first reinforcement phase of R1."""
  config = models.base("grpo", model)
  config.data.template = _TEMPLATE
  config.rl.group_size = 16
  config.rl.num_prompts = 512  # 8192 completions per rollout.
  config.rl.num_minibatches = 16  # Of 512 completions, 32 questions' worth.
  config.rl.optimizer.learning_rate = 3e-6
  config.sampling.max_new_tokens = 32_768
  config.sampling.temperature = 1.0
  config.rewards.functions = ("math_accuracy", "think_answer_format")
  config.rewards.weights = (1.0, 1.0)
  config.rewards.correct = "math_accuracy"
  config.algorithm.kl_coef = 0.001
  config.algorithm.kl_kind = "k3"
  config.algorithm.advantage_scale = "group"
  return config


def get_config(model: str = "qwen2.5-7b"):
  """The recipe with a model of `models.py`."""
  config = base(model)
  config.phases = ("rl",) * 26  # A new reference every 400 training steps.
  config.rl.steps = 25
  config.rl.reset_optimizer = False
  config.algorithm.clip_low = 1.0  # not published
  config.algorithm.clip_high = 10.0  # not published
  config.unpublished = ("algorithm.clip_low", "algorithm.clip_high")
  return models.finish(config, model)
