"""Rewards of structured answers: known ones, both languages, hostile texts."""

import time

import pytest

from grpo_jax.rewards import trees

GOLD = "(a (g w 9) (l h 3))"
# The nodes are a, g, w, 9, l, h, 3, and the tokens 13.
PROGRAM = "def f(x):\n  return x + 1\n"


def scored(text, gold=GOLD, language="expression"):
  """(tree, token, parses) of a completion."""
  row = [""], [text], [0], [{"answer": gold}]
  return (
    *trees.tree_similarity(*row, language=language),
    *trees.token_similarity(*row),
    *trees.parses(*row, language=language),
  )


@pytest.mark.parametrize(
  ("text", "wanted"),
  [
    (GOLD, (1, 1, 1)),
    (f"<think>so</think><answer>{GOLD}</answer>", (1, 1, 1)),
    ("( a(g w 9)( l h 3 ) )", (1, 1, 1)),  # White space says nothing.
    ("(a (l w 9) (l h 3))", (6 / 7, 12 / 13, 1)),
    ("(a (g w 9))", (4 / 7, 8 / 13, 1)),
    # The same tree, and not the same text.
    ("(a (g (w) 9) (l h 3))", (1, 13 / 15, 1)),
    ("(a (g w 9) (l h 3)", (0, 12 / 13, 0)),
    ("(a (g w 9) (l h 3)))", (0, 13 / 14, 0)),
    ("((a) b)", (0, 1 - 9 / 13, 0)),
    ("()", (0, 2 / 13, 0)),
    ("a", (0, 1 / 13, 0)),
    ("(a) (b)", (0, 1 - 8 / 13, 0)),
    ("", (0, 0, 0)),
    ("<answer>(a", (0, 0, 0)),
  ],
)
def test_known_scores(text, wanted):
  assert scored(text) == pytest.approx(wanted)


def test_the_reward_is_one_for_the_gold_answer_alone():
  for text in (GOLD, "(a (g (w) 9) (l h 3))", "(a (g w 9))", "(", "no"):
    reward = sum(
      weight * x
      for weight, x in zip((0.5, 0.3, 0.2), scored(text), strict=True)
    )
    assert (reward == pytest.approx(1)) == (text == GOLD)


@pytest.mark.parametrize(
  ("text", "wanted"),
  [
    (PROGRAM, (1, 1, 1)),
    ("def f(x): return x+1", (1, 1, 1)),
    # Nodes: module, function, arguments, x; return, sum, x, +, 1.
    ("def f(x):\n  return x + 2\n", (8 / 9, 9 / 10, 1)),
    ("def f(x):\n  return x - 1\n", (8 / 9, 9 / 10, 1)),
    ("def f(x:\n  return x + 1\n", (0, 9 / 10, 0)),
    ("", (0, 0, 0)),
    ("# nothing", (0, 0, 0)),
  ],
)
def test_programs_are_compared_as_syntax_trees(text, wanted):
  assert scored(text, PROGRAM, "python") == pytest.approx(wanted)


@pytest.mark.parametrize("language", trees.LANGUAGES)
@pytest.mark.parametrize(
  "text",
  [
    "(" * 100_000,
    "(a " * 1500 + ")" * 1500,
    "(a b " * 900 + ")" * 900,
    "(" + "a " * 50_000 + ")",
    "a+" * 50_000 + "a",
    "-" * 20_000 + "1",
    "9" * 10_000,
    "0x" + "f" * 6000,
  ],
  ids=lambda text: text[:5],
)
def test_hostile_texts_have_scores_in_time(text, language):
  gold = {"expression": GOLD, "python": PROGRAM}[language]
  start = time.process_time()
  found = scored(text, gold, language)
  assert time.process_time() - start < 5
  assert all(0 <= x <= 1 for x in found)
  assert found[0] < 0.2  # One node of nine is that of every module.


def test_a_gold_answer_that_does_not_parse_is_the_users_fault():
  with pytest.raises(ValueError, match="is no expression; name its language"):
    scored("(a)", gold=PROGRAM)
  with pytest.raises(ValueError, match="language='lisp'"):
    scored("(a)", language="lisp")
  # Nothing could be as near as the gold answer itself.
  gold = "(a " + "(g w 9) " * 200 + ")"
  with pytest.raises(ValueError, match="has 601 nodes, and takes too long"):
    scored(gold, gold=gold)


def test_a_text_as_long_as_the_gold_answer_is_compared():
  for words, wanted in ((2500, 1), (2499, 1 - 1 / 2500), (2501, 0)):
    row = [""], ["a " * words], [0], [{"answer": "a " * 2500}]
    assert trees.token_similarity(*row) == [pytest.approx(wanted)]
