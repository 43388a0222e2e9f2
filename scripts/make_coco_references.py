"""Writes tests/rewards/coco_references.json: mean average precision of boxes.

    python scripts/make_coco_references.py

in an environment with pycocotools, which the package itself does not need. Each
case is an image with gold and found objects, all of one score, and the result
of COCO's own evaluation: over all thresholds, and at 0.5.
"""

import contextlib
import io
import json
import pathlib
import random

from pycocotools import coco, cocoeval

PATH = pathlib.Path(__file__).parents[1] / "tests/rewards/coco_references.json"
CASES = 24


def box(rng):
  x, y = rng.randint(0, 60), rng.randint(0, 60)
  return [x, y, x + rng.randint(5, 40), y + rng.randint(5, 40)]


def near(rng, one):
  left, top, right, bottom = (value + rng.randint(-4, 4) for value in one)
  return [left, top, max(right, left + 1), max(bottom, top + 1)]


def case(rng):
  """Draws objects, some of which are missed, doubled, misnamed or made up."""
  labels = ["cat", "dog", "bird"][: rng.randint(1, 3)]
  gold = [[*box(rng), rng.choice(labels)] for _ in range(rng.randint(1, 6))]
  found = []
  for *one, label in gold:
    if rng.random() < 0.8:
      said = label if rng.random() < 0.85 else rng.choice(labels)
      found.append([*near(rng, one), said])
    if rng.random() < 0.3:
      found.append([*near(rng, one), label])
    if rng.random() < 0.3:
      found.append([*box(rng), rng.choice([*labels, "fish"])])
  rng.shuffle(found)
  return found, gold


def evaluated(found, gold):
  """COCO's average precision: over thresholds from 0.5 to 0.95, and at 0.5."""
  numbers = {}
  for one in gold:
    numbers.setdefault(one[4], len(numbers))

  def described(one, **more):
    left, top, right, bottom, label = one
    size = right - left, bottom - top
    return {
      "image_id": 0,
      "category_id": numbers[label],
      "bbox": [left, top, *size],
      "area": size[0] * size[1],
      **more,
    }

  given = [described(one, score=1.0) for one in found if one[4] in numbers]
  if not given:
    return 0.0, 0.0
  made = coco.COCO()
  made.dataset = {
    "images": [{"id": 0, "width": 2048, "height": 2048}],
    "categories": [{"id": i, "name": name} for name, i in numbers.items()],
    "annotations": [
      described(one, id=i + 1, iscrowd=0) for i, one in enumerate(gold)
    ],
  }
  with contextlib.redirect_stdout(io.StringIO()):
    made.createIndex()
    evaluation = cocoeval.COCOeval(made, made.loadRes(given), "bbox")
    evaluation.evaluate()
    evaluation.accumulate()
    evaluation.summarize()
  return float(evaluation.stats[0]), float(evaluation.stats[1])


def main():
  rng = random.Random(0)
  cases = [case(rng) for _ in range(CASES)]
  only = [10, 10, 40, 40, "cat"]
  # The right one comes too late.
  cases.append(([[50, 50, 60, 60, "cat"]] * 120 + [only], [only]))
  lines = [
    json.dumps([found, gold, *evaluated(found, gold)]) for found, gold in cases
  ]
  PATH.write_text("[\n" + ",\n".join(lines) + "\n]\n")


if __name__ == "__main__":
  main()
