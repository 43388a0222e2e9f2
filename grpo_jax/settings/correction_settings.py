"""Settings of what a phase does with completions that are wrong."""

from __future__ import annotations

import dataclasses

from grpo_jax import ranges

# In a sentence, where the right answer goes.
ANSWER = "{answer}"


@dataclasses.dataclass(frozen=True)
class CorrectionConfig:
  """Guided error correction (EDGE-GRPO); docs/correction.md.

  With all three probabilities 0 a wrong completion stays as it is.

  Attributes:
    p_cue: Probability that a wrong completion has the cue appended, after which
      the policy goes on.
    p_answer: That it has the sentence with the right answer appended.
    p_reference: That it is replaced by a whole right completion.
    cue: Text of the cue.
    sentence: Text of the sentence, in which "{answer}" stands for the answer.
      An end token follows.
    max_new_tokens: Most tokens that the policy writes after a cue. A completion
      has room for it if draft, cue and these are within the budget of
      completions; else it stays as it is, and is counted.
    max_prompt_len: Completions of longer prompts stay as they are, tokens.
    train_injected: Whether what was put in is trained, as in the paper.
  """

  p_cue: float = 0.0
  p_answer: float = 0.0
  p_reference: float = 0.0
  cue: str = " Wait! Something is wrong here."
  sentence: str = (
    " After verification, the correct answer is \\boxed{{answer}}."
  )
  max_new_tokens: int = 256
  max_prompt_len: int = 256
  train_injected: bool = False

  @property
  def corrects(self) -> bool:
    """Whether any completion is corrected."""
    return bool(self.p_cue or self.p_answer or self.p_reference)

  def check(self, where: str) -> None:
    """Raises ValueError if a setting is out of range."""
    ranges.check(
      self,
      where,
      p_cue=ranges.SHARE,
      p_answer=ranges.SHARE,
      p_reference=ranges.SHARE,
      max_new_tokens=ranges.SLOTS,
      max_prompt_len=ranges.SLOTS,
    )
    total = self.p_cue + self.p_answer + self.p_reference
    if total > 1 + 1e-9:
      raise ValueError(
        f"{where}: p_cue {self.p_cue} + p_answer {self.p_answer} + p_reference"
        f" {self.p_reference} are {total}; probabilities of what happens to one"
        " completion add up to 1 at most. Lower one of them."
      )
    if self.sentence.count(ANSWER) != 1:
      raise ValueError(
        f"{where}.sentence={self.sentence!r} has {ANSWER!r}"
        f" {self.sentence.count(ANSWER)} times; write it once, where the answer"
        " goes."
      )
