"""An arm of `arms.py` as a config file, and the seeds of its sweep.

--config=experiments/planted_errors/config.py:mix
"""

from experiments.planted_errors import arms

get_config = arms.get_config
sweep = arms.sweep
