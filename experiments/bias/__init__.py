"""Experiment: the bias from one flipped example, and guards against it.

    python -m experiments.bias.run
    python -m experiments.bias.report

| module       | content                                             |
|--------------|-----------------------------------------------------|
| `arms.py`    | the arms: data, residual bias, KL and guards        |
| `config.py`  | an arm as a config file                             |
| `claims.py`  | the claims, and the numbers that would confirm them |
| `run.py`     | the command that trains                             |
| `results.py` | the record of an arm                                |
| `report.py`  | the command that writes docs/bias.md and its figure |
"""
