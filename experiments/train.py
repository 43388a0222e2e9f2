"""The program `grpo-train` of a checkout."""

from grpo_jax.cli import train

if __name__ == "__main__":
  train.run()
