"""Rewards: functions of answers, and what runs them.

`math_accuracy`, `code`, `form`, `trees`, `vision` and `gym` score completions,
`registry` finds the functions that a config names, and `derived` makes rewards
of other rewards. Files of this folder are plain Python: they score without JAX.

A verifier of a synthetic task is a function of arrays (`tasks/`) with a NumPy
twin that tests compare it to. Text is read in the program (`in_graph/`) or on
the host (`workers/`). Programs of a policy run in a box (`sandbox/`), and what
talks to a policy is in `agents/`.
"""
