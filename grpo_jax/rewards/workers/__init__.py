"""Processes that run untrusted rewards and environments."""
