"""Experiment: every algorithm that is trained by rewards, on three tasks.

    python -m experiments.league.run
    python -m experiments.league.report

| module        | content                                                  |
|---------------|----------------------------------------------------------|
| `arms.py`     | the arms: algorithms, tasks, sizes                       |
| `problems.py` | the task in words                                        |
| `config.py`   | an arm as a config file                                  |
| `claims.py`   | the rules, and the numbers that would confirm each claim |
| `run.py`      | the command that trains                                  |
| `results.py`  | the record of an arm, and the choice of a learning rate  |
| `page.py`     | the page, and `figure.py` its figure                     |
| `report.py`   | the command that writes docs/league.md and its figure    |
"""
