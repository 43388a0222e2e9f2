"""N-GRPO on countdown: completions are drawn with blended inputs.

    python -m experiments.train --config=configs/ngrpo.py --workdir=runs/ngrpo

Three numbers and a target; about one in fifteen expressions is right, and most
problems have several right ones. One token in ten is read as a blend of the
likeliest token and its neighbour in the embedding table; docs/mixing.md
describes this and its limits. Settings, here and in the paper:

| setting                   | here     | paper                                 |
|---------------------------|----------|---------------------------------------|
| `sampling.mix_rate`       | 0.1      | 0.1                                   |
| `sampling.mix_top_k`      | 2        | 2: the anchor and one neighbour       |
| `sampling.mix_anchor`     | argmax   | argmax of the step                    |
| `algorithm.kl_coef`       | 0.01     | 0.01, kind k3; its baseline has 0.001 |
| `rl.group_size`           | 16       | 4                                     |
| `rl.optimizer`            | 3e-4     | 5e-7; its baseline has 1e-6           |

The paper compares with a baseline of another learning rate and another KL. With
`--config.sampling.mix_rate=0`, the baseline of this file differs in nothing
else. Any algorithm of the table: --config=configs/ngrpo.py:dapo.

Source: "N-GRPO", arXiv:2606.10768, and its code, ZJUSCL/N-GRPO.
"""

import ml_collections

from grpo_jax.configs import quickstart


def get_config(algorithm: str = "grpo"):
  """Countdown with mixed inputs, and any algorithm of the table."""
  config = quickstart.get_config(algorithm)
  config.data.name = "countdown"
  config.data.task_options = ml_collections.ConfigDict(
    {"num_numbers": 3, "teacher_error": 0.5}
  )
  config.model.width = 64
  config.model.mlp_width = 192
  config.sft.steps = 400
  config.rl.steps = 100
  config.algorithm.kl_coef = 0.01

  config.sampling.mix_rate = 0.1

  config.eval.every = 25
  config.checkpoint.every = 50
  config.required_accuracy = None
  return config
