"""An arm of `arms.py` as a config file, and the seeds of its sweep.

--config=experiments/ladder/config.py:dapo
"""

from experiments.ladder import arms

get_config = arms.get_config
sweep = arms.sweep
