"""Experiment: policies whose judge is right, is wrong or has a hole.

    python -m experiments.judges.run
    python -m experiments.judges.report

| module       | content                                             |
|--------------|-----------------------------------------------------|
| `arms.py`    | the judges, and the policies that follow them       |
| `config.py`  | an arm as a config file                             |
| `claims.py`  | the claims, and the numbers that would confirm them |
| `run.py`     | the command that trains                             |
| `results.py` | the record of an arm                                |
| `page.py`    | the page as Markdown                                |
| `report.py`  | the command that writes docs/judges.md              |
"""
