"""Tests on eight CPU devices, run by `tests/multi_device_test.py`.

To run one of them alone:

    GRPO_JAX_MULTI_DEVICE=1 \\
    XLA_FLAGS=--xla_force_host_platform_device_count=8 \\
    .venv/bin/python -m pytest tests/multi_device -k NAME
"""
