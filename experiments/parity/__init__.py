"""Comparison of checkpoints here with another program's outputs of them.

| file                | holds                                              |
|---------------------|----------------------------------------------------|
| `outputs.py`        | logits and tokens of a checkpoint, and comparisons |
| `compare_logits.py` | the command for one checkpoint                     |
| `table.py`          | the command for many                               |
"""
