"""The program `grpo-tinker` of a checkout."""

from grpo_jax.cli import tinker

if __name__ == "__main__":
  tinker.run()
