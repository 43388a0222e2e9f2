"""Rewards for boxes, counts and choices: known answers, COCO, hostile texts."""

import json
import pathlib
import re
import time

import hypothesis
import pytest
from hypothesis import strategies as st

from grpo_jax.rewards import registry, vision

REFERENCES = pathlib.Path(__file__).parent / "coco_references.json"
FORMAT = re.compile(
  r"<think>.*?</think>\s*<answer>.*?\{.*\[\d+,\s*\d+,\s*\d+,\s*\d+\].*\}.*?"
  r"</answer>",
  re.DOTALL,
)


def score(name, text, answer, **options):
  function = registry.load_function(name)
  (found,) = function(["?"], [text], [0], [{"answer": answer}], **options)
  return found


def objects(*found):
  """Objects as JSON: (box, label)."""
  return json.dumps([{"bbox_2d": box, "label": label} for box, label in found])


@pytest.mark.parametrize(
  ("one", "other", "expected"),
  [
    ((0, 0, 2, 2), (1, 1, 3, 3), 1 / 7),  # 1 of 4 + 4 - 1.
    ((0, 0, 2, 2), (0, 0, 2, 2), 1.0),
    ((0, 0, 2, 2), (0, 0, 2, 4), 0.5),
    ((0, 0, 1, 1), (2, 2, 3, 3), 0.0),
    ((0, 0, 1, 1), (1, 0, 2, 1), 0.0),  # They share an edge.
    ((1, 1, 1, 1), (1, 1, 1, 1), 0.0),  # A point.
    ((0, 0, 2, 0), (0, 0, 2, 0), 0.0),  # A line.
    ((2, 2, 0, 0), (0, 0, 2, 2), 0.0),  # Corners in the wrong order.
    ((-2, -2, 0, 0), (-1, -1, 1, 1), 1 / 7),
  ],
)
def test_known_indices(one, other, expected):
  assert vision.iou(one, other) == pytest.approx(expected, abs=1e-15)
  assert vision.iou(other, one) == vision.iou(one, other)
  text = f"<answer>{list(one)}</answer>"
  found = score("box_iou", text, list(other))
  assert found == pytest.approx(expected, abs=1e-15)


def test_the_threshold_of_an_index_is_not_enough():
  text = "<answer>[0, 0, 2, 2]</answer>"
  assert score("box_iou", text, [0, 0, 2, 4], threshold=0.5) == 0.0
  assert score("box_iou", text, [0, 0, 2, 4], threshold=0.49) == 1.0


@pytest.mark.parametrize(
  ("text", "expected"),
  [
    ("<think>[9, 9, 10, 10]</think><answer>{'bbox': [0,0,2,2]}</answer>", 1.0),
    ("the box is [ 0 , 0.0, 2, 2.0 ]", 1.0),
    ("<answer>[0,0,2,2] or [0, 0, 2, 2]</answer>", 1.0),  # The same.
    ("<answer>[0,0,2,2] or [1, 1, 3, 3]</answer>", 0.0),
    ("<answer>0, 0, 2, 2</answer>", 0.0),
    ("<answer>[0, 0, 2]</answer>", 0.0),
    ("<answer>[0, 0, 2, 2, 2]</answer>", 0.0),
    ("<answer>[0, 0, NaN, 2]</answer>", 0.0),
    ("<answer>[0, 0, 1e3, 2]</answer>", 0.0),
    ("<answer>[0, 0, 9999999, 9999999]</answer>", 0.0),
    ("", 0.0),
    ("<answer>[0, 0, 2, 2]", 0.0),
  ],
)
def test_how_a_box_is_read(text, expected):
  assert score("box_iou", text, "[0, 0, 2, 2]") == expected


def test_average_precision_is_that_of_coco():
  for found, gold, mean, at_half in json.loads(REFERENCES.read_text()):
    ours, theirs = (
      vision.detections_of(
        [{"bbox_2d": one[:4], "label": one[4]} for one in side]
      )
      for side in (found, gold)
    )
    said = vision.average_precision(ours, theirs)
    assert said == pytest.approx(mean, abs=1e-12)
    said = vision.average_precision(ours, theirs, (0.5,))
    assert said == pytest.approx(at_half, abs=1e-12)


CAT, DOG = ([0, 0, 10, 10], "cat"), ([20, 20, 30, 30], "dog")
FAR = ([80, 80, 90, 90], "cat")


@pytest.mark.parametrize("form", ["{}", "```json\n{}\n```", "Here: ```{}```"])
def test_detections_are_read_alone_or_fenced(form):
  text = f"<think>hm</think><answer>{form.format(objects(CAT, DOG))}</answer>"
  for name in ("detection_map", "detection_score"):
    assert score(name, text, objects(CAT, DOG)) == pytest.approx(1.0)


def test_more_objects_than_there_are_cost():
  gold = objects(CAT)
  values = [
    score("detection_map", objects(CAT, *[FAR] * n), gold) for n in range(6)
  ]
  # The right one is first, so that the precision itself stays 1.
  assert values == pytest.approx([1 / (1 + n) for n in range(6)])
  many = objects(CAT, *[FAR] * 99)
  assert score("detection_map", many, gold) == pytest.approx(0.01)
  assert score("detection_map", many, gold, length_factor=False) == 1.0
  # 0.7 · 1 + 0.3 · (1 − (0 + 99/100) / 2)
  expected = 0.7 + 0.3 * (1 - 0.99 / 2)
  assert score("detection_score", many, gold) == pytest.approx(expected)


def test_the_parts_of_the_detection_score():
  half = ([0, 0, 10, 20], "dog")  # The index with the cat is 1/2.
  text, gold = objects(half, FAR), objects(CAT, DOG)
  # One pair: position ½ / 2, label 0 / 2, completeness 1 − (½ + ½) / 2.
  expected = {"position": 0.25, "label": 0.0, "completeness": 0.5}
  nothing = dict.fromkeys(expected, 0.0)
  for name, value in expected.items():
    found = score("detection_score", text, gold, **{**nothing, name: 2.0})
    assert found == pytest.approx(value)
  usual = 0.7 * 0.25 + 0.3 * 0.5
  assert score("detection_score", text, gold) == pytest.approx(usual)
  with pytest.raises(ValueError, match=r"weights are \(0.0, 0.0, 0.0\)"):
    score("detection_score", text, gold, **nothing)


def test_labels_matter_to_the_precision_and_not_to_pairs():
  text, gold = objects((CAT[0], "dog")), objects(CAT)
  assert score("detection_map", text, gold) == 0.0
  assert score("detection_score", text, gold) == pytest.approx(1.0)
  assert score("detection_score", text, gold, label=1.0) == pytest.approx(0.5)


HOSTILE = (
  "",
  "[" * 20_000,
  "[[" * 9_000 + "]]" * 900,
  '[{"bbox_2d": ' * 1_000,
  "[" + "9" * 19_000 + ", 0, 1, 1]",
  '[{"bbox_2d": [NaN, 0, 1, 1], "label": "cat"}]',
  '[{"bbox_2d": [-Infinity, 0, Infinity, 1], "label": "cat"}]',
  '[{"bbox_2d": [1e999, 0, 1, 1], "label": "cat"}]',
  '[{"bbox_2d": [1e308, -1e308, 1e308, 1e308], "label": "cat"}]',
  '[{"bbox_2d": ["0", 0, 1, 1], "label": "cat"}]',
  '[{"bbox_2d": [true, 0, 1, 1], "label": "cat"}]',
  '[{"bbox_2d": {"x": 1}, "label": ["cat"]}, null, 3, "x", [[]]]',
  '{"bbox_2d": [0, 0, 0, 0]}',
  "<answer>" * 5_000,
  "<answer>" + "[1, 1, 1, " * 1_900 + "</answer>",
  "<answer>" + " " * 19_000 + "[0,0,2,2",
  "<think></think>" * 2_000 + "<answer>" * 2_000 + "{[1,1,1,1]" * 2_000,
  "</think> " * 3_000 + "\n" * 30_000,
  "1" * 100_000,
  "-" * 100_000,
  "A" * 100_000,
  "no " * 40_000,
  "\x00\ud800",
)


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_texts_have_nothing_and_take_no_time(text):
  golds = {
    "box_iou": [0, 0, 2, 2],
    "box_format": "",
    "detection_map": objects(CAT),
    "detection_score": objects(CAT),
    "counting": 3,
    "numeric": 3,
    "choice": "B",
    "yes_no": "yes",
  }
  start = time.process_time()
  for wrapped in (text, f"<answer>{text}</answer>"):
    for name, gold in golds.items():
      assert score(name, wrapped, gold) == 0.0
  assert time.process_time() - start < 1.0


def test_many_objects_take_no_time():
  gold = objects(*[([i, 0, i + 1, 1], "cat") for i in range(0, 200, 2)])
  text = objects(*[([i, 0, i + 1, 1], "c") for i in range(400)])
  assert len(text) < vision.MAX_CHARS
  start = time.process_time()
  for name in ("detection_map", "detection_score"):
    assert 0.0 <= score(name, text, gold) < 1.0
  assert time.process_time() - start < 2.0


@pytest.mark.parametrize(
  ("name", "text", "gold", "expected"),
  [
    ("counting", "<answer>3</answer>", 3, 1.0),
    ("counting", "<answer> There are 3 cats. </answer>", "3", 1.0),
    ("counting", "<answer>3 or 4</answer>", 3, 0.0),
    ("counting", "<answer>3.0</answer>", 3, 0.0),
    ("counting", "<answer>three</answer>", 3, 0.0),
    ("counting", "<answer>-3</answer>", 3, 0.0),
    ("counting", "<answer>33</answer>", 3, 0.0),
    ("numeric", r"<answer>\frac12</answer>", 0.5, 1.0),
    ("numeric", "<answer>0.5001</answer>", "0.5", 0.0),
    ("numeric", "<answer>1,000</answer>", 1000, 1.0),
    ("numeric", "<answer>NaN</answer>", 1000, 0.0),
    ("numeric", "<answer>5 km</answer>", "5 cm", 0.0),
    *(("numeric", f"<answer>{x}</answer>", "5 cm", 1.0) for x in ("5", "5cm")),
    ("numeric", "<answer>5 apples</answer>", 5, 1.0),
    ("choice", "<answer>B</answer>", "B", 1.0),
    ("choice", "<answer>(B) A cat</answer>", "B.", 1.0),
    ("choice", "<answer>The answer is B</answer>", "(B)", 1.0),
    ("choice", "<answer>A cat</answer>", "A", 1.0),
    ("choice", "<answer>b</answer>", "B", 0.0),
    ("choice", "<answer>A or B</answer>", "B", 0.0),
    ("choice", "<answer>ABCD</answer>", "B", 0.0),
    ("choice", "<answer>I'd say B</answer>", "B", 1.0),
    ("yes_no", "<answer>Yes, it is.</answer>", "yes", 1.0),
    ("yes_no", "<answer>no</answer>", False, 1.0),
    ("yes_no", "<answer>yes and no</answer>", "yes", 0.0),
    ("yes_no", "<answer>I know</answer>", "no", 0.0),
  ],
)
def test_counts_numbers_and_choices(name, text, gold, expected):
  assert score(name, text, gold) == expected


def test_numbers_may_be_near():
  assert score("numeric", "<answer>10.4</answer>", 10, absolute=0.5) == 1.0
  assert score("numeric", "<answer>10.6</answer>", 10, absolute=0.5) == 0.0
  assert score("numeric", "<answer>-10.4</answer>", -10, relative=0.05) == 1.0
  assert score("numeric", "<answer>-10.6</answer>", -10, relative=0.05) == 0.0


@pytest.mark.parametrize(
  ("name", "gold"),
  [
    ("box_iou", "no box"),
    ("box_iou", [0, 0, 1]),
    ("detection_map", "[]"),
    ("detection_score", [3]),
    ("detection_score", objects(([1, 1, 1, 2], "cat"))),
    ("counting", "many"),
    ("numeric", "x"),
    ("choice", "none of them"),
    ("yes_no", "perhaps"),
  ],
)
def test_a_gold_answer_that_is_none_raises(name, gold):
  with pytest.raises(ValueError, match="gold"):
    score(name, "<answer>1</answer>", gold)


def test_another_field_of_the_record():
  extras = [{"answer": "", "box": [0, 0, 2, 2]}]
  call = ["?"], ["[0, 0, 2, 2]"], [0], extras
  assert vision.box_iou(*call, field="box") == [1.0]
  with pytest.raises(KeyError, match="the record has no 'gold'"):
    vision.box_iou(*call, field="gold")


_PIECES = (
  *("<think>", "</think>", "<answer>", "</answer>", "{", "}", " ", "\n", "x"),
  *("[1,2,3,4]", "[1, 2,\n3, 44]", "[1,2,3]"),
)


@hypothesis.settings(max_examples=200)
@hypothesis.given(st.lists(st.sampled_from(_PIECES), max_size=14))
def test_the_form_of_boxes_is_that_of_the_expression(pieces):
  text = "".join(pieces)
  expected = float(FORMAT.search(text) is not None)
  assert score("box_format", text, "") == expected


def test_a_good_form():
  text = '<think>a</think>\n<answer>{"box": [1, 2, 3, 4]}</answer>'
  assert score("box_format", text, "") == 1.0
  assert score("box_format", text.replace("}", ""), "") == 0.0
