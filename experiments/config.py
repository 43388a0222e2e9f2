"""The program `grpo-config` of a checkout."""

from grpo_jax.cli import config

if __name__ == "__main__":
  config.run()
