"""Experiment: credits of segments that locate an error planted into a working.

    python -m experiments.planted_errors.run --root=runs/planted_errors \
        --results=benchmarks/planted_errors
    python -m experiments.planted_errors.report \
        --results=benchmarks/planted_errors --out=docs

| module       | content                                                 |
|--------------|---------------------------------------------------------|
| `arms.py`    | the arms and their configs; `config.py` as a file       |
| `task.py`    | addition with a teacher who answers early               |
| `errors.py`  | workings with errors, and the credits of their segments |
| `values.py`  | Monte Carlo values of each prefix                       |
| `claims.py`  | the rules, and the numbers that decide them             |
| `results.py` | the records of arms                                     |
| `run.py`     | the command that trains and measures                    |
| `report.py`  | the command that writes page and figure                 |
"""
