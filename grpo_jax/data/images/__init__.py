"""Images of prompts: files, and what the families' processors make of them.

Knows NumPy and Pillow alone, so that worker processes start without JAX.
"""
