"""Experiment: one loud objective beside others, on a bandit and two tasks.

    python -m experiments.objectives.run
    python -m experiments.objectives.report

| module       | content                                             |
|--------------|-----------------------------------------------------|
| `bandit.py`  | ten arms with two rewards, one of them loud         |
| `arms.py`    | the arms on the tasks `multi` and `language`        |
| `config.py`  | an arm as a config file                             |
| `claims.py`  | the claims, and the numbers that would confirm them |
| `run.py`     | the command that trains                             |
| `results.py` | the record of an arm                                |
| `figure.py`  | regrets and rewards over the steps                  |
| `page.py`    | the text of docs/objectives.md                      |
| `report.py`  | the command that writes page and figure             |
"""
