"""grpo_jax: GRPO, its descendants and PPO in JAX."""

__version__ = "0.1.0"
