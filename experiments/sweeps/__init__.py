"""A config many times: what differs, who runs it, and what came out.

| file            | holds                                                   |
|-----------------|---------------------------------------------------------|
| `cells.py`      | what a sweep consists of, and what is in its folder     |
| `run.py`        | the command that runs or searches                       |
| `pool.py`       | a few processes at a time                               |
| `groups.py`     | cells that differ in the seed alone                     |
| `statistics.py` | means over seeds, and what differences say about claims |
| `collect.py`    | the command that writes tables and a figure             |

An experiment compares arms, each of them a sweep over seeds:

| file            | holds                                                   |
|-----------------|---------------------------------------------------------|
| `arms.py`       | their sizes, runs and numbers                           |
| `commands.py`   | the commands that train them and write a page           |
| `pages.py`      | what pages have in common                               |
| `figures.py`    | what figures have in common                             |
"""
