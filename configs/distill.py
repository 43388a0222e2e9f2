"""On-policy distillation: a student learns from another run's policy.

    make quickstart
    python -m experiments.train --config=configs/distill.py \
        --workdir=runs/distill

The teacher is the policy of `runs/quickstart`, which sorts; the student is
one warm-started by the sloppy teacher of the quickstart, which sorts the wrong
way round three times out of four. It samples, and the teacher's distribution
over the vocabulary (opd_full), over its likeliest tokens (opd_topk) or at the
sampled tokens (opd_token) takes the place of a verifier, whose rewards are only
watched. Expected: accuracy from near 0 to near the teacher's. Another teacher,
a run or a checkpoint: --config.rl.reference_workdirs=runs/OTHER; several, and
what else there is to learn of them: docs/distillation.md. Time: one to two
minutes on 2 CPU cores.
"""

from configs import quickstart


def get_config(algorithm: str = "opd_full"):
  """The quickstart's student with a teacher instead of a verifier."""
  config = quickstart.get_config(algorithm)
  config.seed = 1  # Not the initialisation of the teacher.
  config.rl.reference_workdirs = ("runs/quickstart",)
  config.rl.steps = 100
  config.required_accuracy = None
  return config
