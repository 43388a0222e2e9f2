"""The compiled step: models, advantages, exact gradients, updates."""
