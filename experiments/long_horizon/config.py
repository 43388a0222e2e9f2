"""The experiments on long horizons, an arm of them each.

    python -m experiments.sweeps.run --launcher=vmap --root=runs/E2/joint \
        --config=experiments/long_horizon/config.py:E2,smoke,joint

`arms.py` has the settings; `report.py` runs all arms of an experiment and
compares them.
"""

from experiments.long_horizon.arms import get_config, sweep

__all__ = ["get_config", "sweep"]
