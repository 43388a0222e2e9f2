"""Should a policy imitate labelled examples, be reinforced, or both?

    python -m experiments.stages.run
    python -m experiments.stages.report

| module       | content                                                   |
|--------------|-----------------------------------------------------------|
| `arms.py`    | base models, labelled examples, GRPO, a smaller model     |
| `config.py`  | an arm as a config file                                   |
| `claims.py`  | what is claimed, and what numbers would confirm it        |
| `run.py`     | the command that trains                                   |
| `results.py` | what it leaves behind                                     |
| `page.py`    | the text of docs/sft_or_rl.md                             |
| `report.py`  | the command that writes page and figure                   |
"""
