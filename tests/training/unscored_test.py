"""Runs whose verifiers fail on most rows end; what they say is logged."""

import logging

import pytest

from grpo_jax.training import unscored


def steps(patience, *shares):
  for number, share in enumerate(shares, start=1):
    patience.step(number, {"unscored": 16 * share}, 16)
  return patience.exhausted


def test_three_steps_in_a_row_are_too_many():
  assert not steps(unscored.Patience(0.5), 0.75, 0.75)
  assert not steps(unscored.Patience(0.5), 0.75, 0.75, 0.5, 0.75, 0.75)
  assert steps(unscored.Patience(0.5), 0.25, 0.75, 0.75, 0.75)
  assert not steps(unscored.Patience(1.0), 1.0, 1.0, 1.0)
  assert steps(unscored.Patience(0.0), 0.1, 0.1, 0.1)
  patience = unscored.Patience(0.0)
  patience.step(1, {"loss": 1.0}, 16)  # A step that drew nothing.
  assert not steps(patience, 0.1, 0.1)


def test_the_error_says_where_why_and_what_to_do():
  patience, complaints = unscored.Patience(0.5), unscored.Complaints()
  steps(patience, 0.75, 1.0)
  patience.check(complaints)  # Not yet.
  complaints.log("x", ["row 3: raised: a: IndexError: no such (a.py:7)"])
  complaints.log("x", ["row 4: timeout: no answer in 10 s"])
  complaints.log("x", ["row 5: raised: a: IndexError: no such (a.py:7)"])
  patience.step(3, {"unscored": 9}, 16)
  with pytest.raises(ValueError, match="could not be scored") as caught:
    patience.check(complaints)
  message = str(caught.value)
  assert message.startswith("12 of 16 in step 1, 16 of 16 in step 2, 9 of 16")
  assert "The commonest error: raised: a: IndexError: no such (a.py:7)" in (
    message
  )
  assert "config.rewards.max_unscored=0.5" in message
  assert "The run is saved" in message


def test_rewards_that_do_not_apply_are_named_too():
  patience = unscored.Patience(0.5)
  steps(patience, 1.0, 1.0, 1.0)
  with pytest.raises(ValueError, match=r"did not apply \(None\)"):
    patience.check(unscored.Complaints())


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
