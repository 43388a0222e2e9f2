"""The demonstration of Open-R1: GRPO on mathematics with TRL.

    python -m experiments.train \
        --config=configs/recipes/open_r1.py:MODEL \
        --workdir=runs/open_r1 --config.allow_unpublished=True

MODEL is a name of `models.py`, or "toy". Values are those of
recipes/Qwen2.5-1.5B-Instruct/grpo/config_demo.yaml of huggingface/open-r1 at
commit bd581c7. A demonstration has no result in the literature.

A step has 28 prompts: 7 processes (an earlier version of the file says so; the
eighth GPU samples) with 16 completions, four times, in groups of 16. The file
has one epoch of OpenR1-Math-220k and a tenth of its steps for the warm-up; here
are 100 steps, of which the warm-up takes 10. It leaves the weight of the KL,
the clip range and the mean to the TRL of that day: those of
`trl_early_2025.py` are taken.

Deviations: the questions are GSM8K's; see `models.py` for how to give others.
A system message asks for the format there, and the template does so here.

Memory: the cache of a rollout takes 25.3 GiB over all devices with qwen2.5-7b;
the rest is in `models.py`.
"""

from grpo_jax.configs.recipes import models

_TEMPLATE = (
  "{prompt}\nReason first, between <think> and </think>. Then give the answer"
  " between <answer> and </answer>, and nothing else.\n"
)


def get_config(model: str = "qwen2.5-1.5b"):
  """The recipe with a model of `models.py`."""
  config = models.base("grpo", model)
  config.rl.group_size = 16
  config.rl.num_prompts = 28
  config.rl.num_epochs = 1
  config.rl.optimizer.learning_rate = 2e-5
  config.rl.optimizer.schedule = "cosine"
  config.rl.optimizer.warmup_steps = 10
  config.sampling.max_new_tokens = 1024
  config.sampling.temperature = 1.0  # not published
  config.algorithm.kl_coef = 0.04  # not published
  config.algorithm.kl_kind = "k3"
  config.algorithm.clip_low = 0.2  # not published
  config.algorithm.clip_high = 0.2  # not published
  config.algorithm.advantage_scale = "group"
  config.rewards.functions = ("math_accuracy", "think_answer_format")
  config.rewards.weights = (1.0, 1.0)
  config.data.template = _TEMPLATE
  config.unpublished = (
    "sampling.temperature",
    "algorithm.kl_coef",
    "algorithm.clip_low",
    "algorithm.clip_high",
  )
  return models.finish(config, model)
