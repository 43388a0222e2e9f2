"""When is a group enough, and when does a critic come back? Five experiments.

    python -m experiments.long_horizon.report --experiment=E2 --profile=smoke \
        --root=runs/long_horizon --out=benchmarks/long_horizon

| module        | content                                                     |
|---------------|-------------------------------------------------------------|
| `arms.py`     | what is compared, as configs for `experiments.sweeps.run`   |
| `config.py`   | an arm as a config file                                     |
| `claims.py`   | what is claimed, and what numbers would confirm it          |
| `figure.py`   | scores at the end, and while they are learnt                |
| `page.py`     | its page                                                    |
| `report.py`   | runs the sweeps of an experiment, and has its page written  |
"""
