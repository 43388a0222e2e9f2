"""Many sessions with interpreters leave nothing behind."""

import pytest

from experiments.benchmarks import interpreters


@pytest.mark.slow
def test_sessions_leave_no_process_descriptor_or_file():
  report = interpreters.run(200, at_once=50)
  assert (report.failed, report.wrong) == (0, 0)
  assert report.after[:4] == report.before[:4]
  assert report.closed.processes == 0
