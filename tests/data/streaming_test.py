"""Lines that stay on disk: the records and errors of lines in memory."""

import json
import os
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_jax.data import pipeline, sources, streaming
from grpo_jax.data.encoder import Encoder


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
  """Folder for indexes of data whose own folder cannot be written."""
  monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
  return tmp_path / "cache"


def written(tmp_path, text):
  path = tmp_path / "data.jsonl"
  path.write_bytes(text)
  return path


def lines(*prompts):
  return b"".join(json.dumps({"prompt": p}).encode() + b"\n" for p in prompts)


LINE = st.sampled_from(
  [
    b"",
    b"\r",
    b" \t",
    b"\xc2\xa0",
    b'{"prompt": "x"}',
    b' {"prompt": "\\u00e9"}',
  ]
) | st.text("ab{é", min_size=1, max_size=30).map(
  lambda text: json.dumps({"prompt": text}, ensure_ascii=False).encode()
)


@settings(max_examples=60, deadline=None)
@given(
  st.lists(LINE, max_size=8), st.booleans(), st.booleans(), st.integers(1, 40)
)
def test_records_are_those_of_lines_in_memory(
  tmp_path_factory, found, has_mark, ends, block
):
  text = b"\n".join(found) + b'\n{"prompt": "last"}' + b"\n" * ends
  folder = tmp_path_factory.mktemp("lines")
  path = written(folder, b"\xef\xbb\xbf" * has_mark + text)
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(streaming, "_BLOCK", block)  # Lines end anywhere in a block.
    streamed = streaming.StreamedJsonlSource(path)
  assert [streamed[i] for i in range(len(streamed))] == list(
    sources.JsonlSource(path)
  )


def test_a_malformed_line_is_found_when_it_is_read(tmp_path):
  path = written(tmp_path, lines("a") + b"\n" + lines("b") + b"{oops\n")
  source = streaming.StreamedJsonlSource(path)
  assert [source[i]["prompt"] for i in range(2)] == ["a", "b"]
  with pytest.raises(ValueError, match=r"data\.jsonl:4: found '\{oops'"):
    source[2]
  with pytest.raises(
    ValueError, match=r"data\.jsonl:1: found no field 'prompt'"
  ):
    streaming.StreamedJsonlSource(written(tmp_path, b'{"answer": "1"}\n'))


def test_a_domain_of_some_records_is_refused_when_it_is_read(tmp_path):
  line = json.dumps({"prompt": "b", "extras": {"domain": 1}}).encode()
  source = streaming.StreamedJsonlSource(written(tmp_path, lines("a") + line))
  with pytest.raises(ValueError, match=r"data\.jsonl:2: .* need all or none"):
    source[1]


def test_what_is_no_local_file_of_records_is_refused(tmp_path):
  with pytest.raises(FileNotFoundError, match="no file"):
    streaming.StreamedJsonlSource(tmp_path / "none.jsonl")
  with pytest.raises(ValueError, match="has no records"):
    streaming.StreamedJsonlSource(written(tmp_path, b"\n \n"))
  with pytest.raises(ValueError, match=r"Copy it here.*streaming=False"):
    streaming.StreamedJsonlSource("gs://bucket/data.jsonl")
  with pytest.raises(ValueError, match="unknown format"):
    streaming.StreamedJsonlSource(written(tmp_path, lines("a")), "gsm")


def index_of(path):
  return path.with_name(path.name + ".index")


def test_the_index_is_made_once_for_each_state_of_the_file(tmp_path):
  path = written(tmp_path, lines("a", "b"))
  streaming.StreamedJsonlSource(path)
  first = index_of(path).stat().st_ino
  streaming.StreamedJsonlSource(path)
  assert index_of(path).stat().st_ino == first
  # Of the same size, and with the time of the other one.
  before = path.stat()
  written(tmp_path, lines("c", "d"))
  os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
  assert streaming.StreamedJsonlSource(path)[0]["prompt"] == "c"
  assert index_of(path).stat().st_ino != first
  with path.open("ab") as file:
    file.write(lines("e"))
  assert len(streaming.StreamedJsonlSource(path)) == 3


def flipped(content, bit):
  changed = bytearray(content)
  changed[bit // 8] ^= 1 << bit % 8
  return bytes(changed)


@pytest.mark.parametrize(
  "damage",
  [
    *(lambda x: x[:-3], lambda x: x[:-8], lambda x: b"", lambda x: x[:70]),
    *(lambda x, bit=bit: flipped(x, bit) for bit in (3, 70, 513, 575, 639)),
  ],
)
def test_a_damaged_index_is_made_again(tmp_path, damage):
  path = written(tmp_path, lines("a", "b"))
  streaming.StreamedJsonlSource(path)
  whole = index_of(path).read_bytes()
  index_of(path).write_bytes(damage(whole))
  assert len(streaming.StreamedJsonlSource(path)) == 2
  assert index_of(path).read_bytes() == whole


def test_a_folder_that_cannot_be_written_has_its_index_in_the_cache(
  tmp_path, cache, monkeypatch
):
  path = written(tmp_path, lines("a", "b"))
  make = streaming.tempfile.mkstemp

  def mkstemp(dir, prefix):
    if dir == path.parent:  # Root may write everywhere: no mode forbids it.
      raise PermissionError(f"{dir} is read-only")
    return make(dir=dir, prefix=prefix)

  monkeypatch.setattr(streaming.tempfile, "mkstemp", mkstemp)
  assert len(streaming.StreamedJsonlSource(path)) == 2
  assert len(list((cache / "grpo_jax").glob("*.index"))) == 1
  assert not index_of(path).exists()
  monkeypatch.setenv("XDG_CACHE_HOME", str(path))  # A file is no folder.
  with pytest.raises(OSError, match=r"no place for the index .*-only.*XDG"):
    streaming.StreamedJsonlSource(path)


@pytest.mark.parametrize("kind", [os.mkdir, os.mkfifo])
def test_what_is_no_file_is_not_taken_for_an_index(tmp_path, cache, kind):
  path = written(tmp_path, lines("a", "b"))
  kind(index_of(path))
  assert len(streaming.StreamedJsonlSource(path)) == 2
  in_cache = len(list((cache / "grpo_jax").glob("*.index")))
  assert in_cache == (kind is os.mkdir)  # A pipe is replaced.
  assert not list(tmp_path.glob(".index-*"))


@pytest.mark.parametrize(
  ("kind", "error"), [(os.mkdir, "is a folder"), (os.mkfifo, "is a pipe")]
)
def test_what_is_no_file_is_not_read(tmp_path, kind, error):
  kind(tmp_path / "data")
  with pytest.raises((ValueError, OSError), match=error):
    streaming.StreamedJsonlSource(tmp_path / "data")


def test_a_file_is_closed_without_a_word_at_exit(tmp_path):
  path = written(tmp_path, lines("a"))
  program = """
import sys
from grpo_jax.data import streaming
sys.kept = [streaming.StreamedJsonlSource(sys.argv[1])]
sys.kept.append(sys.kept)
"""
  command = [sys.executable, "-c", program, str(path)]
  ended = subprocess.run(command, check=True, capture_output=True, text=True)
  assert "Error" not in ended.stderr


def test_a_killed_process_leaves_no_index_that_looks_whole(tmp_path):
  path = written(tmp_path, lines(*map(str, range(1000))))
  program = """
import os, signal, sys
from grpo_jax.data import streaming
begins = streaming._begins
def some(path):
  yield next(begins(path))[:10]
  os.kill(os.getpid(), signal.SIGKILL)
streaming._begins = some
streaming.StreamedJsonlSource(sys.argv[1])
"""
  killed = subprocess.run(
    [sys.executable, "-c", program, str(path)], check=False
  )
  assert killed.returncode == -9
  assert len(streaming.StreamedJsonlSource(path)) == 1000


class Words:
  """A tokenizer whose tokens are words; the id is the length of the word."""

  def encode(self, text):
    return [len(word) for word in text.split()]

  context_ids = encode


def stream(path, **changes):
  options = {"batch_size": 4, "max_prompt_len": 3, "seed": 5, "pad_id": 0}
  source = streaming.StreamedJsonlSource(path)
  return pipeline.prompt_stream(
    source, Encoder(Words()), **{**options, **changes}
  )


def prompts(batches):
  return [record["prompt"] for batch in batches for record in batch.records]


def test_epochs_have_every_line_once_and_go_on_where_they_were(tmp_path):
  path = written(tmp_path, lines(*map(str, range(10))))
  original = stream(path)
  order = prompts(next(original) for _ in range(10))
  epochs = [order[i : i + 10] for i in range(0, 40, 10)]
  assert all(sorted(epoch) == sorted(epochs[0]) for epoch in epochs)
  assert len({tuple(epoch) for epoch in epochs}) == 4
  state = json.loads(json.dumps(original.get_state()))
  fresh = stream(path)
  fresh.set_state(state)
  following = prompts([next(original) for _ in range(5)])
  assert prompts([next(fresh) for _ in range(5)]) == following
  # Two processes together make the same batches.
  halves = [stream(path, rows=rows) for rows in ([0, 2], [1, 3])]
  parts = [prompts([next(half) for _ in range(3)]) for half in halves]
  mixed = [x for pair in zip(*parts, strict=True) for x in pair]
  assert mixed == order[:12]


def test_another_line_takes_the_place_of_one_that_is_too_long(tmp_path, caplog):
  texts = ["long " * 4 if i % 3 == 0 else f"{i}" for i in range(30)]
  path = written(tmp_path, lines(*texts))
  with caplog.at_level("INFO", logger="absl"):
    found = prompts(next(it) for it in [stream(path)] * 15)
  assert not any("long" in text for text in found)
  assert len(set(found)) > 15
  assert "left out 1 records that are too long" in caplog.text
  # The same, wherever the stream begins.
  later = stream(path)
  for _ in range(7):
    next(later)
  assert prompts(next(it) for it in [later] * 8) == found[28:]
  with pytest.raises(ValueError, match="1000 records in a row are too long"):
    next(stream(written(tmp_path, lines("a b c d"))))
