"""Iterative GRPO: a reward model and a policy that learn by turns.

    python -m experiments.train --config=configs/iterative.py \
        --workdir=runs/iterative

The task is to sort five letters. In each iteration a reward model first learns
which of two fresh completions is better; one in ten of its prompts is of an
earlier iteration. Then GRPO follows its score alone, and the policy at the
start of the iteration is the reference. Settings of an iteration:

| setting                             | meaning                            |
|-------------------------------------|------------------------------------|
| `config.phases`                     | number of iterations               |
| `config.rl.steps`                   | steps of the policy in between     |
| `config.rl.set_reference`           | the reference becomes the policy   |
| `config.reward_model.history_share` | prompts that are old               |
| `config.preference.reward_weights`  | rewards that rank two completions  |

The latter are nearly all about neighbours in ascending order, which any letters
can be, and hardly about the letters that were given. So this is also a small
example of a reward model that misleads: `reward/reward_model` rises in each
iteration, and `eval/accuracy` first rises from 0.45 and then falls.
docs/proxy.md measures remedies. It does not mislead with
--config.preference.reward_weights="(1.0, 0.0, 0.0, 0.0)".

Source: Shao et al., "DeepSeekMath", arXiv:2402.03300, Algorithm 1; the recipe
of the paper is configs/recipes/deepseekmath.py.
"""

from grpo_jax.configs import quickstart
from grpo_jax.settings.config import phase_config


def get_config(algorithm: str = "grpo", iterations: int = 6):
  """Config of a small run with so many iterations, for any algorithm."""
  config = quickstart.get_config(algorithm)
  options = config.data.task_options
  options.min_len = options.max_len = 5
  options.teacher_error = 0.5
  config.phases = ("sft", *iterations * ("preference", "rl"))

  config.model.width = 64
  config.model.mlp_width = 192
  config.sft.steps = 150

  config.rewards.functions = ("accuracy", "ascending", "f1", "reward_model")
  config.rewards.weights = (0.0, 0.0, 0.0, 1.0)
  config.reward_model.optimizer.learning_rate = 1e-3
  if iterations > 1:
    config.reward_model.history_share = 0.1
  config.preference = phase_config(
    "preference", steps=30, num_prompts=20, group_size=8
  )
  config.preference.reward_weights = (0.0, 0.9, 0.1, 0.0)

  config.rl.steps = 25
  config.rl.optimizer.learning_rate = 1e-4
  config.rl.optimizer.schedule = "constant"
  config.rl.optimizer.warmup_steps = 0
  config.algorithm.kl_coef = 0.04

  config.eval.num_prompts = 256
  config.eval.batch_size = 256
  config.eval.temperature = 1.0  # The most likely answers hide the others.
  config.eval.every = 0
  config.checkpoint.every = 25
  config.required_accuracy = None
  return config
