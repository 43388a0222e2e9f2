"""Measures a policy, and uses it: held-out scores, generation, merging.

Whoever looks at rows of a step fetches them from what the step returns, so no
setting of the log is part of a program. On steps that are traced, a second
program (`step/after.py`) computes the log-probs of the rows after the update,
at the shapes of the update's own passes. So a policy that has not moved gives a
ratio of exactly 1.
"""
