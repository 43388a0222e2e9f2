"""Experiment: the algorithms that lengthen completions without need.

    python -m experiments.lengths.run
    python -m experiments.lengths.report

| module       | content                                               |
|--------------|-------------------------------------------------------|
| `arms.py`    | the arms on the task of sums with filler              |
| `config.py`  | an arm as a config file                               |
| `claims.py`  | the claims, and the numbers that would confirm them   |
| `run.py`     | the command that trains                               |
| `results.py` | the record of an arm, and the excess length reduction |
| `figure.py`  | lengths over steps, and accuracy over length          |
| `page.py`    | the text of docs/lengths.md                           |
| `report.py`  | the command that writes page and figure               |
"""
