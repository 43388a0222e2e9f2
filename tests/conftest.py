"""Settings of every test process, made before jax is imported.

They are environment variables, so that programs started by a test inherit
them.
"""

import os
import pathlib

_ROOT = pathlib.Path(__file__).resolve().parent.parent

for _name, _value in {
  "JAX_PLATFORMS": "cpu",
  # Most of the time of small tests is compilation. The thresholds let every
  # program but the trivial ones into the cache.
  "JAX_COMPILATION_CACHE_DIR": str(_ROOT / ".cache" / "jax"),
  "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0.1",
  "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
  # Compiles in less than half the time; what is computed stays the same up to
  # round-off. The slow tests run the quickstart as users compile it.
  "XLA_FLAGS": "--xla_backend_optimization_level=0"
  " --xla_llvm_disable_expensive_passes=true",
}.items():
  os.environ.setdefault(_name, _value)

# These need eight devices, which a process must ask for before it starts:
# `multi_device_test.py` runs them all in one process of their own.
collect_ignore = (
  [] if os.environ.get("GRPO_JAX_MULTI_DEVICE") == "1" else ["multi_device"]
)
