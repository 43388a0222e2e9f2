"""What a run needs, and what its step does on TPUs that are not there.

| file        | holds                                                    |
|-------------|----------------------------------------------------------|
| `memory.py` | the command that says what a run needs, from shapes      |
| `held.py`   | what of it is held when, per device                      |
| `advice.py` | what would make a run smaller, or a step shorter         |
| `meshes.py` | how meshes are written, and which there are              |
| `ranking.py` | which of them fit, the best first                       |
| `chips.py`  | TPUs: figures, slices, names                             |
| `hlo.py`    | the text of a compiled program, parsed                   |
| `loops.py`  | how often its loops run                                  |
| `costs.py`  | what it multiplies, moves and sends                      |
| `kernels.py` | what kernels multiply that do not say it                |
| `steps.py`  | a step from shapes, compiled, and what it takes at least |
| `report.py` | the command that compiles a step and says what it does   |
| `rows.py`   | several such reports, one after another                  |
| `table.py`  | the command that writes benchmarks/pods.md               |
| `recipes.py` | the command that writes benchmarks/recipes.md           |
| `scaling.py` | the command that writes benchmarks/scaling.md           |
| `recorded.py` | the command that compares costs with what is recorded  |
"""
