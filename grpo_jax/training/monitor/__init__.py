"""Guards, the table of metrics, and plots of a run."""
