"""Two-digit addition with a scratchpad, and credit for each step of it.

    python -m experiments.train --config=configs/rredcot_add.py \
        --workdir=runs/rredcot_add

The policy itself values a step: an answer is forced after each `;`, and the
credit of a step is the gain in the probability of the right answer. A verifier
of steps is not used. The metrics `forced_answers/…` have the cost of it, and
the expected reward before the first step; docs/rredcot.md describes the results
and the limits. To compare: --config=configs/rredcot_add.py:grpo, or :grpo_ps,
which uses one.
"""

from grpo_jax.configs import add_steps


def get_config(algorithm: str = "rredcot"):
  """Addition with a scratchpad, with any algorithm of the table."""
  return add_steps.get_config(algorithm)
