"""Data: records of files, data sets and tasks, and the token ids of prompts.

A source gives records by their place, and an order is a function of seed and
place. So a stream is a function of (seed, position), and goes on exactly where
it was.
"""
