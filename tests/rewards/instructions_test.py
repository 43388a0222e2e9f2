"""Instructions: verdicts of IFEval's own code, and where rules deviate."""

import json
import pathlib
import sys
import time

import pytest

from grpo_jax.rewards import instructions

CASES = json.loads(
  (pathlib.Path(__file__).parent / "instructions.json").read_text("utf-8")
)


def score(text, *named, **options):
  names, given = zip(*named, strict=True)
  extra = {"instruction_id_list": [*names], "kwargs": [*given]}
  return instructions.instruction_following(
    ["a"], [text], [0], [extra], **options
  )[0]


def test_verdicts_are_those_of_ifeval():
  for number, name, given, strict, loose in CASES["cases"]:
    text = CASES["texts"][number]
    assert score(text, (name, given)) == strict, (name, given, text)
    assert score(text, (name, given), loose=True) == loose, (name, given, text)
  assert {name for _, name, *_ in CASES["cases"]} == {*instructions.RULES} - {
    # NLTK's model of sentences and the detector are not in that code.
    "change_case:capital_word_frequency",
    "change_case:english_capital",
    "change_case:english_lowercase",
    "language:response_language",
    "length_constraints:number_sentences",
  }


@pytest.mark.parametrize(
  ("text", "number"),
  [
    ("One. Two! Three?", 3),
    ("No end", 1),
    ("Dr. Smith met J. Doe at 3.5 miles.", 1),
    ('He said "Stop." Then he left...', 2),
    ("I like tea, etc. And so on.", 1),  # As if "etc." ended nothing.
    ("See p. 3. Really?! Yes.", 3),
    ("It was I.", 1),
    (" . . ", 1),
  ],
)
def test_sentences(text, number):
  name = "length_constraints:number_sentences"
  given = {"relation": "at least", "num_sentences": number}
  assert score(text, (name, given)) == 1
  assert score(text, (name, given | {"num_sentences": number + 1})) == 0
  assert score(text, (name, given | {"relation": "less than"})) == 0


@pytest.mark.slow
@pytest.mark.parametrize(
  ("name", "given", "text", "value"),
  [
    ("keywords:existence", {"keywords": ["c++"]}, "I use C++.", 1),
    ("keywords:forbidden_words", {"forbidden_words": ["c++"]}, "a C++ b", 0),
    ("keywords:forbidden_words", {"forbidden_words": ["c++"]}, "c++17", 1),
    ("change_case:english_capital", {}, "ALL OF IT, 5 TIMES", 1),
    ("change_case:english_capital", {}, "ВСЁ", 0),
    ("change_case:english_lowercase", {}, "all of it", 1),
    ("change_case:english_lowercase", {}, "123", 0),
    (
      "change_case:capital_word_frequency",
      {"capital_relation": "less than", "capital_frequency": 3},
      "I DON'T run, ASAP-NOW",
      0,
    ),
    ("language:response_language", {"language": "de"}, "Das ist ein Satz.", 1),
    ("language:response_language", {"language": "en"}, "Das ist ein Satz.", 0),
    ("language:response_language", {"language": "en"}, "12 345", 1),
    ("punctuation:no_comma", {}, "<think>a, b</think>None", 1),
    ("detectable_format:json_format", {}, "[" * 100_000, 0),
  ],
)
def test_known_answers(name, given, text, value):
  unused = {"num_words": None, "prompt_to_repeat": None}
  assert score(text, (name, {**unused, **given})) == value


def test_the_share_of_instructions_and_the_rows_of_if_rlvr():
  comma = "punctuation:no_comma", None
  title = "detectable_format:title", {}
  assert score("a b", comma, title) == 0.5
  assert score("a b", comma, title, exact=True) == 0
  assert score("<<a>>\nb", comma, title, exact=True) == 1
  row = [{"instruction_id": [comma[0], title[0]], "kwargs": [None, {}]}]
  extras = [{"answer": json.dumps(row), "dataset": "ifeval"}]
  assert instructions.instruction_following(["p"], ["a"], [0], extras) == [0.5]


@pytest.mark.parametrize(
  ("extra", "message"),
  [
    ({"answer": "5"}, "needs the lists 'instruction_id_list' and 'kwargs'"),
    ({"answer": "["}, "needs the lists"),
    ({"answer": "[]"}, "needs the lists"),
    ({"instruction_id_list": [], "kwargs": []}, "needs the lists"),
    (
      {"instruction_id_list": ["punctuation:no_comma"], "kwargs": []},
      "found 1 instructions and 0 'kwargs'",
    ),
    (
      {"instruction_id_list": ["a:b"], "kwargs": [{}]},
      "no instruction 'a:b'; known are keywords:existence",
    ),
    (
      {"instruction_id_list": ["startend:end_checker"], "kwargs": [{}]},
      "needs end_phrase in 'kwargs', and has",
    ),
    (
      {
        "instruction_id_list": ["keywords:frequency"],
        "kwargs": [{"keyword": "a", "relation": "about", "frequency": 2}],
      },
      "the relation is 'about'; use 'at least' or 'less than'",
    ),
    (
      {
        "instruction_id_list": ["length_constraints:number_words"],
        "kwargs": [{"relation": "at least", "num_words": "many"}],
      },
      "cannot be read with",
    ),
  ],
)
def test_wrong_records_are_errors(extra, message):
  with pytest.raises(ValueError, match=message):
    instructions.instruction_following(["p"], ["a b"], [0], [extra])


def test_a_language_needs_its_package(monkeypatch):
  monkeypatch.setitem(sys.modules, "langdetect", None)
  instructions._detector.cache_clear()
  with pytest.raises(ImportError, match=r"install grpo_jax\[instr"):
    score("a", ("language:response_language", {"language": "en"}))
  instructions._detector.cache_clear()


@pytest.mark.parametrize(
  "text", ["[" * 60_000, "\n" * 60_000 + "a", "<" * 60_000, "e.g. " * 12_000]
)
def test_a_policy_that_is_stuck_in_a_loop_is_scored_at_once(text):
  """A row that takes its whole time would be unscored, and not wrong."""
  start = time.thread_time()
  for name, given in (
    ("detectable_content:number_placeholders", {"num_placeholders": 1}),
    ("detectable_format:number_bullet_lists", {"num_bullets": 1}),
    ("detectable_format:title", {}),
    (
      "length_constraints:number_sentences",
      {"relation": "at least", "num_sentences": 9},
    ),
  ):
    assert score(text, (name, given)) == 0
  assert time.thread_time() - start < 1.0
