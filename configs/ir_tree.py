"""Rules in words become expressions: imitation first, then distances of trees.

    python -m experiments.train --config=configs/ir_tree.py \
        --workdir=runs/ir_tree

P4IR's recipe on the task `ir_tree`. The teacher has 200 rules and takes one
comparison in ten for the other. Then GRPO completes a thousand prompts, and is
rewarded by

    R = 0.5 tree + 0.3 token + 0.2 parses

of which the first two are 1 minus an edit distance from the right expression,
in units of the longer one. Half of the held-out rules are of templates that are
not trained on: `eval/domain/unseen/accuracy`. Weights in this order, with 0 for
accuracy, which watches: --config.rewards.weights="(0.0, 0.8, 0.0, 0.2)".

The run takes a few minutes on 2 CPU cores.

Programs and expressions of your own records have the same rewards as
`tree_similarity`, `token_similarity` and `parses` (docs/rewards.md).

Source: P4IR, arXiv:2606.22402; the formula of its reward is not known, and this
one is ours.
"""

import ml_collections

from grpo_jax.configs import quickstart


def get_config(algorithm: str = "grpo"):
  """Rules as expressions, with any algorithm of the table."""
  config = quickstart.get_config(algorithm)
  config.data.name = "ir_tree"
  config.data.task_options = ml_collections.ConfigDict(
    {"teacher_error": 0.1, "num_lessons": 200}
  )
  config.rewards.functions = ("accuracy", "tree", "token", "parses")
  config.rewards.weights = (0.0, 0.5, 0.3, 0.2)
  config.sft.steps = 150
  config.sft.num_prompts = 64
  config.rl.steps = 100
  config.rl.group_size = min(config.rl.group_size, 8)
  config.rl.num_prompts = 80 // config.rl.group_size
  config.eval.num_prompts = 256
  config.eval.batch_size = 256
  config.eval.every = 50
  config.eval.temperature = 1.0  # Greedily the teacher's slips do not show.
  config.checkpoint.every = 50
  config.required_accuracy = None
  return config
