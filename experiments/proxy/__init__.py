"""Experiment: overoptimization of a learned reward, and two remedies for it.

    python -m experiments.proxy.run
    python -m experiments.proxy.report

| module       | content                                              |
|--------------|------------------------------------------------------|
| `arms.py`    | the arms: KL, old completions, a second learning     |
| `config.py`  | an arm as a config file                              |
| `claims.py`  | the claims, and the numbers that would confirm them  |
| `run.py`     | the command that trains                              |
| `results.py` | the record of an arm                                 |
| `page.py`    | the page, and `figure.py` its figure                 |
| `report.py`  | the command that writes docs/proxy.md and its figure |
"""
