"""What `experiments.compare` is made of: runs, statistics, tables, figures."""
