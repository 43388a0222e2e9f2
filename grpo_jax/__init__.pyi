"""What `__init__.py` loads when it is first used, for editors and mypy."""

from grpo_jax.algorithms import ALGORITHMS as ALGORITHMS
from grpo_jax.algorithms import get_algorithm as get_algorithm
from grpo_jax.api import load as load
from grpo_jax.api import load_checkpoint as load_checkpoint
from grpo_jax.api import train as train
from grpo_jax.handle import Run as Run
from grpo_jax.settings.config import algorithm_config as algorithm_config
from grpo_jax.settings.config import default_config as default_config
from grpo_jax.settings.config import phase_config as phase_config
from grpo_jax.settings.overrides import config as config

__version__: str
