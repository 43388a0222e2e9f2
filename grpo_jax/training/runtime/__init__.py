"""Devices, processes, checkpoints, compilation and the log."""
