"""Does entropy come back, and do more problems get solved, if it is rewarded?

    python -m experiments.entropy.run
    python -m experiments.entropy.report

| module       | content                                                 |
|--------------|---------------------------------------------------------|
| `arms.py`    | what is compared on countdown: eight ways to keep       |
|              | entropy, or to do without                               |
| `config.py`  | an arm as a config file                                 |
| `claims.py`  | what is claimed, and what numbers would confirm it      |
| `run.py`     | the command that trains                                 |
| `results.py` | what it leaves behind                                   |
| `page.py`    | the page, and `figure.py` its figure                    |
| `report.py`  | the command that writes docs/entropy.md and its figure  |
"""
