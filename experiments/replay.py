"""The program `grpo-replay` of a checkout."""

from grpo_jax.cli import replay

if __name__ == "__main__":
  replay.run()
