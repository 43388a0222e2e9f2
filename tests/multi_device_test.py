"""Runs tests/multi_device/ in processes with eight devices; the slow in two."""

import os
import pathlib
import subprocess
import sys
import xml.etree.ElementTree as ElementTree

import pytest

_ROOT = pathlib.Path(__file__).resolve().parent.parent


_STEPS = "step_test or mesh_test"  # A half of the time of the slow.


@pytest.mark.parametrize(
  "which",
  [
    ["-m=not slow"],
    pytest.param(["-m=slow", f"-k={_STEPS}"], marks=pytest.mark.slow),
    pytest.param(["-m=slow", f"-k=not ({_STEPS})"], marks=pytest.mark.slow),
  ],
  ids=["fast", "slow-steps", "slow-others"],
)
def test_multi_device_tests_pass_on_eight_devices(which, tmp_path):
  report = tmp_path / "report.xml"
  flags = os.environ.get("XLA_FLAGS", "")
  environment = os.environ | {
    "GRPO_JAX_MULTI_DEVICE": "1",
    "JAX_PLATFORMS": "cpu",
    # On a busy machine a device may wait for the others for minutes.
    "XLA_FLAGS": f"{flags} --xla_force_host_platform_device_count=8"
    " --xla_cpu_collective_call_terminate_timeout_seconds=600",
  }
  command = [sys.executable, "-m", "pytest", "tests/multi_device", *which]
  result = subprocess.run(
    [*command, "--durations=5", f"--junitxml={report}"],
    cwd=_ROOT,
    env=environment,
    stdout=subprocess.PIPE,
    stderr=subprocess.STDOUT,
    text=True,
    timeout=1800,  # seconds
    check=False,
  )
  assert result.returncode == 0, f"{' '.join(command)}\n{result.stdout}"
  suite = next(ElementTree.parse(report).iter("testsuite"))
  assert int(suite.get("tests")) > 0, result.stdout
  assert int(suite.get("skipped")) == 0, result.stdout
