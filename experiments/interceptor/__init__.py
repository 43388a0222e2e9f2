"""How rightly interceptors of calls of tools decide.

| module     | content                                          |
|------------|--------------------------------------------------|
| `rates.py` | labelled calls, rates, and the page              |
| `run.py`   | the command                                      |
"""
