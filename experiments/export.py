"""The program `grpo-export` of a checkout."""

from grpo_jax.cli import export

if __name__ == "__main__":
  export.run()
