"""Experiment: choosing the prompts to learn from, and ways to choose them.

    python -m experiments.curricula.run
    python -m experiments.curricula.report

| module       | content                                                  |
|--------------|----------------------------------------------------------|
| `arms.py`    | the arms on sums of one to four digits                   |
| `config.py`  | an arm as a config file                                  |
| `claims.py`  | the claims, and the numbers that would confirm them      |
| `run.py`     | the command that trains                                  |
| `results.py` | the record of an arm                                     |
| `page.py`    | the page, and `figure.py` its figure                     |
| `report.py`  | the command that writes docs/curricula.md and its figure |
"""
