"""An arm of `arms.py` as a config file, and the seeds of its sweep.

--config=experiments/staleness/config.py:tis-s16
"""

from experiments.staleness import arms

get_config = arms.get_config
sweep = arms.sweep
