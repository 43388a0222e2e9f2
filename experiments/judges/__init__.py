"""What does a policy learn from a judge that is right, wrong, or has a hole?

    python -m experiments.judges.run
    python -m experiments.judges.report

| module       | content                                               |
|--------------|-------------------------------------------------------|
| `arms.py`    | the judges, and the policies that follow them         |
| `config.py`  | an arm as a config file                               |
| `claims.py`  | what is claimed, and what numbers would confirm it    |
| `run.py`     | the command that trains                               |
| `results.py` | what it leaves behind                                 |
| `page.py`    | the page as Markdown                                  |
| `report.py`  | the command that writes docs/judges.md                |
"""
