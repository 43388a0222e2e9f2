"""A verifier that finds everything right is doubted, once."""

import logging

import pytest

from grpo_jax.training import suspicion


def warnings(caplog, *shares):
  """The messages after steps with these shares of right completions."""
  doubts = suspicion.PerfectScores("my_check", "runs/a/samples.jsonl")
  with caplog.at_level(logging.WARNING):
    for number, share in enumerate(shares, start=11):
      doubts.step(number, {} if share is None else {"accuracy": share})
  return [record.getMessage() for record in caplog.records]


def test_the_warning_says_what_is_perfect_and_where_to_look(caplog):
  (message,) = warnings(caplog, 0.5, 1.0, 0.995, 1.0, 1.0, 1.0, 0.5, 1, 1, 1)
  assert message.startswith("step 14: 'my_check' marks more than 0.99 of")
  assert "Suspicious by default" in message
  assert "runs/a/samples.jsonl" in message


@pytest.mark.parametrize(
  "shares",
  [
    (1.0, 1.0),
    (0.99, 0.99, 0.99, 0.99),
    (1.0, 1.0, 0.9, 1.0, 1.0),
    (1.0, 1.0, float("nan"), 1.0, 1.0),
    (1.0, 1.0, None, 1.0, 1.0),  # A step that drew nothing.
  ],
)
def test_what_is_not_perfect_for_long_is_believed(caplog, shares):
  assert not warnings(caplog, *shares)
