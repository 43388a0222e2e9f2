"""The program `grpo-evaluate` of a checkout."""

from grpo_jax.cli import evaluate

if __name__ == "__main__":
  evaluate.run()
