"""Two-digit addition with a scratchpad, and credit for each step of it.

    python -m experiments.train --config=configs/rredcot_add.py \
        --workdir=runs/rredcot_add

The policy itself says what a step was worth: an answer is forced after each
`;`, and the credit of a step is by how much it made the right one likelier. No
verifier of steps is asked. The metrics `forced_answers/…` have the cost of it,
and what is expected before the first step; docs/rredcot.md says what this finds
and what it cannot. To compare:
--config=configs/rredcot_add.py:grpo, or :grpo_ps, which asks one.
"""

from configs import add_steps


def get_config(algorithm: str = "rredcot"):
  """Addition with a scratchpad, with any algorithm of the table."""
  return add_steps.get_config(algorithm)
