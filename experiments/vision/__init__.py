"""Does reinforcement on images generalise better than imitation does?

    python -m experiments.vision.run
    python -m experiments.vision.report

| module       | content                                                      |
|--------------|--------------------------------------------------------------|
| `arms.py`    | what is compared: GRPO, and imitation at two equal costs     |
| `config.py`  | an arm as a config file                                      |
| `claims.py`  | what is claimed, and what numbers would confirm it           |
| `run.py`     | the command that trains                                      |
| `results.py` | what it leaves behind                                        |
| `page.py`    | the page, and `figure.py` its figure                         |
| `report.py`  | the command that writes docs/vision_generalises.md           |
"""
