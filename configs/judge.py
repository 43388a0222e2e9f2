"""Sorting letters by the verdict of a model, which may be wrong.

    python -m experiments.train --config=configs/judge.py:truth \
        --workdir=runs/judges/truth
    python -m experiments.train --config=configs/judge.py:by-truth \
        --workdir=runs/by_truth

The first command trains a judge, on answers to problems of the task `sort` and
on a teacher's verdicts. The second one trains a policy to sort, and that judge
is its only reward; a verifier logs the share of right answers. The teachers:
"truth"; "reverse" takes descending letters for sorted; "marks" is right, but
for answers that end with `#`, which are all fine for it. In "itself" the policy
learns both, sorting and judging, and is then its own judge.

The policy starts from a teacher that sorts the wrong way round three times out
of four, and ends one answer of twenty with `#`. docs/judges.md has the results.
"""

from grpo_jax import algorithms
from grpo_jax.settings import config as config_lib
from grpo_jax.tasks import verdict

RUBRIC = "{prompt}{completion}?"
SORT = {
  "min_len": 5,
  "max_len": 5,
  "num_letters": 8,
  "teacher_error": 0.75,
  "teacher_marks": 0.05,
  "tags": False,
}
JUDGING = {"min_len": 5, "max_len": 5, "num_letters": 8}
ITSELF = "itself"


def get_config(which: str = "by-truth"):
  """A judge, or a policy that is judged.

  Args:
    which: A belief of the task `verdict`, for its judge; "by-" and a belief,
      for the policy of that judge; "by-verifier", for the policy of the truth
      itself; or "itself". Or an algorithm, in the place of GRPO, for
      "by-truth".
  """
  algorithm = "grpo"
  if which in algorithms.ALGORITHMS:
    algorithm, which = which, "by-truth"
  by = which.removeprefix("by-")
  known = verdict.BELIEFS if by == which else (*verdict.BELIEFS, "verifier")
  if by not in known and which != ITSELF:
    raise ValueError(
      f"there is no {which!r}; choose one of"
      f" {', '.join(verdict.BELIEFS)}, by-verifier, {ITSELF}, or by- and one of"
      " the first."
    )
  config = config_lib.default_config(algorithm)
  config.model.width = 64
  config.model.num_layers = 2
  config.model.num_heads = 4
  config.model.num_kv_heads = 2
  config.model.mlp_width = 192
  config.sft.num_prompts = 128
  config.sft.optimizer.learning_rate = 2e-3
  config.sft.optimizer.schedule = "cosine"
  config.sft.optimizer.warmup_steps = 20
  config.eval.num_prompts = 256
  config.eval.batch_size = 256
  if by == which and which != ITSELF:
    config.phases = ("sft",)
    config.data.name = "verdict"
    config.data.task_options = {**JUDGING, "belief": which}
    config.sft.steps = 1500
    return config

  config.sft.steps = 300
  config.rl.steps = 150
  config.rl.group_size = algorithms.group_size(algorithm, 16)
  config.rl.num_prompts = 256 // config.rl.group_size
  config.rl.optimizer.learning_rate = 3e-4
  config.rl.optimizer.warmup_steps = 10
  config.algorithm.kl_coef = 0.0
  config.eval.every = 25
  config.data.name = "sort"
  config.data.task_options = SORT
  if by == "verifier":
    return config
  config.rewards.functions = ("accuracy", "judge")
  config.rewards.weights = (0.0, 1.0)
  config.rewards.correct = "accuracy"
  config.judge.rubric = RUBRIC
  config.judge.verdicts = {"y": 1.0, "n": 0.0}
  config.judge.max_new_tokens = 2
  if which != ITSELF:
    config.judge.model = f"runs/judges/{by}"
    return config
  config.data.source = "mixture"
  config.data.mixture = (
    {"name": "sort", "task_options": SORT},
    {"name": "verdict", "task_options": JUDGING, "weight": 4.0},
  )
  config.sft.steps = 1800
  config.rl.domains = ("sort",)
  return config
