"""Passages are found by their words, and always the same ones."""

import json
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpo_jax.rewards.agents import tools

ROWS = [
  {"id": "p1", "title": "Paris", "text": "The capital of France."},
  {"id": 2, "title": "Berlin", "text": "The capital of Germany."},
  {"text": "France has many rivers, and the Loire is one of them."},
]


@pytest.fixture(scope="module")
def index(tmp_path_factory):
  path = tmp_path_factory.mktemp("corpus") / "rows.jsonl"
  path.write_text("\n\n".join(map(json.dumps, ROWS)))
  return tools.Index(str(path))


def test_passages_are_found_by_titles_and_texts(index):
  assert index.find("paris", 3) == [
    tools.Passage("p1", "Paris", "The capital of France.")
  ]
  found = index.find("What is the capital of France?", 3)
  assert [passage.id for passage in found] == ["p1", "2", "5"]
  assert [x.id for x in index.find("What is the capital of France?", 1)] == [
    "p1"
  ]


@pytest.mark.parametrize("query", ["", "the of", "zebra", "\ud800", "?" * 9999])
def test_without_a_word_nothing_is_found(index, query):
  assert index.find(query, 3) == []


words = st.sampled_from(["red", "green", "blue", "cat"])


@pytest.mark.slow
@given(
  texts=st.lists(
    st.lists(words, min_size=1, max_size=3).map(" ".join),
    min_size=1,
    max_size=8,
  ),
  query=st.lists(words, max_size=3).map(" ".join),
  count=st.integers(1, 9),
)
def test_ties_come_in_the_order_of_the_file(
  tmp_path_factory, texts, query, count
):
  path = tmp_path_factory.mktemp("corpus") / "lines.txt"
  path.write_text("\n".join(texts))
  made = tools.Index(str(path))
  scores = made._scores.get_scores(query.split()) if query else []
  order = sorted(range(len(scores)), key=lambda i: (-scores[i], i))
  wanted = [str(i + 1) for i in order if scores[i] > 0][:count]
  assert [passage.id for passage in made.find(query, count)] == wanted


@pytest.mark.parametrize(
  ("name", "content", "message"),
  [
    ("a.jsonl", '{"text": "a"}\n{"text"', r"a\.jsonl, line 2 is not JSON"),
    ("a.jsonl", '{"title": "a"}', r"line 1 is '.*'; needs an object with"),
    ("a.jsonl", "[1]", "needs an object with a field 'text'"),
    ("a.txt", " \n\n", "has no passage"),
  ],
)
def test_a_file_without_passages_is_refused(tmp_path, name, content, message):
  (tmp_path / name).write_text(content)
  with pytest.raises(ValueError, match=message):
    tools.read(str(tmp_path / name))


def test_a_file_that_is_not_there_is_named(tmp_path):
  with pytest.raises(
    FileNotFoundError, match=r"no file '.*x\.txt' of passages"
  ):
    tools.Index(str(tmp_path / "x.txt"))


def test_a_missing_package_is_named(monkeypatch, tmp_path):
  (tmp_path / "a.txt").write_text("a")
  monkeypatch.setitem(sys.modules, "bm25s", None)
  with pytest.raises(ImportError, match=r"'bm25s'; install grpo_jax\[tools\]"):
    tools.Index(str(tmp_path / "a.txt"))


@pytest.mark.slow
def test_an_index_starts_neither_jax_nor_threads(tmp_path):
  (tmp_path / "a.txt").write_text("one passage\nanother passage")
  program = f"""
import sys, threading
from grpo_jax.rewards.agents import tools
assert tools.Index({str(tmp_path / "a.txt")!r}).find("another", 1)
assert not [x for x in sys.modules if x.partition(".")[0] in ("jax", "numba")]
assert threading.active_count() == 1
import tqdm.auto
assert tqdm.auto.tqdm
"""
  subprocess.run([sys.executable, "-c", program], check=True)
