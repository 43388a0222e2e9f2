"""Rows become traces: texts, numbers where they are known, calls, bounds."""

import dataclasses
import functools
import types

import numpy as np
import pytest

from grpo_jax.data import tokenizer
from grpo_jax.training.evaluation import trace_rows
from grpo_jax.training.problem.problem import Problem
from grpo_jax.training.runtime import traces

NAN = np.float32(np.nan)


class _Words:
  """A tokenizer of one letter each, and an end."""

  pad_id, end_ids = 0, (1,)
  names = ("<pad>", "<end>", "a", "b", "!", "?")

  def exact_text(self, ids):
    return "".join(self.names[i] for i in ids)


def _problem(text=None, dummy=()):
  text = text or _Words()
  problem = types.SimpleNamespace(
    tokenizer=text,
    environment=types.SimpleNamespace(dummy=dummy),
    host_environment=None,
    texts=lambda tokens, mask: [
      text.exact_text([i for i in row if i > 1]) for row in tokens
    ],
  )
  problem.bytes_of = functools.partial(Problem.bytes_of, problem)
  return problem


def _arrays(**fields):
  """Two rows of three slots, of which the second has two tokens."""
  arrays = dict.fromkeys(
    (
      *("old_logp", "ref_logp", "value", "order", "logp", "clipped"),
      *("version", "observed", "turn", "turn_rewards"),
    )
  )
  arrays |= {
    "tokens": np.array([[2, 3, 1], [3, 1, 0]], np.int32),
    "exists": np.array([[True, True, True], [True, True, False]]),
    "trained": np.array([[True, True, True], [False, False, False]]),
    "reward": np.array([0.5, 9], np.float32),
    "valid": np.array([True, False]),
    "correct": np.array([False, True]),
    "terminated": np.array([True, True]),
    "components": {"f1": np.array([0.5, np.nan], np.float32)},
    "advantage": np.array([1.5, -1.5], np.float32),
    "sampler_logp": np.array([[-1, -2, -3], [-4, -5, 0]], np.float32),
    "entropy": np.ones((2, 3), np.float32),
  }
  return arrays | fields


def test_rows_have_texts_and_the_numbers_that_are_known():
  logp = np.array([[-0.5, -2.5, -3], [-4, -5, 0]], np.float32)
  reference = np.full((2, 3), -1.5, np.float32)
  one, other = trace_rows.make_rows(
    _problem(), _arrays(logp=logp, ref_logp=reference), 6, {1: "timeout"}
  )
  assert (one.row, one.sample, other.row, other.sample) == (6, 0, 7, 1)
  assert (one.text, one.tokens) == ("ab", ("a", "b", "<end>"))
  assert (one.reward, one.correct, one.error) == (0.5, False, "")
  # Nobody scored it: no reward of 9, and no right answer.
  assert (other.reward, other.correct, other.error) == (None, None, "timeout")
  assert other.components == {"f1": None}
  assert other.ids.tolist() == [3, 1]
  # The only gradient step has no pass before: the sampler's is the anchor.
  assert "old_logp" not in one.values
  np.testing.assert_array_equal(
    one.values["ratio"], np.exp(np.array([0.5, -0.5, 0], np.float32))
  )
  np.testing.assert_array_equal(one.values["kl"], [0.5, -0.5, -1.5])
  np.testing.assert_array_equal(one.values["advantage"], [1.5] * 3)
  # Of tokens that are not trained they say nothing.
  assert np.isnan(other.values["ratio"]).all()
  assert np.isnan(other.values["advantage"]).all()
  np.testing.assert_array_equal(other.values["new_logp"], [-4, -5])
  assert one.calls == ()


def test_ratios_are_those_to_the_pass_before_the_update():
  logp = np.full((2, 3), -1, np.float32)
  old = np.full((2, 3), -3, np.float32)
  one, _ = trace_rows.make_rows(
    _problem(), _arrays(logp=logp, old_logp=old), 0, {}
  )
  np.testing.assert_array_equal(
    one.values["ratio"], [np.exp(np.float32(2))] * 3
  )
  np.testing.assert_array_equal(one.values["old_logp"], [-3] * 3)


def test_turns_are_calls_with_their_answers():
  arrays = _arrays(
    tokens=np.array([[2, 4, 3, 4, 3]], np.int32),
    exists=np.ones((1, 5), bool),
    trained=np.array([[True, False, True, False, False]]),
    observed=np.array([[False, True, False, True, True]]),
    turn=np.array([[0, 0, 1, 1, 1]], np.int32),
    turn_rewards=np.array([[0.25, 0, 1, 0, 0]], np.float32),
    sampler_logp=np.zeros((1, 5), np.float32),
    entropy=np.zeros((1, 5), np.float32),
  )
  (row,) = trace_rows.make_rows(_problem(dummy=(4, 3)), arrays, 0, {})
  assert row.calls == (
    {"turn": 0, "in": "a", "out": "!", "blocked": False, "reward": 0.25},
    {"turn": 1, "in": "b", "out": "!b", "blocked": True, "reward": 1.0},
  )
  # What others wrote has no probability.
  np.testing.assert_array_equal(
    row.values["sampler_logp"], [0, NAN, 0, NAN, NAN]
  )
  for dummy, blocked in (((), [None, None]), ((4, 3), [False, True])):
    host = types.SimpleNamespace(dummy=dummy)
    fields = vars(_problem()) | {"environment": None, "host_environment": host}
    (row,) = trace_rows.make_rows(
      types.SimpleNamespace(**fields), arrays, 0, {}
    )
    assert [call["blocked"] for call in row.calls] == blocked


def test_contexts_that_do_not_exist_are_left_out():
  arrays = _arrays(
    order=np.array([0, 1], np.int32),
    prompt_tokens=np.array([[0, 2], [2, 3]], np.int32),
    prompt_mask=np.array([[False, True], [True, True]]),
  )
  first, second = trace_rows.make_rows(_problem(), arrays, 0, {})
  assert (first.sample, first.context, first.opening) == (0, 0, "")
  assert (second.sample, second.context, second.opening) == (0, 1, "ab")
  arrays["exists"][1] = False
  (only,) = trace_rows.make_rows(_problem(), arrays, 0, {})
  assert only.context == 0


def test_texts_of_byte_tokens_show_ends_and_join_characters():
  text = tokenizer.Tokenizer(tokenizer.BYTES)
  problem = _problem(text)
  problem.pieces = text.token_bytes()
  ids = [*text.encode("é"), text.end_ids[0]]
  assert len(ids) == 3
  end = text.exact_text([text.end_ids[0]])
  assert trace_rows.texts_of(problem, ids) == ("", "é", end)
  assert end


# --- Bounds ------------------------------------------------------------------


def _group(number, size):
  noise = np.random.default_rng(number).normal(size=size).astype(np.float32)
  row = traces.TraceRow(
    row=0,
    sample=0,
    context=0,
    text="x" * size,
    tokens=("x",) * size,
    ids=np.arange(size, dtype=np.int32),
    reward=1.0,
    correct=True,
    terminated=True,
    components={},
    values={"entropy": noise},
  )
  return traces.Group(1, "rl", "train", number, number, "q", ("best",), (row,))


def _read(content, tmp_path):
  (tmp_path / traces.FILE).write_bytes(content)
  return traces.read(tmp_path)


@pytest.mark.parametrize("size", [100, 1000, 4000, 20_000, 10**6])
def test_what_is_written_is_never_larger_than_its_bound(size, tmp_path):
  groups = [_group(number, 1000) for number in range(3)]
  content = trace_rows.bounded(groups, size)
  assert len(content) <= size
  found = _read(content, tmp_path)
  # Those of the last rules go first.
  assert [group.prompt_id for group in found] == list(range(len(found)))
  assert (len(found) == 3) == (size >= 20_000)
  if size == 4000:
    (row,) = found[0].rows
    assert 0 < len(row.ids) == len(row.tokens) < 1000
    assert row.cut == 1000 - len(row.ids)
    assert row.text == "x" * len(row.ids)
    kept = groups[0].rows[0].values["entropy"][: len(row.ids)]
    assert row.values["entropy"].tobytes() == kept.tobytes()
  if size == 100:
    assert found == []


def test_prompts_of_a_megabyte_are_cut(tmp_path):
  noise = np.random.default_rng(0).integers(0, 1 << 20, 200_000)
  group = dataclasses.replace(_group(0, 10), prompt=" ".join(map(str, noise)))
  content = trace_rows.bounded([group], 50_000)
  assert 10_000 < len(content) <= 50_000
  (found,) = _read(content, tmp_path)
  assert found.prompt.endswith("…")
  assert group.prompt.startswith(found.prompt[:-1])
  assert found.rows[0].cut == 0
  assert trace_rows.bounded([], 10) == b""
