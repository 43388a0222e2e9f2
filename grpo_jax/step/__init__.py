"""The compiled training step: models, advantages, exact gradients, updates."""
