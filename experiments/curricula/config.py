"""An arm of `arms.py` as a config file, and the seeds of its sweep.

--config=experiments/curricula/config.py:frontier
"""

from experiments.curricula import arms

get_config = arms.get_config
sweep = arms.sweep
