"""Do credits of segments find an error that was planted into a working?

    python -m experiments.planted_errors.run --root=runs/planted_errors \
        --results=benchmarks/planted_errors
    python -m experiments.planted_errors.report \
        --results=benchmarks/planted_errors --out=docs

| module       | content                                                 |
|--------------|---------------------------------------------------------|
| `arms.py`    | the arms and their configs; `config.py` as a file       |
| `task.py`    | addition with a teacher who answers early               |
| `errors.py`  | workings with errors, and the credits of their segments |
| `values.py`  | what completions from each prefix come to               |
| `claims.py`  | the rules, and what decides them                        |
| `results.py` | what arms leave behind                                  |
| `run.py`     | the command that trains and measures                    |
| `report.py`  | the command that writes page and figure                 |
"""
