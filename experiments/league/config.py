"""An arm of `arms.py` as a config file, and the cells of its sweep.

--config=experiments/league/config.py:grpo-sort
"""

from experiments.league import arms

get_config = arms.get_config
sweep = arms.sweep
