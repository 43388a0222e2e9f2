"""Two processes report on cases that are good, differ, raise and hang."""

import pytest

from experiments.rewards import two_processes


@pytest.mark.slow
def test_what_differs_between_processes_is_seen_and_what_fails_is_said():
  found = two_processes.tried("tests.experiments.rewards.small_table", 2.0)
  first, second = found.pop("differs")
  assert first != second
  raised = {"error": "it | fell\nover (OSError)"}
  assert found == {
    "good": [{"digest": "good"}] * 2,
    "raises": [raised] * 2,
    "hangs": [{"error": "takes more than 2 s"}] * 2,
  }
  assert two_processes.in_a_cell(raised["error"], 12) == "it / fell ov"
