"""Measurements of how often interceptors decide rightly about tool calls.

| module     | content                                          |
|------------|--------------------------------------------------|
| `rates.py` | labelled calls, rates, and the page              |
| `run.py`   | the command                                      |
"""
