"""Health rules: functions of the numbers of a run."""
