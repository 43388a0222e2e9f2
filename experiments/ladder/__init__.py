"""What does each part of DAPO add, and what does dynamic sampling cost?

    python -m experiments.ladder.run
    python -m experiments.ladder.report

| module       | content                                                 |
|--------------|---------------------------------------------------------|
| `arms.py`    | what is compared: the rungs, and ways to fill a batch   |
| `config.py`  | an arm as a config file                                 |
| `claims.py`  | what is claimed, and what numbers would confirm it      |
| `run.py`     | the command that trains                                 |
| `results.py` | what it leaves behind                                   |
| `page.py`    | the page, and `figure.py` its figure                    |
| `report.py`  | the command that writes docs/ladder.md and its figure   |
"""
