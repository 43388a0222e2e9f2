"""Rows of datasets become records, or errors that list what there is."""

import re

import numpy as np
import pytest

from grpo_jax.data import formats
from grpo_jax.rewards import answers

MATH = {
  "problem": " What is $1+1$? ",
  "level": "Level 3",
  "type": "Number Theory",
  "solution": r"It is $1+1=\boxed{2}$.",
}


def test_fields_are_taken_by_their_names():
  convert = formats.conversion(
    fields={
      "prompt": "question",
      "answer": "gold",
      "completion": "why",
      "extras": {"level": "difficulty", "scores": "numbers"},
    },
    domain_key="label",
  )
  record = convert(
    {
      "question": b"caf\xc3\xa9?",
      "gold": np.int64(12),
      "why": "so",
      "label": np.int64(3),
      "difficulty": b"hard",
      "numbers": np.array([1.5, 2.0]),
      "unused": object(),
    }
  )
  assert record == {
    "prompt": "café?",
    "answer": "12",
    "completion": "so",
    "extras": {"level": "hard", "scores": [1.5, 2.0], "domain_name": "3"},
  }
  assert type(record["extras"]["scores"]) is list


@pytest.mark.parametrize(
  ("fields", "row", "message"),
  [
    (
      {"prompt": "quesiton"},
      {"question": "a", "x": "b"},
      r"no field 'quesiton'; the dataset has \['question', 'x'\]",
    ),
    ({"prompt": "q"}, {"q": 3}, "found 'prompt' = 3; need a string"),
    (
      {"prompt": "q", "answer": "a"},
      {"q": "x", "a": ["1"]},
      r"found 'answer' = \['1'\]; need a string",
    ),
    ({"prompt": "q", "domain": "d"}, {"q": "x"}, r"config.data.domain_key"),
  ],
)
def test_a_wrong_field_is_named(fields, row, message):
  with pytest.raises(ValueError, match=message):
    formats.conversion(fields=fields)(row)


@pytest.mark.parametrize(
  ("format", "raw", "name"),
  [
    (None, {"prompt": "x", "extras": {"kind": "sums"}}, "sums"),
    (None, {"prompt": "x", "kind": b"sums"}, "sums"),
    (None, {"prompt": "x", "kind": 7, "extras": {"domain": "no"}}, "7"),
    ("math", {**MATH, "kind": "hard"}, "hard"),
    (None, {"prompt": "x"}, None),
  ],
)
def test_a_domain_has_the_name_that_a_field_says(format, raw, name):
  record = formats.conversion(format, domain_key="kind")(raw)
  assert record["extras"].get("domain_name") == name
  assert "domain" not in record["extras"]
  assert formats.has_domain(record) == (name is not None)
  with pytest.raises(ValueError, match=r"found the domain 1\.5"):
    formats.conversion(format, domain_key="kind")({**raw, "kind": 1.5})


@pytest.mark.parametrize(
  ("arguments", "message"),
  [
    ({"fields": {"prompt": "a", "level": "b"}}, r"\['level'\]; a record has"),
    ({"fields": {"answer": "a"}}, "lacks 'prompt'"),
    ({"format": "gsm", "fields": {}}, "unknown format 'gsm'"),
    ({"format": "math", "fields": {"prompt": "p"}}, "leave one of the two"),
  ],
)
def test_a_wrong_conversion_is_refused(arguments, message):
  with pytest.raises(ValueError, match=message):
    formats.conversion(**arguments)


@pytest.mark.parametrize(
  "arguments", [{}, {"fields": {"prompt": "q"}}, {"images": ("image",)}]
)
def test_a_video_is_refused_unless_something_reads_the_field(arguments):
  row = {("q" if "fields" in arguments else "prompt"): "x"}
  row |= {"image": "a.png"} if "images" in arguments else {}
  for name in ("video", "videos"):
    with pytest.raises(
      ValueError, match=f"found a video in the field '{name}'; prompts show"
    ):
      formats.conversion(**arguments)({**row, name: "a.mp4"})
  assert formats.conversion(images=("videos",))(
    {"prompt": "x", "videos": ["1.png", "2.png"]}
  )["pictures"] == (["path", "1.png"], ["path", "2.png"])
  kept = {"prompt": "q", "extras": {"clip": "video"}}
  record = formats.conversion(fields=kept)({"q": "x", "video": "a.mp4"})
  assert record["extras"] == {"clip": "a.mp4"}


def test_math_problems_have_the_answer_of_their_box():
  record = formats.math_record(MATH)
  assert record == {
    "prompt": "What is $1+1$?",
    "answer": "2",
    "completion": r"It is $1+1=\boxed{2}$.",
    "extras": {"level": 3, "type": "Number Theory", "domain": 4},
  }
  assert isinstance(record["extras"]["domain"], np.int32)
  # MATH-500 has other names, and the answer beside the solution.
  row = {"problem": "p", "solution": "no box", "answer": "7", "level": 5}
  record = formats.math_record({**row, "subject": "Algebra"})
  assert record["answer"] == "7"
  assert record["extras"] == {"level": 5, "type": "Algebra", "domain": 0}
  assert (
    formats.math_record({**MATH, "level": "Level ?"})["extras"]["level"] == 0
  )


@pytest.mark.parametrize(
  ("changes", "message"),
  [
    (
      {"solution": "none"},
      r"'none' has no '\\boxed{…}', and there is no field",
    ),
    ({"type": "Topology"}, "'Topology'; known are Algebra, Counting"),
    ({"level": "hard"}, "'level' = 'hard'; need 'Level 3'"),
    ({"solution": 3}, "'solution' = 3; need a string"),
  ],
)
def test_a_wrong_math_problem_is_refused(changes, message):
  with pytest.raises(ValueError, match=message):
    formats.math_record({**MATH, **changes})
  with pytest.raises(ValueError, match=r"\['level'\]; need 'problem' and"):
    formats.math_record({"level": 3})


@pytest.mark.parametrize(
  ("text", "answer"),
  [
    (r"\boxed{\frac{1}{2}} then \boxed{ \{3\} } ", r" \{3\} "),
    (r"\boxed{1} and \boxed{2", "1"),
    (r"\boxed{\text{\boxed{4}}}", "4"),
    (r"\fbox{5}.", "5"),
    (r"so $\boxed 6$.", "6"),
    (r"so $\boxed\frac{1}{2}$", r"\frac"),
    (r"\boxedx{7}", None),
    ("7", None),
  ],
)
def test_gold_boxes(text, answer):
  assert formats.gold_box(text) == answer
  if answer is not None and re.search(r"\\boxed\{", text):
    assert answers.last_boxed(text) == answer


USER = {"role": "user", "content": "Hi?"}
SYSTEM = {"role": "system", "content": "Be brief."}
NO = {"rejected": "No"}


def said(text):
  return {"role": "assistant", "content": text}


@pytest.mark.parametrize(
  "row",
  [
    {"prompt": "Hi?", "chosen": "Yes", "rejected": "No"},
    {"prompt": "Hi?", "chosen": [USER, said("Yes")], "rejected": [said("No")]},
    {"prompt": [USER], "chosen": [said("Yes")], "rejected": [said("No")]},
    {"chosen": [USER, said("Yes")], "rejected": [USER, said("No")], "id": 3},
  ],
)
def test_pairs_are_texts_or_chats(row):
  assert formats.pair_record(row) == {
    "prompt": "Hi?",
    "answer": "",
    "completion": "Yes",
    "rejected": "No",
    "extras": {},
  }


def test_a_system_message_of_a_pair_is_asked_too():
  both = [SYSTEM, USER]
  row = {"prompt": "Hi?", "chosen": [*both, said("Yes")], **NO}
  assert formats.pair_record(row)["prompt"].messages == both


@pytest.mark.parametrize(
  ("row", "message"),
  [
    ({"chosen": "a"}, r"\['chosen'\]; need 'prompt', 'chosen' and 'rejected'"),
    ({"chosen": "a", "rejected": "b"}, "found no 'prompt'"),
    ({"prompt": "p", "chosen": "a", "rejected": "a"}, "nothing is preferred"),
    ({"prompt": "p", "chosen": [USER], "rejected": "b"}, "need one of 'assist"),
    ({"prompt": "p", "chosen": 3, "rejected": "b"}, "'chosen' = 3; need a str"),
    (
      {"prompt": [USER, said("x")], "chosen": "a", "rejected": "b"},
      "'prompt' whose last message is the assistant's",
    ),
    (
      {"chosen": [USER, said("a")], "rejected": [said("x"), said("b")]},
      "found no 'prompt'",
    ),
    # The chats answer another question.
    (
      {"prompt": "Ho?", "chosen": [USER, said("a")], "rejected": "b"},
      r"begins with \[.*Hi\?.*, and another 'prompt'",
    ),
    (
      {"prompt": [said("Ho"), USER], "chosen": [USER, said("a")], **NO},
      "or a chat that begins with the reply",
    ),
  ],
)
def test_a_wrong_pair_is_refused(row, message):
  with pytest.raises(ValueError, match=message):
    formats.pair_record(row)
