"""Critic or no critic on classical control: a replication of arXiv:2511.03527.

    python -m experiments.critics.report --profile=smoke --out=FOLDER

| file              | holds                                                    |
|-------------------|----------------------------------------------------------|
| `settings.py`     | the settings of a cell, and readings of the protocol     |
| `environments.py` | gymnax, with the wrappers of continuous actions          |
| `policies.py`     | networks and distributions                               |
| `losses.py`       | advantages and losses, from `grpo_jax/ops`               |
| `training.py`     | rollouts and updates, as one program for all seeds       |
| `results.py`      | the record of a cell                                     |
| `protocol.py`     | the grid, and the rules by which conclusions are judged  |
| `figure.py`, `page.py`, `page.md`, `report.py` | figures, page, command     |

Source: de Oliveira et al., "Learning Without Critics? Revisiting GRPO in
Classical Reinforcement Learning Environments", arXiv:2511.03527.
"""
