"""An arm of `arms.py` as a config file, and the seeds of its sweep.

--config=experiments/experts/config.py:mixed
"""

from experiments.experts import arms

get_config = arms.get_config
sweep = arms.sweep
