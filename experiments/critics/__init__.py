"""Critic or no critic on classical control: a replication of arXiv:2511.03527.

    python -m experiments.critics.report --profile=smoke --out=FOLDER

`environments.py` wraps gymnax, `policies.py` has the networks, `training.py`
trains them with the losses of `grpo_jax/ops`, `protocol.py` lists the cells and
the rules by which conclusions are judged, `figure.py` and `report.py` write the
page.

Source: de Oliveira et al., "Learning Without Critics? Revisiting GRPO in
Classical Reinforcement Learning Environments", arXiv:2511.03527.
"""
