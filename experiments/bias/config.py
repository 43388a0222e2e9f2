"""An arm of `arms.py` as a config file, and the seeds of its sweep.

--config=experiments/bias/config.py:mixed-p05-kl001-none
"""

from experiments.bias import arms

get_config = arms.get_config
sweep = arms.sweep
