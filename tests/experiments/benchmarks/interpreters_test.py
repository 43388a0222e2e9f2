"""Many sessions with interpreters leave nothing behind."""

import tempfile

import pytest

from experiments.benchmarks import interpreters


@pytest.mark.slow
def test_sessions_leave_no_process_descriptor_or_file(tmp_path, monkeypatch):
  monkeypatch.setenv("TMPDIR", str(tmp_path))  # Of this test alone.
  monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
  report = interpreters.run(200, at_once=50)
  assert (report.failed, report.wrong) == (0, 0)
  assert report.after[:4] == report.before[:4]
  assert report.closed.processes == 0
