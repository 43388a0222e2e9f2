"""Experiment: the gradient of each estimator, by enumeration;
docs/estimators.md.

| file              | holds                                                   |
|-------------------|---------------------------------------------------------|
| `enumeration.py`  | expected gradients of a loss, as sums over all groups   |
| `measurements.py` | the measurements of each algorithm                      |
| `figure.py`, `page.py`, `report.py` | the figure, the page with its text in |
|                   | `page.md` and `findings.md`, the command                |
"""
