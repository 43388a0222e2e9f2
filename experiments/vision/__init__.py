"""Experiment: generalisation of reinforcement and of imitation on images.

    python -m experiments.vision.run
    python -m experiments.vision.report

| module       | content                                             |
|--------------|-----------------------------------------------------|
| `arms.py`    | the arms: GRPO, and imitation at two equal costs    |
| `config.py`  | an arm as a config file                             |
| `claims.py`  | the claims, and the numbers that would confirm them |
| `run.py`     | the command that trains                             |
| `results.py` | the record of an arm                                |
| `page.py`    | the page, and `figure.py` its figure                |
| `report.py`  | the command that writes docs/vision_generalises.md  |
"""
