"""An arm of `arms.py` as a config file, and the seeds of its sweep.

--config=experiments/lengths/config.py:shortest-8of16
"""

from experiments.lengths import arms

get_config = arms.get_config
sweep = arms.sweep
