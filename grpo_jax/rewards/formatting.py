"""Rewards for the form of a completion, whatever its content."""

from __future__ import annotations

_TAGS = ("<think>", "</think>", "<answer>", "</answer>")


def _is_think_answer(text: str) -> bool:
  # Searched by hand, not with the expression in the docstring below: with two
  # lazy groups it backtracks quadratically on "</think>" * n, and a policy
  # stuck in a loop writes exactly that.
  if any(text.count(tag) != 1 for tag in _TAGS):
    return False
  thought, _, rest = text.partition("</think>")
  rest = rest.strip()
  return (
    thought.startswith("<think>")
    and rest.startswith("<answer>")
    and rest.endswith("</answer>")
    and bool(thought.removeprefix("<think>").strip())
    and bool(rest.removeprefix("<answer>").removesuffix("</answer>").strip())
  )


def think_answer_format(
  prompts: list[str],
  completions: list[str],
  ids: list[int],
  extras: list[dict],
) -> list[float]:
  """1.0 where the completion is one thought followed by one answer, else 0.0.

      ^<think>(?!.*<think>).*?</think>\\s*<answer>.*?</answer>\\s*$

  with `.` matching newlines, each of the four tags exactly once, and more than
  white space in the thought and in the answer. Only white space may stand
  between the parts and after the answer; nothing may stand before `<think>`, so
  a chat template must not write it already. Linear in the length of the
  completion.

  What the thought says is not looked at: any word takes this reward.

  Args:
    prompts: Decoded prompts, ignored.
    completions: Decoded completions, without the end token.
    ids: Occurrences in the data stream, ignored.
    extras: What else is known of each prompt, ignored.

  Returns:
    One number per completion.

  Source: DeepSeek-AI, "DeepSeek-R1", arXiv:2501.12948, Section 2.2.2.
  """
  del prompts, ids, extras
  return [float(_is_think_answer(text)) for text in completions]
