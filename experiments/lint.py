"""The program `grpo-lint` of a checkout."""

from grpo_jax.cli import lint

if __name__ == "__main__":
  lint.run()
