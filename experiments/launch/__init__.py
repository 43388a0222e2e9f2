"""Programs that run experiments.train on Cloud TPU; see docs/cloud.md."""
