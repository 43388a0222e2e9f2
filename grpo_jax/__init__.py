"""grpo_jax: GRPO, its descendants and PPO as one compiled JAX program."""

__version__ = "0.1.0"
