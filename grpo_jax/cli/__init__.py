"""Programs that an installation has: `grpo-train` is `cli.train`, and so on.

    grpo-train --config=quickstart --workdir=runs/quickstart

A module is a program: flags, `main`, and `run`, which parses the flags and
calls `main`. In a checkout, `python -m experiments.train` is the same program.
"""
