"""Experiment: training with a verifier that errs in up to four of ten answers.

    python -m experiments.flips.run
    python -m experiments.flips.report

| module       | content                                                 |
|--------------|---------------------------------------------------------|
| `arms.py`    | the arms: four algorithms, five probabilities of errors |
| `config.py`  | an arm as a config file                                 |
| `claims.py`  | the claims, and the numbers that would confirm them     |
| `run.py`     | the command that trains                                 |
| `results.py` | the record of an arm                                    |
| `page.py`    | the page, and `figure.py` its figure                    |
| `report.py`  | the command that writes docs/flips.md and its figure    |
"""
