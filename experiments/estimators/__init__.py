"""What each estimator estimates, by enumeration; docs/estimators.md.

| file              | holds                                                   |
|-------------------|---------------------------------------------------------|
| `enumeration.py`  | expected gradients of a loss, as sums over all groups   |
| `measurements.py` | what is measured of each algorithm                      |
| `figure.py`, `page.py`, `report.py` | the figure, the page, the command     |
"""
