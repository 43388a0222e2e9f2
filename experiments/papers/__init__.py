"""What `experiments.paper` is made of: outputs, their origin, an appendix."""
