"""Runs tests/multi_device/ in a process with eight devices; the slow apart."""

import os
import pathlib
import subprocess
import sys
import xml.etree.ElementTree as ElementTree

import pytest

_ROOT = pathlib.Path(__file__).resolve().parent.parent


@pytest.mark.parametrize(
  "which", ["not slow", pytest.param("slow", marks=pytest.mark.slow)]
)
def test_multi_device_tests_pass_on_eight_devices(which, tmp_path):
  report = tmp_path / "report.xml"
  flags = os.environ.get("XLA_FLAGS", "")
  environment = os.environ | {
    "GRPO_JAX_MULTI_DEVICE": "1",
    "JAX_PLATFORMS": "cpu",
    "XLA_FLAGS": f"{flags} --xla_force_host_platform_device_count=8",
  }
  command = [sys.executable, "-m", "pytest", "tests/multi_device", "-m", which]
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
