"""The page: what it holds, that nothing in it runs, and how large it is."""

import base64
import gzip
import hashlib
import html
import json
import pathlib
import re

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from experiments.traces import attacks, page, source
from tests.experiments import command
from tests.experiments.traces import examples

_FOLDER = pathlib.Path(page.__file__).parent
_EVIL = "</script><script>alert(1)</script><!-- \u2028\u2029\u202e\x00 \ud800"


def unpacked(text):
  """The content of a page, and its arrays by run and name."""
  (data,) = re.findall(
    r'<script type="application/json" id="data">(.*?)</script>', text
  )
  packed = {
    name: gzip.decompress(base64.b64decode(value))
    for name, value in json.loads(data).items()
  }
  content = json.loads(packed["texts"])
  arrays = []
  for run in content["runs"]:
    arrays.append({})
    for array in run["arrays"]:
      width = 1 if array["kind"] == "b" else 4
      start, size = array["start"], array["size"]
      block = packed["numbers"][start : start + width * size]
      # Byte k of number i stands at k * size + i.
      plain = bytes(
        block[k * size + i] for i in range(size) for k in range(width)
      )
      dtype = {"b": bool, "f": "<f4", "i": "<i4"}[array["kind"]]
      arrays[-1][array["name"]] = np.frombuffer(plain, dtype)
  return content, arrays


def run_of(*groups, **fields):
  """A run of groups."""
  metrics = tuple(
    {"step": x.step, "phase": "rl", "reward/mean": 0.1} for x in groups
  )
  defaults = {
    **{"name": "run", "algorithm": "grpo", "metrics": metrics, "alarms": ()},
    **{"doubts": (), "groups": groups},
  }
  return source.Run(**defaults | fields)


def test_numbers_and_texts_come_back_bit_for_bit():
  rng = np.random.default_rng(0)
  full = examples.with_tokens(["a", "", " b", "</s>"], rng)
  strange = full.values | {
    "ratio": np.array([np.nan, np.inf, -0.0, 1e-45], np.float32),
    "turn": np.array([0, -1, 2**31 - 1, 7], np.int32),
    "clipped": np.array([True, False, True, True]),
  }
  rows = [
    examples.row("a b", tokens=full.tokens, ids=full.ids, values=strange),
    examples.with_tokens(["x", "y"], rng, names=("entropy",), sample=1),
    examples.row("no tokens", sample=2),
  ]
  content, (arrays,) = unpacked(
    page.write([run_of(examples.group(*rows))], 10**6)
  )
  (run,) = content["runs"]
  vocabulary = run["vocabulary"]
  for row, columns in zip(rows, run["rows"], strict=True):
    text, start, size, names = columns[-4:]
    assert size == len(row.tokens)
    if not size:
      assert (text, start) == ("no tokens", -1)
      continue
    pairs = [vocabulary[i] for i in arrays["tokens"][start : start + size]]
    assert [id for id, _ in pairs] == row.ids.tolist()
    assert tuple(token for _, token in pairs) == row.tokens
    assert "".join(row.tokens[:text]) == row.text
    for place, name in enumerate(run["values"]):
      assert bool(names >> place & 1) == (name in row.values)
      if name in row.values:
        found = arrays[name][start : start + size]
        assert found.tobytes() == row.values[name].tobytes()
        assert found.dtype.kind == row.values[name].dtype.kind


def test_a_text_that_is_not_its_tokens_is_kept_apart():
  rng = np.random.default_rng(0)
  row = examples.with_tokens(["a", "b"], rng)
  other = examples.row("A", tokens=row.tokens, ids=row.ids, values=row.values)
  content, _ = unpacked(page.write([run_of(examples.group(other))], 10**6))
  assert content["runs"][0]["rows"][0][-4] == "A"


@given(st.text() | st.text("<\u2028\u2029!/a\\"))
@example("</script>\u2028\u2029")
def test_nothing_embedded_can_end_its_tag(text):
  found = page.embedded({text: [text]})
  assert not {*"<\u2028\u2029"} & {*found}
  assert json.loads(found) == {text: [text]}


def test_every_place_for_text_is_escaped():
  rng = np.random.default_rng(0)
  row = examples.with_tokens(
    [_EVIL, "x"],
    rng,
    error=_EVIL,
    opening=_EVIL,
    components={_EVIL: 1.0},
    calls=({"turn": 0, "in": _EVIL, "out": _EVIL, "blocked": True},),
  )
  group = examples.group(
    row,
    prompt=_EVIL,
    phase=_EVIL,
    chosen=(_EVIL,),
    images=({"name": _EVIL},),
    box=(0, 1, 2, 3),
  )
  run = run_of(
    group,
    name=_EVIL,
    algorithm=_EVIL,
    metrics=({"step": 1, "phase": _EVIL, _EVIL: 1.0},),
    alarms=(source.Alarm(1, _EVIL, _EVIL),),
    doubts=(_EVIL,),
  )
  text = page.write([run, run], 10**6)
  plain = page.write([run_of(examples.group(examples.row()))], 10**6)
  for tag in ("<script", "</script", "<!--", "<b", "<img"):
    assert text.count(tag) == plain.count(tag)
  assert not {*"\u2028\u2029\u202e\x00\ud800"} & {*text}
  content, _ = unpacked(text)
  assert content["runs"][1]["prompts"] == [_EVIL]
  assert content["runs"][0]["rows"][0][7:9] == [_EVIL, _EVIL]
  assert content["runs"][0]["groups"][0][-1] == [
    [{"name": _EVIL}],
    [0, 1, 2, 3],
  ]


def test_the_policy_allows_one_script_and_one_style_by_hash():
  text = page.write([run_of(examples.group(examples.row()))], 10**6)
  policy = html.unescape(
    re.findall(r'Content-Security-Policy" content="(.*?)">', text)[0]
  )
  rules = dict(x.split(" ", 1) for x in policy.split("; "))
  assert rules["default-src"] == "'none'"
  assert rules["require-trusted-types-for"] == "'script'"
  for tag, rule in (("script", "script-src"), ("style", "style-src")):
    (inside,) = re.findall(rf"<{tag}>(.*?)</{tag}>", text, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(inside.encode()).digest()).decode()
    assert rules[rule] == f"'sha256-{digest}'"


def test_the_page_asks_for_nothing_and_makes_no_markup_of_strings():
  text = page.write([run_of(examples.group(examples.row()))], 10**6)
  assert not re.findall(r"https?:|\bsrc=|\bhref=|url\(|@import", text)
  script = "\n".join((_FOLDER / name).read_text() for name in page.SCRIPTS)
  assert {x.name for x in _FOLDER.glob("*.js")} == {*page.SCRIPTS}
  forbidden = (
    r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\("
    r"|new Function|fetch\(|XMLHttpRequest|WebSocket|\bimport\b|srcdoc"
  )
  assert not re.findall(forbidden, script)


@pytest.mark.slow
def test_pages_fit_their_bytes_and_keep_what_is_spread_over_the_run():
  run = attacks.long_run(400)
  whole, _ = unpacked(page.write([run], 10**7))
  assert whole["runs"][0]["leftOut"] == {"groups": 0, "numbers": 0}
  for max_bytes in (700_000, 250_000, 130_000):
    text = page.write([run], max_bytes)
    assert len(text.encode()) <= max_bytes
    (found,) = unpacked(text)[0]["runs"]
    left = found["leftOut"]
    assert left["groups"] + len(found["groups"]) == 50
    has_numbers = [
      found["rows"][group[7]][-3] >= 0 for group in found["groups"]
    ]
    assert has_numbers.count(False) == left["numbers"] > 0
    # From the first half of the run as from the second.
    half = len(has_numbers) // 2
    assert abs(sum(has_numbers[:half]) - sum(has_numbers[half:])) <= 1
    if left["groups"]:
      steps = [group[0] for group in found["groups"]]
      assert min(steps) <= 3
      assert max(steps) == 7


@pytest.mark.slow
def test_a_row_of_a_megabyte_is_whole_or_left_out():
  letters = np.random.default_rng(0).integers(0x4E00, 0x9FA5, 400_000)
  text = "".join(map(chr, letters))  # More than 1 MB, and not compressible.
  run = run_of(examples.group(examples.row(text)), examples.group(step=2))
  (whole,) = unpacked(page.write([run], 5 * 10**6))[0]["runs"]
  assert whole["rows"][0][-4] == text
  small = page.write([run], 500_000)
  assert len(small.encode()) <= 500_000
  (left,) = unpacked(small)[0]["runs"]
  assert left["leftOut"]["groups"] + len(left["groups"]) == 2
  assert text not in [row[-4] for row in left["rows"]]


def test_a_page_without_room_for_metrics_is_refused():
  with pytest.raises(ValueError, match="--megabytes"):
    page.write([run_of(examples.group(examples.row()))], 1000)


def test_long_runs_keep_the_steps_that_were_traced():
  metrics = tuple(
    {"step": i, "phase": "rl", "x": 0.1 if i % 2 else None}
    for i in range(1, 9001)
  )
  run = run_of(
    examples.group(examples.row(), step=4444),
    metrics=metrics,
    alarms=(source.Alarm(7777, "cut_off", ""),),
  )
  content, _ = unpacked(page.write([run], 10**6))
  found = content["runs"][0]["metrics"]
  assert 4000 <= len(found["steps"]) <= 4002
  assert {4444, 7777, 9000} <= {*found["steps"]}
  odd = [
    x
    for step, x in zip(found["steps"], found["series"]["x"], strict=True)
    if step % 2
  ]
  assert {*odd} == {0.1}


@pytest.mark.slow
def test_the_command_writes_a_page_of_two_runs_and_prints(tmp_path):
  rng = np.random.default_rng(0)
  group = examples.group(examples.with_tokens(["4", "2"], rng))
  workdir = examples.write(tmp_path / "mine", [group])
  out = tmp_path / "traces.html"
  runs = (f"--workdir={workdir}", f"--other={workdir}")
  status, said, errors = command.run(
    "traces", *runs, f"--out={out}", "--text", "--filter=cut-off"
  )
  assert status == 0, errors
  assert said.splitlines()[:2] == ["mine (grpo)", "0 groups, 0 completions"]
  size = out.stat().st_size / 1e6
  assert said.splitlines()[-1] == f"page: {out} ({size:.2f} MB, 2 groups)"
  assert len(unpacked(out.read_text())[0]["runs"]) == 2


@pytest.mark.slow
def test_the_command_says_what_is_missing(tmp_path):
  examples.write(tmp_path / "mine")
  for arguments, text in (
    ([f"--workdir={tmp_path / 'mine'}"], "--out=runs/traces.html"),
    ([f"--workdir={tmp_path}", "--text"], "no metrics.jsonl"),
  ):
    status, _, errors = command.run("traces", *arguments)
    assert status == 2
    assert text in " ".join(errors.split())
