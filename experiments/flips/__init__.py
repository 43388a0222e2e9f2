"""What is left of learning if the verifier errs in up to four of ten answers?

    python -m experiments.flips.run
    python -m experiments.flips.report

| module       | content                                                 |
|--------------|---------------------------------------------------------|
| `arms.py`    | what is compared: four algorithms, five probabilities   |
| `config.py`  | an arm as a config file                                 |
| `claims.py`  | what is claimed, and what numbers would confirm it      |
| `run.py`     | the command that trains                                 |
| `results.py` | what it leaves behind                                   |
| `page.py`    | the page, and `figure.py` its figure                    |
| `report.py`  | the command that writes docs/flips.md and its figure    |
"""
