"""Every algorithm that is trained by rewards, on three tasks.

    python -m experiments.league.run
    python -m experiments.league.report

| module        | content                                                |
|---------------|--------------------------------------------------------|
| `arms.py`     | what is compared: algorithms, tasks, sizes             |
| `problems.py` | the task in words                                      |
| `config.py`   | an arm as a config file                                |
| `claims.py`   | the rules, and what numbers would confirm each claim   |
| `run.py`      | the command that trains                                |
| `results.py`  | what it leaves behind, and how a learning rate is chosen |
| `page.py`     | the page, and `figure.py` its figure                   |
| `report.py`   | the command that writes docs/league.md and its figure  |
"""
