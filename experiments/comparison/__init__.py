"""Parts of `experiments.compare`: runs, statistics, tables, figures."""
