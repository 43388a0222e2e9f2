"""Five experiments: when a group is enough, and when a critic comes back.

    python -m experiments.long_horizon.report --experiment=E2 --profile=smoke \
        --root=runs/long_horizon --out=benchmarks/long_horizon

| module      | content                                                    |
|-------------|------------------------------------------------------------|
| `arms.py`   | the arms, as configs for `experiments.sweeps.run`          |
| `config.py` | an arm as a config file                                    |
| `claims.py` | the claims, and the numbers that would confirm them        |
| `figure.py` | scores at the end, and while they are learnt               |
| `page.py`   | its page                                                   |
| `report.py` | runs the sweeps of an experiment, and has its page written |
"""
