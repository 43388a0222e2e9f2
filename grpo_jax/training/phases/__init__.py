"""The phases of a run, from a config to their compiled steps."""
