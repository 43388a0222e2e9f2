"""Do credits of segments find an error that was planted into a working?

    python -m experiments.planted_errors.run --workdir=runs/planted

| module      | content                                     |
|-------------|---------------------------------------------|
| `errors.py` | the errors, and the credits of their steps  |
| `task.py`   | addition with a teacher who answers early   |
| `run.py`    | the command that trains and measures        |
"""
