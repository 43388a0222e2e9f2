"""Benchmarks of time and memory on this machine; tables: benchmarks/README.md.

| file             | holds                                                    |
|------------------|----------------------------------------------------------|
| `workload.py`    | the amount of work, and its least cost                   |
| `inputs.py`      | a model, a problem and a batch for it                    |
| `timing.py`      | compiled parts, timed in turn beside the machine's rates |
| `step.py`        | the command for a whole step and its parts               |
| `compared.py`    | whole steps that are compared in the same rounds         |
| `critic.py`, `images.py` | commands for the cost of a critic, of images     |
| `attention.py`, `libraries.py` | forms of attention; qwix and tokamax       |
| `profile.py`     | the command for the time of each operation               |
| `load.py`        | the command for the memory of loading a checkpoint       |
| `trl_step.py`    | the command for TRL's step on the same work              |
| `clients.py`     | the command for several clients of grpo-tinker           |
| `interpreters.py` | the command for what sessions leave behind              |
| `accelerator.py` | the command for a quarter of an hour on a GPU or a TPU   |
| `accelerator_items.py` | its rows                                           |
| `accelerator_jax.py`, `accelerator_torch.py` | what measures them           |
| `host.py`        | the command for the host                                 |
| `host_rows.py`, `host_states.py` | its measurements                         |
| `memory.py`      | memory and processor time, as Linux counts them          |
"""
