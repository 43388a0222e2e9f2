"""Parts of `experiments.paper`: outputs, their origin, an appendix."""
