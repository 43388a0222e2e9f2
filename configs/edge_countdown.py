"""EDGE-GRPO on countdown: wrong completions are corrected while they are drawn.

    python -m experiments.train --config=configs/edge_countdown.py \
        --workdir=runs/edge

Three numbers and a target; the teacher draws the operators at random three
times in four. EDGE-GRPO makes advantages of confident completions larger, and
some completions that are wrong are given a hint (docs/correction.md). Settings,
here and in the paper:

| `rl.correction`  | here                         | paper                      |
|------------------|------------------------------|----------------------------|
| `p_cue`          | 0.2                          | 0.5                        |
| `p_answer`       | 0.05                         | 0.25                       |
| `p_reference`    | 0.05                         | 0.25                       |
| `cue`            | `=`                          | " Wait! Something is …"    |
| `sentence`       | `=<answer>{answer}</answer>` | " After verification, …"   |
| `train_injected` | False                        | True                       |

`correction/draft_accuracy` is the share of right drafts. It is the policy's own
success: the accuracy of a step counts corrected completions. This small policy
has little to say after a cue, so fewer hints are put in than in the paper; with
--config.rl.correction.p_cue=0 and so on there are none. Any algorithm of the
table: --config=configs/edge_countdown.py:grpo.

Source: "EDGE-GRPO", arXiv:2507.21848, and its code, ZhangXJ199/EDGE-GRPO.
"""

import ml_collections

from grpo_jax.configs import quickstart


def get_config(algorithm: str = "edge_grpo"):
  """Countdown with corrected completions, and any algorithm of the table."""
  config = quickstart.get_config(algorithm)
  config.data.name = "countdown"
  config.data.task_options = ml_collections.ConfigDict(
    {"num_numbers": 3, "teacher_error": 0.75, "last_answer": True}
  )
  config.model.width = 64
  config.model.mlp_width = 192
  config.sft.steps = 300
  config.rl.steps = 150
  config.sampling.max_new_tokens = 16  # Two answers, the cue and an end.

  correction = config.rl.correction
  correction.p_cue = 0.2
  correction.p_answer = 0.05
  correction.p_reference = 0.05
  correction.cue = "="
  correction.sentence = "=<answer>{answer}</answer>"
  correction.max_new_tokens = 8

  config.eval.every = 25
  config.checkpoint.every = 50
  config.required_accuracy = None
  return config
