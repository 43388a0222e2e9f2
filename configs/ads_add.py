"""ADS: clusters of like prompts, and windows that move to harder ones.

    python -m experiments.train --config=configs/ads_add.py:base \
        --workdir=runs/ads-base
    python -m experiments.embed --workdir=runs/ads-base --num_prompts=512 \
        --num_clusters=8 --out=runs/ads-base/clusters.npz
    python -m experiments.train --config=configs/ads_add.py --workdir=runs/ads

The first command imitates a teacher. The second clusters the prompts by the
hidden states of that policy, and orders each cluster by the negative log-prob
of the solutions. The third learns from four clusters in each step, and from
eight prompts of each (docs/schedules.md). Sums of one to four digits from a
pool of 512, as in `configs/curriculum.py`.
"""

from grpo_jax.configs import curriculum

BASE = "runs/ads-base"


def get_config(part: str = "grpo"):
  """Additions of mixed difficulty; `part` is "base", or an algorithm."""
  is_base = part == "base"
  config = curriculum.get_config("grpo" if is_base else part)
  config.rl.schedule.name = "ads"
  config.rl.schedule.clusters = f"{BASE}/clusters.npz"
  config.rl.schedule.window = 8
  config.rl.num_prompts = config.rl.schedule.drawn_clusters * 8
  config.phases = ("sft",) if is_base else ("rl",)
  if not is_base:
    config.start_workdir = BASE
  return config
