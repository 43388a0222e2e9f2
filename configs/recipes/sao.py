"""SAO: single rollouts, a critic, asynchronous (arXiv:2607.07508).

    python -m experiments.train \
        --config=configs/recipes/sao.py:MODEL \
        --workdir=runs/sao --config.allow_unpublished=True

MODEL is a name of `models.py`, or "toy"; "MODEL,code" is the recipe for
programs, whose band of ratios is (0.8, 3) in the place of (0.3, 5), on the
problems of `experiments.rewards.code_task`, which have to be made first.
Result in the literature: AIME 2025 97.3 and BeyondAIME 74.8, where GRPO with
the same band has 93.5 and 70.8; without the frozen attention of the critic 90.6
on the former, without its faster learning 95.0. Not reproduced here.

1. "value": the critic alone, on 6016 completions; 6000 in the paper.
2. "warm_up": ten more batches, as a phase of their own.
3. "rl": a batch of 128 prompts with one completion each; the policy has one
   gradient step, the critic two, with five times its learning rate. λ of the
   policy is 1 − 1/(1.5 |y|), that of the critic's targets 1.

The paper states neither γ nor the KL; we take γ = 1, no KL, and rollouts that
are one update old. It gives learning rates and no schedule; here they are
constant.

Deviations: the paper's ten steps of value warm-up are read as steps of the
critic alone; if a rising learning rate is meant, it is
--config.critic.optimizer.warmup_steps=20, of two updates each, without
"warm_up" in --config.phases. The completions of the first phase are drawn from
the policy; where the paper has them from could not be read. The critic begins
as a copy of the policy with a head of zeros.

Memory: the cache of a rollout takes 899.5 GiB over all devices with
qwen2.5-7b; the rest is in `models.py`, and the critic has parameters and
moments of its own.
"""

from grpo_jax.configs.recipes import models
from grpo_jax.settings import config as config_lib

_BANDS = {"math": (0.3, 5.0), "code": (0.8, 3.0)}


def get_config(variant: str = "qwen2.5-7b"):
  """Config of the recipe with a model of `models.py`, or with "MODEL,code".

  Raises:
    KeyError: The model does not exist.
    ValueError: The text after the comma is neither "math" nor "code".
  """
  model, _, domain = variant.partition(",")
  domain = domain or "math"
  if domain not in _BANDS:
    raise ValueError(
      f"recipe: {variant!r} ends with {domain!r}; a band of ratios is known for"
      f" {', '.join(_BANDS)}."
    )
  config = models.base("sao", model)
  config.phases = ("value", "warm_up", "rl")
  config.rl.num_prompts = 128
  config.rl.group_size = 1
  config.rl.num_minibatches = 1
  config.rl.staleness = 1  # not published
  config.rl.optimizer.learning_rate = 1e-6
  config.sampling.max_new_tokens = 131_072
  config.algorithm.clip_low, config.algorithm.clip_high = _BANDS[domain]
  config.algorithm.length_adaptive_alpha = 1.5
  config.algorithm.lam_critic = 1.0
  config.algorithm.gamma = 1.0  # not published
  config.algorithm.kl_coef = 0.0  # not published
  config.critic.trunk = "own"
  config.critic.freeze = ("attention",)
  config.critic.num_updates = 2
  config.critic.optimizer.learning_rate = 5e-6
  config.value.steps = 47  # Of 128: 6016 samples.
  config.value.num_prompts = 128
  config.value.micro_batch_size = config.rl.micro_batch_size
  config.warm_up = config_lib.phase_config("value", steps=10, num_prompts=128)
  config.warm_up.reset_optimizer = False  # It goes on where "value" ended.
  config.warm_up.micro_batch_size = config.rl.micro_batch_size
  config.unpublished = (
    *("rl.staleness", "algorithm.gamma", "algorithm.kl_coef"),
  )
  if domain == "code":
    models.on_programs(config)
  return models.finish(config, model)
