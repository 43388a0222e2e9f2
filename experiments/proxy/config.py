"""An arm of `arms.py` as a config file, and the seeds of its sweep.

--config=experiments/proxy/config.py:kl04-r10
"""

from experiments.proxy import arms

get_config = arms.get_config
sweep = arms.sweep
