"""The command that looks at data and verifiers before anybody trains."""

from __future__ import annotations

import json

import pytest

from tests.experiments import command


@pytest.mark.slow
def test_a_policy_that_is_there_is_asked_about_labels(finished, tmp_path):
  finished.copy(tmp_path)
  status, out, err = command.run(
    *("lint", command.TINY, "--workdir=run", "--num_records=64"),
    *("--num_sampled=4", "--out=found.json"),
    cwd=tmp_path,
  )
  assert status in (0, 1), err
  assert "64 records: " in out
  assert isinstance(json.loads((tmp_path / "found.json").read_text()), list)
  status, _, err = command.run(
    "lint", command.TINY, "--workdir=none", cwd=tmp_path
  )
  assert status == 2
  assert "holds no run" in " ".join(err.split())
