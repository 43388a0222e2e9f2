"""Right answers that follow from the working: CORA's advantages (HRAS).

    python -m experiments.train --config=configs/cora.py --workdir=runs/cora
    python -m experiments.train --config=configs/cora.py:learnt \
        --workdir=runs/cora_learnt

The task is two-digit addition with a scratchpad. The teacher forgets carries.
One time in five it writes another digit into the working than it goes on with:
then the answer is right, but does not follow from the working. The verifier
reads the answer alone. A second reward checks whether the answer follows from
the working. Each reward is normalised alone before they are added,

    A = α z(task) + β z(consistency),    z: within the group

which is MO-GRPO with one objective for each; `config.rewards.weights` are α and
β, and `config.rewards.schedules` changes them over the steps:

    --config.rewards.schedules="{'consistency': ((0, 0.0), (50, 1.0))}"

The argument is the source of the second reward: "rule" reads the working as it
is written; "noisy" is that rule, wrong about one completion in ten; "learnt" is
a reward model, trained on pairs of completions of which the rule prefers one;
"none" leaves this reward out. Or the argument is an algorithm, with the rule:
with :grpo both rewards are summed first. In each of them the rule watches:
`quadrants/inconsistent_right` is the share of completions that are right and do
not follow, `quadrants/inconsistent` the inconsistency rate.

Source: CORA, arXiv:2606.14691. Its weights are not known; both are 1 here. The
paper's task reward is accuracy and format: several rewards are normalised as
one by `total` (docs/rewards.md).
"""

from grpo_jax import algorithms
from grpo_jax.configs import add_steps
from grpo_jax.settings.config import phase_config

# Source of the second reward -> the functions, and their weights.
_FUNCTIONS = {
  "none": (("accuracy", "consistency"), (1.0, 0.0)),
  "rule": (("accuracy", "consistency"), (1.0, 1.0)),
  "noisy": (("accuracy", "consistency", "flipped"), (1.0, 0.0, 1.0)),
  "learnt": (("accuracy", "consistency", "reward_model"), (1.0, 0.0, 1.0)),
}


def get_config(by: str = "rule"):
  """Config of addition with two objectives.

  Args:
    by: Source of the verdict on what follows from the working: "rule", "noisy",
      "learnt" or "none"; or an algorithm in the place of MO-GRPO, for "rule".
  """
  algorithm = "mo_grpo"
  if by in algorithms.ALGORITHMS:
    algorithm, by = by, "rule"
  if by not in _FUNCTIONS:
    raise ValueError(
      f"configs/cora.py: no {by!r}; choose one of {', '.join(_FUNCTIONS)}, or"
      " an algorithm."
    )
  config = add_steps.get_config(algorithm)
  config.data.task_options.teacher_slip = 0.2
  config.rewards.functions, config.rewards.weights = _FUNCTIONS[by]
  config.rewards.consistent = "consistency"
  if by == "noisy":
    config.rewards.options = {
      "flipped": {"source": "consistency", "probability": 0.1}
    }
  if by == "learnt":
    config.phases = ("sft", "rm", "rl")
    config.rm = phase_config(
      "preference",
      steps=100,
      group_size=8,
      num_prompts=32,
      reward_weights=(0.0, 1.0, 0.0),
    )
    config.reward_model.optimizer.learning_rate = 3e-4
  return config
