"""The program `grpo-from-trl` of a checkout."""

from grpo_jax.cli import from_trl

if __name__ == "__main__":
  from_trl.run()
