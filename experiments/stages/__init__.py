"""Experiment: imitation of labelled examples, reinforcement, or both.

    python -m experiments.stages.run
    python -m experiments.stages.report

| module       | content                                               |
|--------------|-------------------------------------------------------|
| `arms.py`    | base models, labelled examples, GRPO, a smaller model |
| `config.py`  | an arm as a config file                               |
| `claims.py`  | the claims, and the numbers that would confirm them   |
| `run.py`     | the command that trains                               |
| `results.py` | the record of an arm                                  |
| `page.py`    | the text of docs/sft_or_rl.md                         |
| `report.py`  | the command that writes page and figure               |
"""
