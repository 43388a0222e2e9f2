"""The program `grpo-serve` of a checkout."""

from grpo_jax.cli import serve

if __name__ == "__main__":
  serve.run()
