"""What do completions of earlier weights cost, and what corrects for it?

    python -m experiments.staleness.run
    python -m experiments.staleness.report

| module       | content                                                  |
|--------------|----------------------------------------------------------|
| `arms.py`    | what is compared on brackets: how many updates old       |
|              | completions are, and what is done about it               |
| `config.py`  | an arm as a config file                                  |
| `claims.py`  | what is claimed, and what numbers would confirm it       |
| `run.py`     | the command that trains                                  |
| `results.py` | what it leaves behind                                    |
| `page.py`    | the page, and `figure.py` its figure                     |
| `report.py`  | the command that writes docs/staleness.md and its figure |
"""
