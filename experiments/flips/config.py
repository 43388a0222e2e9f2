"""An arm of `arms.py` as a config file, and the seeds of its sweep.

--config=experiments/flips/config.py:grpo-40
"""

from experiments.flips import arms

get_config = arms.get_config
sweep = arms.sweep
