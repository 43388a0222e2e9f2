"""On-policy distillation: a student learns from another run's policy.

    make quickstart
    python -m experiments.train --config=configs/distill.py \
        --workdir=runs/distill

The teacher is the policy of `runs/quickstart`, which sorts. The student is
warm-started by the sloppy teacher of the quickstart, which sorts the wrong way
round three times out of four. The student samples. In the place of a verifier
it learns from the teacher's distribution over the vocabulary (opd_full), over
its likeliest tokens (opd_topk) or at the sampled tokens (opd_token). The
rewards of verifiers are only watched. Expected: accuracy from near 0 to near
the teacher's. Another teacher, a run or a checkpoint:
--config.rl.reference_workdirs=runs/OTHER. Several teachers, and more about
them: docs/distillation.md. Time: one to two minutes on 2 CPU cores.
"""

from grpo_jax.configs import quickstart


def get_config(algorithm: str = "opd_full"):
  """Config of the quickstart's student with a teacher instead of a verifier."""
  config = quickstart.get_config(algorithm)
  config.seed = 1  # Not the initialisation of the teacher.
  config.rl.reference_workdirs = ("runs/quickstart",)
  config.rl.steps = 100
  config.required_accuracy = None
  return config
