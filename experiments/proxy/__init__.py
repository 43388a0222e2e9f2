"""Is a learned reward followed too far, and do KL and old completions help?

    python -m experiments.proxy.run
    python -m experiments.proxy.report

| module       | content                                                  |
|--------------|----------------------------------------------------------|
| `arms.py`    | what is compared: KL, old completions, a second learning |
| `config.py`  | an arm as a config file                                  |
| `claims.py`  | what is claimed, and what numbers would confirm it       |
| `run.py`     | the command that trains                                  |
| `results.py` | what it leaves behind                                    |
| `page.py`    | the page, and `figure.py` its figure                     |
| `report.py`  | the command that writes docs/proxy.md and its figure     |
"""
