"""SPO: one completion of each prompt, against a running value of the prompt.

    python -m experiments.train --config=configs/spo_add.py --workdir=runs/spo

The task is sums of one to four digits from a pool of 512, as in
`configs/curriculum.py`. A step has the same number of completions, 256, each of
another prompt. The schedule counts right and wrong completions of each prompt,
and forgets them by the distance that the policy has moved since. The algorithm
takes the share of right ones for the baseline (docs/schedules.md). Counts may
begin with completions that were drawn before:

    python -m experiments.generate --workdir=runs/base --prompts=train \
        --num_prompts=512 --num_samples=8 --out=runs/samples.jsonl

and --config.rl.schedule.samples=runs/samples.jsonl.
"""

from grpo_jax.configs import curriculum


def get_config(algorithm: str = "spo"):
  """Additions of mixed difficulty, and groups of one."""
  config = curriculum.get_config(algorithm)
  config.rl.schedule.name = "spo"
  config.rl.num_prompts = 256
  config.rl.group_size = 1
  return config
