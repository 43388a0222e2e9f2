"""Measures a policy, and uses it: held-out scores, generation, merging."""
