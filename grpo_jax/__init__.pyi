"""What `__init__.py` loads when it is first used, for editors and mypy."""

from grpo_jax.algorithms import ALGORITHMS as ALGORITHMS
from grpo_jax.algorithms import get_algorithm as get_algorithm
from grpo_jax.training.api import config as config
from grpo_jax.training.api import load as load
from grpo_jax.training.api import load_checkpoint as load_checkpoint
from grpo_jax.training.api import train as train
from grpo_jax.training.config import algorithm_config as algorithm_config
from grpo_jax.training.config import default_config as default_config
from grpo_jax.training.config import phase_config as phase_config
from grpo_jax.training.handle import Run as Run

__version__: str
