"""Is one model for several domains better made of experts than all at once?

    python -m experiments.experts.run
    python -m experiments.experts.report

| module       | content                                                |
|--------------|--------------------------------------------------------|
| `arms.py`    | what is compared, and the budget that all have         |
| `config.py`  | an arm as a config file                                |
| `claims.py`  | what is claimed, and what numbers would confirm it     |
| `run.py`     | the command that trains and measures                   |
| `results.py` | what it leaves behind                                  |
| `report.py`  | the command that writes docs/experts.md and its figure |
"""
