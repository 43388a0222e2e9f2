"""Rewards for structured answers, by their trees, tokens and syntax.

If an answer is code, a single wrong token among hundreds makes it wrong. These
rewards measure the distance to the gold answer, `answer` of the record:

    config.rewards.functions = ("tree_similarity", "token_similarity", "parses")
    config.rewards.weights = (0.5, 0.3, 0.2)
    config.rewards.options = {
      "tree_similarity": {"language": "python"},
      "parses": {"language": "python"},
    }

Their weighted sum is 1 for the gold answer. The weights are ours: P4IR's reward
(arXiv:2606.22402) is known to have both distances, and no more is known of it.

Languages: "python", and "expression": one list `(head item …)`, whose head is
an atom, and whose items are atoms and lists.
"""

from __future__ import annotations

import ast
import re
import warnings
from typing import Any, NamedTuple

import numpy as np

from grpo_jax.rewards import gym, registry

LANGUAGES = ("expression", "python")
# Larger trees, and texts longer than this and the gold answer, have 0.
_MAX_NODES = 2000
_MAX_TOKENS = 2000
# Most rows of tables in a comparison, a few microseconds each.
_MAX_WORK = 200_000


class Tree(NamedTuple):
  """An ordered tree, with its nodes in postorder.

  Attributes:
    labels: Labels of the nodes; the root is the last.
    first: Place of the leftmost leaf below each node.
  """

  labels: list[str]
  first: np.ndarray  # [N] int

  @property
  def keyroots(self) -> np.ndarray:
    """The last node of each set with one leftmost leaf, in ascending order."""
    last = {leaf: place for place, leaf in enumerate(self.first.tolist())}
    return np.array(sorted(last.values()))


@registry.of_rows
def tree_similarity(
  completion: str, extra: dict, *, language: str = "expression"
) -> float:
  """1 − edits / nodes of the larger tree, of the answer and the gold answer.

  Edits are insertions, deletions and renamings of nodes of ordered trees, and
  cost 1 each. The similarity is 0 for an answer that does not parse, that takes
  more than some seconds to compare, or that has more than 2000 nodes. A gold
  answer that is so large is an error: nothing could be as near as the gold
  answer itself.

  Args:
    completion: A text; without tags and boxes all of it is the answer.
    extra: Has `answer`, a text of the language.
    language: One of `LANGUAGES`.

  Raises:
    ValueError: The gold answer does not parse or is too large, or the language
      is unknown.

  Source: Zhang and Shasha, SIAM J. Comput. 18(6), 1989; P4IR, arXiv:2606.22402.
  """
  gold = parse(extra["answer"], language)
  if gold is None:
    raise ValueError(
      f"tree_similarity: the gold answer {extra['answer']!r:.80} is no"
      f" {language}; name its language by config.rewards.options ="
      f" {{'tree_similarity': {{'language': …}}}}, one of {LANGUAGES}."
    )
  if _work(gold, gold) > _MAX_WORK:
    raise ValueError(
      f"tree_similarity: the gold answer {extra['answer']!r:.80} has"
      f" {len(gold.labels)} nodes, and takes too long to compare; leave out the"
      " record (some 300 nodes are compared)."
    )
  answer = gym.answer_of(completion)
  tree = None if answer is None else parse(answer, language)
  return 0.0 if tree is None else _similarity(tree, gold)


@registry.of_rows
def token_similarity(completion: str, extra: dict) -> float:
  """1 − edits / tokens of the longer one, of the answer and the gold answer.

  Tokens are words, numbers and single signs, without white space. Edits are
  insertions, deletions and replacements. An answer of more than 2000 tokens,
  and of more than the gold answer has, has 0.

  Source: Levenshtein, 1966; P4IR, arXiv:2606.22402.
  """
  tokens, gold = (
    re.findall(r"\w+|[^\w\s]", x or "")
    for x in (gym.answer_of(completion), extra["answer"])
  )
  longest = max(len(tokens), len(gold))
  near = 0 < len(tokens) <= max(_MAX_TOKENS, len(gold)) or not longest
  apart = levenshtein(tokens, gold) if near else longest
  return 1 - apart / max(longest, 1)


@registry.of_rows
def parses(completion: str, *, language: str = "expression") -> float:
  """1 if the answer, as in `tree_similarity`, is of the language, else 0."""
  code = gym.answer_of(completion)
  return float(code is not None and parse(code, language) is not None)


def levenshtein(a: list[str], b: list[str]) -> int:
  """Returns the least number of edits from a to b.

  Edits are insertions, deletions and replacements.
  """
  numbers = {x: i for i, x in enumerate(dict.fromkeys((*a, *b)))}
  place = np.arange(len(b) + 1)
  other, row = np.array([numbers[x] for x in b], int), place
  for x in a:
    aligned = np.minimum(row[1:] + 1, row[:-1] + (other != numbers[x]))
    row = _with_insertions(np.concatenate([row[:1] + 1, aligned]), place)
  return int(row[-1])


def _with_insertions(best: np.ndarray, place: np.ndarray) -> np.ndarray:
  """Returns the least of best_k + (j − k) over k ≤ j, for each j."""
  return np.minimum.accumulate(best - place) + place


def distance(a: Tree, b: Tree) -> int:
  """Returns the least number of edits from a to b, by Zhang and Shasha."""
  numbers = {x: i for i, x in enumerate(dict.fromkeys(a.labels + b.labels))}
  of_a, of_b = (np.array([numbers[x] for x in t.labels]) for t in (a, b))
  apart = np.zeros((len(of_a), len(of_b)), int)  # Distances of subtrees.
  for i in a.keyroots:
    for j in b.keyroots:
      left, above = a.first[i], b.first[j]
      columns = slice(above, j + 1)
      is_tree = b.first[columns] == above
      before = b.first[columns] - above
      place = np.arange(j - above + 2)
      rows = [place]  # Row k: the first k nodes from `left` on.
      for x in range(left, i + 1):
        match_cost = rows[a.first[x] - left][before] + apart[x, columns]
        if a.first[x] == left:
          rename_cost = rows[-1][:-1] + (of_b[columns] != of_a[x])
          match_cost = np.where(is_tree, rename_cost, match_cost)
        best = np.minimum(rows[-1][1:] + 1, match_cost)
        best = np.concatenate([rows[-1][:1] + 1, best])
        rows.append(_with_insertions(best, place))
        if a.first[x] == left:
          apart[x, columns] = np.where(is_tree, rows[-1][1:], apart[x, columns])
  return int(apart[-1, -1])


def _similarity(tree: Tree, gold: Tree) -> float:
  if _work(tree, gold) > _MAX_WORK:
    return 0.0
  larger = max(len(tree.labels), len(gold.labels))
  return max(1 - distance(tree, gold) / larger, 0.0)


def _work(tree: Tree, gold: Tree) -> int:
  """The number of rows of tables in a comparison."""
  sizes = tree.keyroots - tree.first[tree.keyroots] + 1
  return int(sizes.sum()) * len(gold.keyroots)


def parse(text: str, language: str) -> Tree | None:
  """Returns the tree of a text; None if it does not parse or is too large.

  Raises:
    ValueError: The language is unknown.
  """
  if language not in LANGUAGES:
    raise ValueError(
      f"config.rewards.options: language={language!r}; needs one of"
      f" {LANGUAGES}."
    )
  root = _python(text) if language == "python" else _expression(text)
  return None if root is None else _postorder(root)


Nested = tuple[str, list[Any]]  # A label, and the nodes below it.


def _expression(text: str) -> Nested | None:
  """Returns `(head item …)` as nested pairs; a list has its head as label."""
  root: tuple[str | None, list[Any]] = ("", [])
  open_lists = [root]
  for piece in re.findall(r"[()]|[^\s()]+", text):
    label, below = open_lists[-1]
    is_done = len(open_lists) == 1 and below
    if label is None and piece not in "()":  # The head of a list.
      open_lists[-1] = (piece, below)
      open_lists[-2][1][-1] = open_lists[-1]
    elif label is None or is_done:
      return None
    elif piece == "(":
      open_lists.append((None, []))
      below.append(open_lists[-1])
    elif len(open_lists) == 1:
      return None
    elif piece == ")":
      open_lists.pop()
    else:
      below.append((piece, []))
  return root[1][0] if len(open_lists) == 1 and root[1] else None


def _python(text: str) -> Nested | None:
  """Returns the syntax tree of a module; labels have names and constants."""
  try:
    with warnings.catch_warnings():
      warnings.simplefilter("ignore")
      module = ast.parse(text.strip())
  except (SyntaxError, ValueError, RecursionError, MemoryError):
    return None
  root: Nested = (_label(module), [])
  rest: list[tuple[ast.AST, list[Any]]] = [(module, root[1])]
  while rest:
    node, below = rest.pop()
    for child in ast.iter_child_nodes(node):
      if not isinstance(child, ast.expr_context):
        below.append((_label(child), []))
        rest.append((child, below[-1][1]))
  return root if root[1] else None


def _label(node: ast.AST) -> str:
  own = [
    # Python writes no decimal number of more than 4300 digits.
    (hex(value),) if type(value) is int else value
    for _, value in ast.iter_fields(node)
    if not isinstance(value, (ast.AST, list)) and value is not None
  ]
  return f"{type(node).__name__}{own or ''}"


def _postorder(root: Nested) -> Tree | None:
  """Returns a tree in postorder; None if it has too many nodes."""
  labels: list[str] = []
  first: list[int] = []
  # A node is met twice: on the way down, and after all nodes below it.
  rest: list[tuple[Nested, int | None]] = [(root, None)]
  while rest:
    (label, below), start = rest.pop()
    if start is None:
      rest.append(((label, below), len(labels)))
      rest.extend((child, None) for child in reversed(below))
      continue
    labels.append(label)
    first.append(start)
    if len(labels) > _MAX_NODES:
      return None
  return Tree(labels, np.array(first))
