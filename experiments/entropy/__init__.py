"""Experiment: rewards for entropy, and their effect on the problems solved.

    python -m experiments.entropy.run
    python -m experiments.entropy.report

| module       | content                                                |
|--------------|--------------------------------------------------------|
| `arms.py`    | the arms on countdown: eight ways to keep              |
|              | entropy, or to do without                              |
| `config.py`  | an arm as a config file                                |
| `claims.py`  | the claims, and the numbers that would confirm them    |
| `run.py`     | the command that trains                                |
| `results.py` | the record of an arm                                   |
| `page.py`    | the page, and `figure.py` its figure                   |
| `report.py`  | the command that writes docs/entropy.md and its figure |
"""
