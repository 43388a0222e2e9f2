"""The program `grpo-generate` of a checkout."""

from grpo_jax.cli import generate

if __name__ == "__main__":
  generate.run()
