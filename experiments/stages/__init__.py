"""Does a loud objective decide alone? A bandit, and two small tasks.

    python -m experiments.objectives.run
    python -m experiments.objectives.report

| module       | content                                                   |
|--------------|-----------------------------------------------------------|
| `bandit.py`  | ten arms with two rewards, one of them loud               |
| `arms.py`    | what is compared on the tasks `multi` and `language`      |
| `config.py`  | an arm as a config file                                   |
| `claims.py`  | what is claimed, and what numbers would confirm it        |
| `run.py`     | the command that trains                                   |
| `results.py` | what it leaves behind                                     |
| `figure.py`  | regrets and rewards over the steps                        |
| `page.py`    | the text of docs/objectives.md                            |
| `report.py`  | the command that writes page and figure                   |
"""
