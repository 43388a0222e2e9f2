"""The program `grpo-check-algorithm` of a checkout."""

from grpo_jax.cli import check_algorithm

if __name__ == "__main__":
  check_algorithm.run()
