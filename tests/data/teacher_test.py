"""The layout of teacher completions and how often tags are missing."""

import collections

import numpy as np
import pytest

from grpo_jax.data import sources, teacher

RECORD = {"prompt": "?", "answer": "6", "completion": "2*3=6", "extras": {}}
FULL = "<think>2*3=6</think>\n<answer>6</answer>"


def test_careful_teacher_writes_all_tags():
  rng = np.random.default_rng(0)
  assert teacher.think_answer(RECORD, rng, 0.0) == FULL


def test_sloppy_teacher_drops_one_tag_at_the_stated_rate():
  rng = np.random.default_rng(0)
  draws = 6000
  counts = collections.Counter(
    teacher.think_answer(RECORD, rng, 0.3) for _ in range(draws)
  )
  expected = {FULL: 0.7}
  for tag in ("</think>", "<answer>", "</answer>"):
    expected[FULL.replace(tag, "")] = 0.1
  assert counts.keys() == expected.keys()
  for text, rate in expected.items():
    # Four standard deviations of a share at most sqrt(0.21 / 6000) wide.
    assert abs(counts[text] / draws - rate) < 0.024


def test_source_repeats_itself_and_depends_on_its_seed(tmp_path):
  path = tmp_path / "data.jsonl"
  path.write_text('{"prompt": "?", "answer": "6", "completion": "x"}\n' * 40)
  plain = sources.JsonlSource(path)

  def completions(seed):
    source = teacher.ThinkAnswerSource(plain, seed, 0.5)
    return [source[i]["completion"] for i in range(len(source))]

  assert completions(0) == completions(0)
  assert completions(0) != completions(1)
  assert len(set(completions(0))) == 4
  assert plain[0]["completion"] == "x"


def test_source_refuses_what_it_cannot_use(tmp_path):
  path = tmp_path / "data.jsonl"
  path.write_text('{"prompt": "?"}\n')
  plain = sources.JsonlSource(path)
  with pytest.raises(ValueError, match="record 0 has no completion"):
    teacher.ThinkAnswerSource(plain, 0, 0.5)[0]
  with pytest.raises(ValueError, match=r"is 1\.5; it must lie in \[0, 1\]"):
    teacher.ThinkAnswerSource(plain, 0, 1.5)
