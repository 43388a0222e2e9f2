"""An arm of `arms.py` as a config file, and the seeds of its sweep.

--config=experiments/rounding/config.py:int8-tis
"""

from experiments.rounding import arms

get_config = arms.get_config
sweep = arms.sweep
