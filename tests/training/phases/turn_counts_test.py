"""Sums of turns by hand."""

from grpo_jax.training.monitor import metrics
from grpo_jax.training.phases import episodes


def test_later_turns_are_added_up():
  counts = episodes.TurnCounts(10)
  for turn in range(10):
    counts.add("calls", turn)
    counts.add("seconds", turn, float(turn))
  counts.add("tokens", 9, 5.0)
  found = counts.metrics()
  assert [found[f"turn/{turn}/calls"] for turn in range(8)] == [1.0] * 8
  assert found["turn/later/calls"] == 2.0
  assert found["time/answer_s/7"] == 7.0
  assert found["time/answer_s/later"] == 8.5
  assert found["turn/later/tokens"] == 5.0
  assert found["turn/0/tokens"] == 0.0


def test_every_number_is_in_the_table_of_metrics():
  for name in episodes.TurnCounts(2).metrics():
    assert metrics.find(name) is not None, name
  names = episodes.TurnCounts(2).metrics()
  assert "turn/1/calls" in names
  assert not any("later" in name for name in names)


def test_seconds_of_a_turn_without_a_call_are_none():
  assert episodes.TurnCounts(1).metrics()["time/answer_s/0"] == 0.0
