"""Problems of reasoning-gym, made alike in every process.

    made = gym.problem("gcd", "{}", None, 7)
    made.entry["question"], made.score("12")

A problem is a function of (dataset, settings, level, seed). So the process that
scores an answer makes the problem anew and needs no copy of it. `data` and
`rewards` import this module; it imports neither.

Some datasets have Python evaluate an answer, which could then be any program.
Here it is a literal, or an expression of numbers, single letters and functions
of mathematics; anything else is not an answer.

Source: Stojanovski et al., "Reasoning Gym: Reasoning Environments for
Reinforcement Learning with Verifiable Rewards", arXiv:2505.24760.
"""

from __future__ import annotations

import ast
import dataclasses
import difflib
import functools
import json
import re
import sys
import threading
from typing import Any

# Seeds of problems are below this: one of the datasets seeds NumPy's old
# generator, which takes no more than 32 bits.
MAX_SEED = 2**31

# Datasets that read files when they begin, which takes up to half a second.
# One object of such a dataset makes all its problems. This is possible because
# a problem depends on the object's seed alone, which is not true of all
# datasets (`gym_test.py`).
RESEEDED = (
  *("arc_agi", "caesar_cipher", "codeio", "emoji_mystery", "figlet_font"),
  *("group_anagrams", "letter_counting", "letter_jumble", "n_queens"),
  *("rush_hour", "sentence_reordering", "spell_backward", "word_ladder"),
  *("word_sequence_reversal", "word_sorting"),
)
# Streams make problems in threads of their own, and a dataset may draw from
# NumPy's generator of the whole process.
_making = threading.Lock()

# Datasets that have Python read an answer as a list.
_LITERALS = ("binary_matrix", "n_queens", "spiral_matrix", "string_insertion")
_FUNCTIONS = (
  "sqrt|exp|log|ln|erf|[Aa]bs|a?(?:sin|cos|tan|sec|csc|cot)h?|sign|factorial"
)
# The parts of an expression: no texts, no attributes, and calls of nothing but
# these functions. Parts are not given up again: the time is linear.
_EXPRESSION = re.compile(
  r"(?:\s|[-+*/^!(]|\)(?!\s*\()|(?:\d++\.?\d*+|\.\d++)(?:[eE][-+]?\d++)?"
  rf"|(?:{_FUNCTIONS})(?=\s*\()|(?:pi|[A-Za-z])(?![A-Za-z_]|\s*\())*+"
)
# Whole numbers with the four operators of such puzzles.
_ARITHMETIC = re.compile(r"(?:[-+()\s\d]|\*(?!\*)|/(?!/))*+")
# Datasets that have sympy evaluate an answer, or compare it as a number, for
# which "nan" is at no distance from any other.
_EXPRESSIONS = {
  "complex_arithmetic": _EXPRESSION,
  "countdown": _ARITHMETIC,
  "intermediate_integration": _EXPRESSION,
  "polynomial_multiplication": _EXPRESSION,
  "puzzle24": _ARITHMETIC,
  "simple_integration": _EXPRESSION,
}


@dataclasses.dataclass(frozen=True)
class GymProblem:
  """A problem with its dataset.

  Attributes:
    name: Name of the dataset.
    dataset: A dataset of reasoning-gym with this problem alone in it.
    entry: The problem's `question`, `answer` (text, or None) and `metadata`.
  """

  name: str
  dataset: Any
  entry: dict[str, Any]

  def score(self, answer: str) -> float:
    """Returns the dataset's score of an answer, usually in [0, 1]."""
    pattern = _EXPRESSIONS.get(self.name)
    if pattern is _ARITHMETIC:  # Ends a sentence, not a number.
      answer = answer.strip().removesuffix(".")
    if pattern is not None and not pattern.fullmatch(answer):
      answer = ""
    if self.name == "puzzle24" and not self._makes_24(answer):
      answer = ""
    return float(self.dataset.score_answer(answer, self.entry))

  def _makes_24(self, answer: str) -> bool:
    """Returns True if an expression of the problem's own numbers is 24.

    The dataset takes any four numbers, as 6 + 6 + 6 + 6, and 49 / 2 for 24.
    """
    from sympy.parsing import sympy_parser  # reasoning-gym needs it, too.

    used = sorted(map(int, re.findall(r"\d{1,9}", answer)))
    if used != sorted(self.entry["metadata"]["numbers"]):
      return False
    try:
      return float(sympy_parser.parse_expr(answer)) == 24
    except Exception:  # Of any type: not an expression.
      return False


def _factory() -> Any:
  try:
    import reasoning_gym
  except ImportError as error:
    raise ImportError(
      "reasoning-gym: the package is not installed; run"
      " `pip install 'grpo-jax[gym]'`."
    ) from error
  return reasoning_gym.factory


def names() -> tuple[str, ...]:
  """Returns the names of all datasets, in alphabetical order.

  Raises:
    ImportError: reasoning-gym is not installed.
  """
  return tuple(sorted(_factory().DATASETS))


def check(name: str, settings: str, level: int | None) -> None:
  """Raises unless the dataset exists and accepts the settings.

  Args:
    name: The name of the dataset.
    settings: A JSON object with fields of the dataset's config.
    level: Level of difficulty, as in `problem`.

  Raises:
    ImportError: reasoning-gym is not installed.
    ValueError: The dataset, a setting, its value or the level does not exist.
      For a name, the message lists those that exist.
  """
  factory = _factory()
  if name not in factory.DATASETS:
    matches = difflib.get_close_matches(name, factory.DATASETS, n=1)
    hint = f" (did you mean {matches[0]!r}?)" if matches else ""
    raise ValueError(
      f"reasoning-gym: there is no dataset {name!r}{hint}; choose one of"
      f" {', '.join(names())}."
    )
  settings_class = _factory().DATASETS[name][1]
  fields = [field.name for field in dataclasses.fields(settings_class)]
  allowed = [field for field in fields if field not in ("seed", "size")]
  if unknown := json.loads(settings).keys() - {*allowed}:
    raise ValueError(
      f"reasoning-gym: the dataset {name!r} has no settings"
      f" {sorted(unknown)}; it has {', '.join(allowed)}."
    )
  if level is not None and not factory.has_curriculum(name):
    raise ValueError(
      f"reasoning-gym: the dataset {name!r} has no levels of difficulty; give"
      " its 'settings' instead."
    )
  try:
    _dataset(name, settings, level, 0)
  except Exception as error:  # Of any type: datasets assert what they need.
    raise ValueError(
      f"reasoning-gym: the dataset {name!r} refuses the settings {settings}:"
      f" {error} ({type(error).__name__})."
    ) from error


@functools.lru_cache(maxsize=64)  # The rows of a group follow each other.
def problem(
  name: str, settings: str, level: int | None, seed: int
) -> GymProblem:
  """Makes one problem of a dataset of reasoning-gym.

  Args:
    name: The name of the dataset.
    settings: A JSON object with fields of the dataset's config.
    level: Level of difficulty, from 0 on, of everything that the dataset's
      curriculum can change. An attribute with fewer levels has its last one.
      Settings override the level. None: the defaults.
    seed: The seed, in [0, `MAX_SEED`).

  Raises:
    ImportError: reasoning-gym is not installed.
    ValueError: The dataset cannot make the problem.
  """
  try:
    with _making:
      if name in RESEEDED:
        dataset = _cached(name, settings, level)
        dataset.seed = seed
      else:
        dataset = _dataset(name, settings, level, seed)
      return GymProblem(name, dataset, dataset[0])
  except ImportError:
    raise
  except Exception as error:
    raise ValueError(
      f"reasoning-gym: the dataset {name!r} with the settings {settings} and"
      f" the seed {seed} makes no problem: {error} ({type(error).__name__})."
    ) from error


@functools.lru_cache(maxsize=16)
def _cached(name: str, settings: str, level: int | None) -> Any:
  """Returns a dataset whose seed is set anew for each problem."""
  return _dataset(name, settings, level, 0)


def _dataset(name: str, settings: str, level: int | None, seed: int) -> Any:
  """Makes the dataset whose only problem has this seed."""
  # A dataset of size 1 for each problem: most make problem i from seed + i, so
  # two seeds would share their problems, and some draw all when they begin.
  fields = {**json.loads(settings), "seed": seed, "size": 1}
  factory = _factory()
  if level is not None:
    curriculum = factory.create_curriculum(name)
    for attribute in curriculum.attributes.values():
      last = len(attribute.levels) - 1
      curriculum.set_attr_level(attribute.name, min(level, last))
    harder = curriculum.generate_configuration({"seed": seed, "size": 1})
    fields = {**vars(harder), **fields}
  made = factory.create_dataset(name, **fields)
  if name in _LITERALS:
    module = sys.modules[type(made).__module__]
    vars(module)["eval"] = ast.literal_eval
  return made
