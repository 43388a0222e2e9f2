"""An arm of `arms.py` as a config file, and the seeds of its sweep.

--config=experiments/judges/config.py:by-truth
"""

from experiments.judges import arms

get_config = arms.get_config
sweep = arms.sweep
