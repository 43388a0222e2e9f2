"""Checkpoints here beside what another program computed of them.

| file                | holds                                              |
|---------------------|----------------------------------------------------|
| `outputs.py`        | logits and tokens of a checkpoint, and comparisons |
| `compare_logits.py` | the command for one checkpoint                     |
| `table.py`          | the command for many                               |
"""
