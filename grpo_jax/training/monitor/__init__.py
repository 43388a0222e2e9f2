"""Guards, the table of metrics, and plots of a run.

A health rule (`rules/`) is data: a number, a condition, how long it must hold,
what it means and which setting to change. It sees the lines of metrics.jsonl
and a few settings of the phase. So a run that goes on warns at the same steps
as one that was never stopped, and rules can be asked of runs that ended long
ago.
"""
