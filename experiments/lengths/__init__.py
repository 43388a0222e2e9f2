"""Which algorithms make completions longer that need not be, and which not?

    python -m experiments.lengths.run
    python -m experiments.lengths.report

| module       | content                                                 |
|--------------|---------------------------------------------------------|
| `arms.py`    | what is compared on the task of sums with filler        |
| `config.py`  | an arm as a config file                                 |
| `claims.py`  | what is claimed, and what numbers would confirm it      |
| `run.py`     | the command that trains                                 |
| `results.py` | what it leaves behind, and the excess length reduction  |
| `figure.py`  | lengths over steps, and accuracy over length            |
| `page.py`    | the text of docs/lengths.md                             |
| `report.py`  | the command that writes page and figure                 |
"""
