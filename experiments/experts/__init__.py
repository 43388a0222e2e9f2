"""Experiment: one model for several domains, from experts or from all at once.

    python -m experiments.experts.run
    python -m experiments.experts.report

| module       | content                                                |
|--------------|--------------------------------------------------------|
| `arms.py`    | the arms, and their common budget                      |
| `config.py`  | an arm as a config file                                |
| `claims.py`  | the claims, and the numbers that would confirm them    |
| `run.py`     | the command that trains and measures                   |
| `results.py` | the record of an arm                                   |
| `report.py`  | the command that writes docs/experts.md and its figure |
"""
