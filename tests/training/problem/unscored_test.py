"""Runs whose verifiers fail on most rows end; what they say is logged."""

import logging

from grpo_jax.training.problem import unscored

INDEX = "raised: a: IndexError: no such (a.py:7)"
KEPT = "The last checkpoint is of step 3."


def test_the_error_says_where_why_and_what_to_do():
  complaints = unscored.Complaints()
  complaints.log("x", {4: "timeout: no answer in 10 s", 3: INDEX})
  complaints.log("y", {5: INDEX})
  numbers = {"rows": 16.0, "step 1": 12.0, "step 2": 16.0, "step 3": 9.0}
  message = unscored.too_many(numbers, 0.5, complaints.commonest(), KEPT)
  assert message.startswith("12 of 16 in step 1, 16 of 16 in step 2, 9 of 16")
  assert "The commonest error: raised: a: IndexError: no such (a.py:7)" in (
    message
  )
  assert "config.rewards.max_unscored=0.5" in message
  assert f"(a.py:7) {KEPT} Correct the verifier" in message


def test_rewards_that_do_not_apply_are_named_too():
  why = unscored.Complaints().commonest()
  message = unscored.too_many({"rows": 16.0, "step 3": 16.0}, 0.5, why, KEPT)
  assert "did not apply (None)" in message


def test_an_error_is_one_line_of_the_log(caplog):
  with caplog.at_level(logging.WARNING):
    unscored.Complaints().log(
      "a verifier failed", {1: "raised: \x1b[31mred\nFAKE: all is well"}
    )
  (record,) = caplog.records
  assert record.getMessage().endswith(
    r"a verifier failed, row 1: raised: \x1b[31mred\nFAKE: all is well"
  )


def test_repeats_are_told_once_and_at_each_tenfold(caplog):
  complaints = unscored.Complaints()
  for _ in range(60):
    complaints.log("x", {row: INDEX for row in range(2, 10)})
  said = [record.getMessage() for record in caplog.records]
  assert said == [
    f"x, row 2 ({count} rows by now): {INDEX}" for count in (8, 16, 104)
  ]
  complaints.log("in an evaluation", {7: INDEX})
  assert caplog.records[-1].getMessage() == f"in an evaluation, row 7: {INDEX}"


def test_three_different_messages_of_a_step_are_told(caplog):
  complaints = unscored.Complaints()
  complaints.log("x", {row: f"raised: {row}" for row in range(8)})
  assert len(caplog.records) == 3
  complaints.log("x", {9: "raised: 9"})
  assert len(caplog.records) == 4


def test_what_is_counted_is_bounded():
  complaints = unscored.Complaints()
  complaints.log("x", {0: INDEX, 1: INDEX})
  complaints.log("x", {row: f"raised: {row}" for row in range(20_000)})
  assert len(complaints._counts) <= 10_000
  assert complaints.commonest() == INDEX


def test_excess():
  assert unscored.excess(8, 16, 0.5) is None
  assert "9 of 16 completions" in unscored.excess(9, 16, 0.5)
