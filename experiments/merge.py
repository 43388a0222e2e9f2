"""The program `grpo-merge` of a checkout."""

from grpo_jax.cli import merge

if __name__ == "__main__":
  merge.run()
