"""Seconds and bytes on this machine; benchmarks/README.md has the tables.

| file           | holds                                                    |
|----------------|----------------------------------------------------------|
| `workload.py`  | what is to be done, and the least that it can cost       |
| `inputs.py`    | a model, a problem and a batch for it                    |
| `timing.py`    | compiled parts, timed in turn beside the machine's rates |
| `step.py`      | the command for a whole step and its parts               |
| `compared.py`  | whole steps that are compared in the same rounds         |
| `critic.py`, `attention.py`, `logprobs.py`, `load.py` | commands for a piece |
| `images.py`    | the command for what images cost                         |
| `host.py`      | the command for the host                                 |
| `host_rows.py`, `host_states.py` | what it measures                       |
| `memory.py`    | memory and processor time, as Linux counts them          |
| `figure.py`    | the command that draws results of `step.py`              |
"""
