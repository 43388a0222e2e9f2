"""Images of prompts: reading of files, and processors of model families.

The package imports only NumPy and Pillow, so that worker processes start
without JAX.
"""
