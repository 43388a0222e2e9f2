"""What do rollouts of rounded kernels cost, and does a correction pay?

    python -m experiments.rounding.run
    python -m experiments.rounding.report

| module       | content                                                 |
|--------------|---------------------------------------------------------|
| `arms.py`    | what is compared on brackets: what the kernels of the   |
|              | sampler are rounded to, and what is done about it       |
| `config.py`  | an arm as a config file                                 |
| `claims.py`  | what is claimed, and what numbers would confirm it      |
| `run.py`     | the command that trains                                 |
| `results.py` | what it leaves behind                                   |
| `page.py`    | the page, and `figure.py` its figure                    |
| `report.py`  | the command that writes docs/rounding.md and its figure |
"""
