"""An arm of `arms.py` as a config file, and the seeds of its sweep.

--config=experiments/vision/config.py:grpo
"""

from experiments.vision import arms

get_config = arms.get_config
sweep = arms.sweep
