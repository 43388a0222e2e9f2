"""A policy behind OpenAI's interface."""
