"""Does it help to choose which prompts are learned from, and by what?

    python -m experiments.curricula.run
    python -m experiments.curricula.report

| module       | content                                                 |
|--------------|---------------------------------------------------------|
| `arms.py`    | what is compared on sums of one to four digits          |
| `config.py`  | an arm as a config file                                 |
| `claims.py`  | what is claimed, and what numbers would confirm it      |
| `run.py`     | the command that trains                                 |
| `results.py` | what it leaves behind                                   |
| `page.py`    | the page, and `figure.py` its figure                    |
| `report.py`  | the command that writes docs/curricula.md and its figure |
"""
