"""Sweeps: runs of one config that differ in settings, their start and results.

| file            | holds                                                |
|-----------------|------------------------------------------------------|
| `cells.py`      | the cells of a sweep, and the files in its folder    |
| `run.py`        | the command that runs or searches                    |
| `pool.py`       | a few processes at a time                            |
| `groups.py`     | cells that differ in the seed alone                  |
| `statistics.py` | means over seeds, and tests of claims by differences |
| `collect.py`    | the command that writes tables and a figure          |
| `pages.py`      | lines of Markdown                                    |
| `tables.py`     | tables as Markdown, CSV and LaTeX                    |
| `figures.py`    | curves and bars over seeds                           |
"""
