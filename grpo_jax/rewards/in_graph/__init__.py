"""Rewards of text as arrays, inside the compiled step."""
