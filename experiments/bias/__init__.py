"""Does one flipped example bias a policy, and do the guards stop it?

    python -m experiments.bias.run
    python -m experiments.bias.report

| module       | content                                               |
|--------------|-------------------------------------------------------|
| `arms.py`    | what is compared: data, residual bias, KL and guards  |
| `config.py`  | an arm as a config file                               |
| `claims.py`  | what is claimed, and what numbers would confirm it    |
| `run.py`     | the command that trains                               |
| `results.py` | what it leaves behind                                 |
| `report.py`  | the command that writes docs/bias.md and its figure   |
"""
