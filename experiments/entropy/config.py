"""An arm of `arms.py` as a config file, and the seeds of its sweep.

--config=experiments/entropy/config.py:gtpo
"""

from experiments.entropy import arms

get_config = arms.get_config
sweep = arms.sweep
