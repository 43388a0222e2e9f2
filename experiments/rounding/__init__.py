"""Experiment: rollouts with rounded kernels, and corrections for the rounding.

    python -m experiments.rounding.run
    python -m experiments.rounding.report

| module       | content                                                 |
|--------------|---------------------------------------------------------|
| `arms.py`    | the arms on brackets: how the kernels of the sampler    |
|              | are rounded, and the correction for it                  |
| `config.py`  | an arm as a config file                                 |
| `claims.py`  | the claims, and the numbers that would confirm them     |
| `run.py`     | the command that trains                                 |
| `results.py` | the record of an arm                                    |
| `page.py`    | the page, and `figure.py` its figure                    |
| `report.py`  | the command that writes docs/rounding.md and its figure |
"""
