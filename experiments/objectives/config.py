"""The experiment on objectives, an arm each.

    python -m experiments.sweeps.run --launcher=vmap --root=runs/gdpo \
        --config=experiments/objectives/config.py:multi-gdpo

`arms.py` has the settings; `run.py` runs all arms.
"""

from experiments.objectives.arms import get_config, sweep

__all__ = ["get_config", "sweep"]
