"""Experiment: completions of earlier weights, and corrections for their age.

    python -m experiments.staleness.run
    python -m experiments.staleness.report

| module       | content                                                  |
|--------------|----------------------------------------------------------|
| `arms.py`    | the arms on brackets: the age of completions in          |
|              | updates, and the correction for it                       |
| `config.py`  | an arm as a config file                                  |
| `claims.py`  | the claims, and the numbers that would confirm them      |
| `run.py`     | the command that trains                                  |
| `results.py` | the record of an arm                                     |
| `page.py`    | the page, and `figure.py` its figure                     |
| `report.py`  | the command that writes docs/staleness.md and its figure |
"""
