"""Experiments whose rules were fixed before their runs: the pages of Science.

    python -m experiments.science run NAME
    python -m experiments.science report NAME

`NAME.py` is an experiment. The docstring of the module has the rules. The
commands read from the module:

| name                   | is                                                  |
|------------------------|-----------------------------------------------------|
| `ALL`                  | its arms and their sizes (`arms.Arms`)              |
| `get_config`, `sweep`  | those of a config file: `NAME.py:ARM`               |
| `follows_on`           | (arm, folder of runs) -> flags for its start        |
| `of_run`               | (lines of a run's log) -> the numbers that are kept |
| `collected`            | in its place: (folder, size) -> those of all runs   |
| `run`                  | (job, arm) -> status, if a sweep is not all         |
| `CHOSEN_FROM`          | the arms of --arms, if not all                      |
| `needed`               | (chosen arms) -> those that are run                 |
| `Results`              | (folder) -> the arms that have ended, their scores  |
| `CLAIMS`               | the claims, with the rules as code (`claims.py`)    |
| `CONFIRMED`, `REFUTED` | the verdicts for which the answer is written        |
| `numbers`              | (results) -> tables and numbers of the page         |
| `plot`                 | (path, results) draws the figure; may be missing    |
| `PAGE`, `RECORDS`      | name of the page and folder of the numbers, if they |
|                        | are not NAME and benchmarks/NAME                    |

`NAME.md` is the page, with names in the place of numbers (`pages.py`). A file
`NAME_….py` is a program of its own that NAME.py needs.
"""
