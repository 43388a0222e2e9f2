"""Every setting of a run, and a table of settings that exclude each other."""
