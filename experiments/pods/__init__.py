"""Memory and time of a run on TPUs that are not there.

| file          | holds                                                     |
|---------------|-----------------------------------------------------------|
| `memory.py`   | the command that estimates a run's memory, from shapes    |
| `held.py`     | the arrays that a device holds, and when                  |
| `advice.py`   | changes that make a run smaller, or a step shorter        |
| `meshes.py`   | how meshes are written, and which there are               |
| `ranking.py`  | the meshes that fit, the best first                       |
| `chips.py`    | TPUs: figures, slices, names                              |
| `hlo.py`      | the parser of a compiled program's text                   |
| `loops.py`    | trip counts of its loops                                  |
| `costs.py`    | its products, memory traffic and communication            |
| `kernels.py`  | products of kernels that do not state them                |
| `steps.py`    | a step compiled from shapes, and its least time           |
| `report.py`   | the command that compiles a step and reports on it        |
| `rows.py`     | several such reports, one after another                   |
| `table.py`    | the command that writes benchmarks/pods.md                |
| `recipes.py`  | the command that writes benchmarks/recipes.md             |
| `scaling.py`  | the command that writes benchmarks/scaling.md             |
| `recorded.py` | the command that compares costs with recorded ones        |
"""
