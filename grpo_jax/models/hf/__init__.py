"""Reads published checkpoints and adapters, and writes them for others."""
