"""Every setting of a run, and which of them exclude each other."""
