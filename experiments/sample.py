"""The program `grpo-sample` of a checkout."""

from grpo_jax.cli import sample

if __name__ == "__main__":
  sample.run()
