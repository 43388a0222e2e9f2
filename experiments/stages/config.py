"""The experiment on stages, an arm each.

    python -m experiments.sweeps.run --launcher=vmap --root=runs/rl0 \
        --config=experiments/stages/config.py:rl-0 \
        --config.start_workdir=runs/stages/base/run

`arms.py` has the settings; `run.py` runs all arms.
"""

from experiments.stages.arms import get_config, sweep

__all__ = ["get_config", "sweep"]
