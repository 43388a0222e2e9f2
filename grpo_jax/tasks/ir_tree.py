"""Translating rules into expressions: `qmin3andybelow7` → `(a(gq3)(ly7))`.

Prompt `BOS` and a sentence of one of twelve templates, `=`. The answer is an
expression, a list that begins with an operator. `g` (at least) and `l` (below)
compare an attribute with a digit; an attribute is a letter that no word of a
template has. `a` (and), `o` (or) and `n` (not) combine expressions. Four
templates are not trained on: they combine known words in new ways.

An expression is a tree, so a wrong answer may still be near the right one, in
tokens or in nodes. The scores are P4IR's rewards for regulations as code, on a
small scale.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from grpo_jax.ops import edits
from grpo_jax.tasks import task as task_lib
from grpo_jax.tasks import vocabulary as vocab
from grpo_jax.tasks.task import Example, Extras, Task

# Sentence -> expression; x and y stand for attributes, 1 and 2 for digits.
TEMPLATES = {
  "x min 1": "(gx1)",
  "x below 1": "(lx1)",
  "no x min 1": "(n(gx1))",
  "x min 1 and y min 2": "(a(gx1)(gy2))",
  "x min 1 and y below 2": "(a(gx1)(ly2))",
  "x below 1 or y below 2": "(o(lx1)(ly2))",
  "no x below 1 and y min 2": "(a(n(lx1))(gy2))",
  "if x min 1 then y below 2": "(o(n(gx1))(ly2))",
}
HELD_OUT = {
  "no x below 1": "(n(lx1))",
  "x below 1 and y min 2": "(a(lx1)(gy2))",
  "x min 1 or y below 2": "(o(gx1)(ly2))",
  "if x below 1 then y min 2": "(o(n(lx1))(gy2))",
}
_ALL = [*TEMPLATES.items(), *HELD_OUT.items()]
DOMAINS = ("seen", "unseen")
ATTRIBUTES = "cjkpqsuvz"
OPEN, CLOSE = vocab.encode("()")
GOLD_LEN = max(len(target) for _, target in _ALL)  # Tokens.
GOLD_NODES = max(
  len(re.findall(r"\w", target)) for _, target in _ALL
)  # Nodes of the largest tree.
# Longer answers are not read; the longest right answer has `GOLD_LEN` tokens.
ANSWER_LEN = 20
_SWAPPED = {"g": "l", "l": "g"}


def make(teacher_error: float = 0.0, num_lessons: int = 0) -> Task:
  """Makes the task of rules.

  Scores: "accuracy"; "parses", 1 if the answer is an expression; "tree", 1
  minus the edit distance of the two trees over the size of the larger tree, and
  0 if the answer does not parse; "token", the same for the tokens. "accuracy",
  "tree" and "token" are 1 for the right answer only. Answers of more than 20
  tokens are not read and score 0.

  Half of the test problems have templates that are not trained on; they are the
  domain "unseen", and all others "seen".

  Args:
    teacher_error: Probability with which the teacher confuses a comparison with
      the other one, at each comparison.
    num_lessons: Number of different problems in supervised lessons; 0: no
      limit.
  """
  options = dict(locals())
  caller = "ir_tree.make"
  task_lib.check_ranges(
    caller,
    options,
    teacher_error=(0.0, 1.0),
    num_lessons=(0, 1 << 20),
  )
  draw = task_lib.bound(example, options)

  def lesson(rng: np.random.Generator, split: str) -> Example:
    """Draws one of `num_lessons` examples."""
    return draw(np.random.default_rng(rng.integers(num_lessons)), split)

  return Task(
    name="ir_tree",
    **vocab.of_task(),
    max_prompt_len=2 + max(len(vocab.encode(words)) for words, _ in _ALL),
    max_completion_len=GOLD_LEN + 3,
    example=draw,
    verify=verify,
    verify_numpy=verify_numpy,
    lesson=lesson if num_lessons else None,
    domains=DOMAINS,
  )


class StageRule(NamedTuple):
  """A rule to translate: a template, and what its placeholders stand for.

  Attributes:
    template: Index of the template; held-out templates come last.
    names: Two letters, the attributes in the place of x and y.
    digits: Two digits, in the place of 1 and 2.
  """

  template: int
  names: str
  digits: str

  def fill(self, text: str) -> str:
    """Fills a text of a template with the attributes and digits."""
    return text.translate(str.maketrans("xy12", self.names + self.digits))


def example(
  rng: np.random.Generator, split: str, *, teacher_error: float
) -> Example:
  """Draws one problem; see `Task.example`. Extras: gold, padded; domain []."""

  def sample(rng: np.random.Generator) -> StageRule:
    template = int(rng.integers(len(TEMPLATES)))
    if split == "test" and rng.random() < 0.5:
      template = len(TEMPLATES) + int(rng.integers(len(HELD_OUT)))
    names = rng.choice(list(ATTRIBUTES), size=2, replace=False)
    digits = rng.integers(10, size=2)
    return StageRule(template, "".join(names), "".join(map(str, digits)))

  def identity(rule: StageRule) -> list[int]:
    words, _ = _ALL[rule.template]
    return vocab.encode(rule.fill(words))

  rule = task_lib.draw(rng, split, sample, identity)
  words, target = (rule.fill(text) for text in _ALL[rule.template])
  # Always drawn, so that teachers of all probabilities see the same problems.
  slips = iter(rng.random(2) < teacher_error)
  taught = re.sub(
    "[gl]", lambda x: _SWAPPED[x[0]] if next(slips) else x[0], target
  )
  return Example.of(
    [vocab.BOS, *vocab.encode(words), vocab.EQUALS],
    vocab.wrapped(vocab.encode(taught), tags=True),
    {
      "gold": vocab.padded(vocab.encode(target), GOLD_LEN),
      "domain": rule.template >= len(TEMPLATES),
    },
  )


def verify(
  tokens: jax.Array,  # [T] int32
  completion_mask: jax.Array,  # [T] bool
  extras: Extras,
) -> dict[str, jax.Array]:
  """Judges one completion in graph; see `Task.verify`."""
  span = vocab.answer_span(tokens, completion_mask, tags=True)
  size = span.end - span.start
  is_read = span.ok & (size <= ANSWER_LEN)
  size = jnp.where(is_read, size, 0)
  answer = vocab.content(tokens, span, ANSWER_LEN)
  gold = jnp.asarray(extras["gold"])
  gold_size = (gold != vocab.PAD).sum()
  tree, parses = parsed(answer, size, ANSWER_LEN - 2)
  target, _ = parsed(gold, gold_size, GOLD_NODES)

  def near(distance, size, gold_size):
    return 1 - distance / jnp.maximum(size, gold_size)

  by_token = near(
    edits.levenshtein(answer, size, gold, gold_size), size, gold_size
  )
  by_node = near(edits.tree_distance(tree, target), tree.size, target.size)
  by_node = jnp.maximum(by_node, 0)  # The distance may be the sum of both.
  scores = {
    "accuracy": by_token == 1,
    "parses": parses,
    "tree": jnp.where(parses, by_node, 0),
    "token": jnp.where(is_read, by_token, 0),
  }
  return {name: x.astype(jnp.float32) for name, x in scores.items()}


class _Parser(NamedTuple):
  """State of the parser after some tokens: nodes, and open lists."""

  tree: edits.EditTree
  heads: jax.Array  # [N] int32, labels of the open lists.
  starts: jax.Array  # [N] int32, nodes that there were before them.
  depth: jax.Array  # [] int32
  begins: jax.Array  # [] bool, the last token opened a list.
  ok: jax.Array  # [] bool


def parsed(
  tokens: jax.Array,  # [L] int32
  size: jax.Array,  # [] int32
  num_nodes: int,
) -> tuple[edits.EditTree, jax.Array]:  # [] bool
  """Parses an expression: one list, `( atom item* )`, of letters and digits.

  Args:
    tokens: Token ids.
    size: Number of tokens that are read.
    num_nodes: Most nodes of the tree.

  Returns:
    The tree, in which a list is a node with its first atom as the label; and a
    flag that is False if the tokens are not an expression. Then the tree has no
    nodes.
  """
  nothing = jnp.zeros(num_nodes, jnp.int32)
  zero = jnp.zeros((), jnp.int32)
  start = _Parser(
    *(edits.EditTree(nothing, nothing, zero), nothing, nothing, zero),
    *(jnp.zeros((), bool), size > 0),
  )

  def read(at: _Parser, slot: jax.Array):
    token, tree = tokens[slot], at.tree
    opens, closes = token == OPEN, token == CLOSE
    is_atom = (token >= vocab.DIGIT_0) & (token < vocab.DIGIT_0 + 10)
    is_atom |= (token >= vocab.LETTER_A) & (token < vocab.VOCAB_SIZE)
    fits = (opens | closes | is_atom) & (is_atom | ~at.begins)
    # All tokens are inside one list, which the first token opens.
    fits &= jnp.where(opens, (at.depth > 0) | (tree.size == 0), at.depth > 0)
    inner = at.depth - 1
    is_leaf = is_atom & ~at.begins
    new = tree.size
    node = jnp.where(is_leaf | closes, new, num_nodes)  # Else out of bounds.
    label = jnp.where(closes, at.heads[inner], token)
    first = jnp.where(closes, at.starts[inner], new)
    after = _Parser(
      edits.EditTree(
        tree.labels.at[node].set(label, mode="drop"),
        tree.first.at[node].set(first, mode="drop"),
        new + (is_leaf | closes),
      ),
      at.heads.at[jnp.where(at.begins, inner, num_nodes)].set(
        token, mode="drop"
      ),
      at.starts.at[jnp.where(opens, at.depth, num_nodes)].set(new, mode="drop"),
      at.depth + opens - closes,
      opens,
      at.ok & fits,
    )
    exists = slot < size
    return jax.tree.map(lambda x, y: jnp.where(exists, x, y), after, at), None

  end, _ = jax.lax.scan(read, start, jnp.arange(tokens.shape[0]))
  ok = end.ok & (end.depth == 0)
  tree = end.tree
  return tree._replace(size=jnp.where(ok, tree.size, 0)), ok


# The twin.


def verify_numpy(
  tokens: np.ndarray,  # [T] int32
  completion_mask: np.ndarray,  # [T] bool
  extras: Mapping[str, np.ndarray],
) -> dict[str, float]:
  """Twin of `verify`, which compares nested tuples by recursion."""
  words = vocab.words(tokens, completion_mask)
  answer = vocab.answer_words(words, tags=True)
  scores = dict.fromkeys(("accuracy", "parses", "tree", "token"), 0.0)
  if answer is None or len(answer) > ANSWER_LEN:
    return scores
  gold = list(vocab.decode(extras["gold"]))
  scores["token"] = 1 - _edits(tuple(answer), tuple(gold)) / max(
    len(answer), len(gold)
  )
  scores["accuracy"] = float(answer == gold)
  tree, target = nested(answer), nested(gold)
  assert target is not None
  if tree is not None:
    scores["parses"] = 1.0
    apart = forest_distance((tree,), (target,))
    larger = max(_count((tree,)), _count((target,)))
    scores["tree"] = max(1 - apart / larger, 0.0)
  return scores


Nested = tuple[str, tuple["Nested", ...]]  # A label, and its children.


def nested(words: list[str]) -> Nested | None:
  """Parses words to nested tuples; None if they are not an expression."""
  try:
    tree, rest = _nested(words)
  except IndexError:  # The words end too early.
    return None
  return None if rest or tree is None or words[0] != "(" else tree


def _nested(words: list[str]) -> tuple[Nested | None, list[str]]:
  """Splits words into their first expression and the words after it."""
  if words[0] != "(":
    return ((words[0], ()) if words[0].isalnum() else None), words[1:]
  label, rest = words[1], words[2:]
  below: list[Nested] = []
  while rest[0] != ")":
    item, rest = _nested(rest)
    if item is None:
      return None, rest
    below.append(item)
  return ((label, tuple(below)) if label.isalnum() else None), rest[1:]


def _count(forest: tuple[Nested, ...]) -> int:
  return sum(1 + _count(below) for _, below in forest)


@functools.lru_cache(maxsize=1 << 16)
def forest_distance(a: tuple[Nested, ...], b: tuple[Nested, ...]) -> int:
  """Edit distance of ordered forests, by recursion over the last roots."""
  if not a or not b:
    return _count(a or b)
  (*others, (label, below)), (*rest, (name, under)) = a, b
  return min(
    forest_distance((*others, *below), b) + 1,
    forest_distance(a, (*rest, *under)) + 1,
    forest_distance(tuple(others), tuple(rest))
    + forest_distance(below, under)
    + (label != name),
  )


@functools.lru_cache(maxsize=1 << 16)
def _edits(a: tuple[str, ...], b: tuple[str, ...]) -> int:
  """Edit distance of sequences, by recursion over the last elements."""
  if not a or not b:
    return len(a or b)
  return min(
    _edits(a[:-1], b) + 1,
    _edits(a, b[:-1]) + 1,
    _edits(a[:-1], b[:-1]) + (a[-1] != b[-1]),
  )
