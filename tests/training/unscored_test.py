"""Runs whose verifiers fail on most rows end; what they say is logged."""

import logging

from grpo_jax.training import unscored


def test_the_error_says_where_why_and_what_to_do():
  complaints = unscored.Complaints()
  complaints.log("x", ["row 3: raised: a: IndexError: no such (a.py:7)"])
  complaints.log("x", ["row 4: timeout: no answer in 10 s"])
  complaints.log("x", ["row 5: raised: a: IndexError: no such (a.py:7)"])
  numbers = {"rows": 16.0, "step 1": 12.0, "step 2": 16.0, "step 3": 9.0}
  message = unscored.too_many(numbers, 0.5, complaints.commonest())
  assert message.startswith("12 of 16 in step 1, 16 of 16 in step 2, 9 of 16")
  assert "The commonest error: raised: a: IndexError: no such (a.py:7)" in (
    message
  )
  assert "config.rewards.max_unscored=0.5" in message
  assert "The run is saved" in message


def test_rewards_that_do_not_apply_are_named_too():
  why = unscored.Complaints().commonest()
  message = unscored.too_many({"rows": 16.0, "step 3": 16.0}, 0.5, why)
  assert "did not apply (None)" in message


def test_an_error_is_one_line_of_the_log(caplog):
  with caplog.at_level(logging.WARNING):
    unscored.Complaints().log(
      "a verifier failed", ["row 1: raised: \x1b[31mred\nFAKE: all is well"]
    )
  (record,) = caplog.records
  assert record.getMessage().endswith(
    r"a verifier failed: row 1: raised: \x1b[31mred\nFAKE: all is well"
  )


def test_excess():
  assert unscored.excess(8, 16, 0.5) is None
  assert "9 of 16 completions" in unscored.excess(9, 16, 0.5)
