"""Experiment: the gain of each part of DAPO, and the cost of dynamic sampling.

    python -m experiments.ladder.run
    python -m experiments.ladder.report

| module       | content                                               |
|--------------|-------------------------------------------------------|
| `arms.py`    | the arms: the rungs, and ways to fill a batch         |
| `config.py`  | an arm as a config file                               |
| `claims.py`  | the claims, and the numbers that would confirm them   |
| `run.py`     | the command that trains                               |
| `results.py` | the record of an arm                                  |
| `page.py`    | the page, and `figure.py` its figure                  |
| `report.py`  | the command that writes docs/ladder.md and its figure |
"""
