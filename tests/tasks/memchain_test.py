"""The chain: episodes, contexts and summaries known by hand."""

from __future__ import annotations

import functools
import re

import jax
import numpy as np
import pytest

from grpo_jax.tasks import make_task, memchain
from grpo_jax.tasks import vocabulary as vocab
from tests.tasks import environment_test, episodes

TASK = environment_test.make("memchain")
TAGGED = environment_test.make("memchain-tagged")
FACT = {
  "letters": np.array(vocab.encode("k"), np.int32),
  "digits": np.array(vocab.encode("7"), np.int32),
  "query": np.array(0, np.int32),
}
RIGHT = "<answer>7</answer><eos>"
WAITS = [";"] * 11


def test_an_episode_by_hand():
  seen, rewards, done, scores = episodes.judge(TASK, FACT, [*WAITS, RIGHT])
  # Ten letters that are not the fact's, the question, and the end.
  assert all(re.fullmatch("[a-jl-z]", text) for text in seen[:10])
  assert seen[10:] == ["<obs>k?</obs>", ""]
  assert rewards == [0] * 11 + [1]
  assert done == [False] * 11 + [True]
  assert scores == {"accuracy": 1, "semicolons": 1}


@pytest.mark.parametrize(
  ("actions", "accuracy", "semicolons"),
  [
    ([*WAITS, "<answer>6</answer><eos>"], 0, 11),
    ([*WAITS, "<answer>7</answer>"], 0, 11),
    ([*WAITS, "7<eos>"], 0, 11),
    ([*WAITS, ""], 0, 11),
    (["", "a", "<eos>", ";;", ";1", *WAITS[5:], RIGHT], 1, 6),
    # The right answer too early, and too late.
    ([*WAITS[1:], RIGHT, ";"], 0, 10),
    ([*WAITS, ";", RIGHT], 0, 11),
  ],
)
def test_known_scores(actions, accuracy, semicolons):
  scores = episodes.judge(TASK, FACT, actions)[3]
  assert scores["accuracy"] == accuracy
  assert scores["semicolons"] == pytest.approx(semicolons / 11)


def test_tagged_distractors_and_several_facts():
  facts = {
    "letters": np.array(vocab.encode("dba"), np.int32),
    "digits": np.array(vocab.encode("010"), np.int32),
    "query": np.array(1, np.int32),
  }
  actions = [";"] * 8 + ["<answer>1</answer><eos>"]
  seen, _, _, scores = episodes.judge(TAGGED, facts, actions)
  assert all(re.fullmatch("<obs>[ce-z]:[01]</obs>", text) for text in seen[:7])
  assert seen[7] == "<obs>b?</obs>"
  assert scores["accuracy"] == 1


def test_ids_outside_the_vocabulary_are_wrong_tokens():
  for foreign in (vocab.VOCAB_SIZE, 151_935):
    answer = [vocab.ANSWER, foreign, vocab.ANSWER_END, vocab.EOS]
    actions = [*[[foreign]] * 11, answer]
    played = episodes.play(TASK, [FACT], [actions])
    episodes.check_twin(TASK, [FACT], [actions], played)
    assert not any(score.any() for score in played.scores.values())


@pytest.mark.slow
def test_distractors_are_drawn_from_the_key_and_are_any_other_letter():
  reset = jax.jit(jax.vmap(TASK.environment.reset, in_axes=(0, None)))
  starts = reset(episodes.keys(), FACT)
  np.testing.assert_array_equal(
    starts.distractors, reset(episodes.keys(), FACT).distractors
  )
  others = reset(episodes.keys(1), FACT)
  assert (starts.distractors != others.distractors).mean() > 0.9
  letters, counts = np.unique(starts.distractors, return_counts=True)
  assert vocab.decode(letters) == "abcdefghijlmnopqrstuvwxyz"
  # 10,240 draws of 25 letters: four standard deviations are a fifth.
  assert counts.min() > 0.8 * 10_240 / 25
  assert counts.max() < 1.2 * 10_240 / 25


def test_only_the_last_action_may_be_long():
  _, _, played = environment_test.cases("memchain")
  wanted = [1] * 11 + [4]
  assert (played.action_len[:, :12] == wanted).all()


SMALL = {"num_steps": 8, "every": 3, "keep_turns": 1, "max_summary_len": 4}


def _contexts(**options):
  made = make_task("memchain", **{**SMALL, **options})
  return made, made.lesson.keywords["contexts"]


def _marked(example) -> str:
  """A completion with what was observed in brackets."""
  pieces = [
    f"[{vocab.decode([token])}]" if observed else vocab.decode([token])
    for token, observed in zip(
      example.completion, example.observed, strict=True
    )
  ]
  return "".join(pieces).replace("][", "")


def test_contexts_of_the_teacher_by_hand():
  _, contexts = _contexts()
  first, second, third = contexts(np.random.default_rng(0), "train")
  k, v = (vocab.decode(first.extras[name]) for name in ("letters", "digits"))
  assert vocab.decode(first.prompt) == f"<bos><obs>{k}:{v}</obs>"
  summary = f"{k}:{v}</sum>"
  a = re.fullmatch(rf";\[(.)\];\[(.)\];\[<sum>\]{summary}", _marked(first))
  # Two steps were answered after the first; the last one is kept.
  assert vocab.decode(second.prompt) == f"<bos><sum>{summary}{a[2]};"
  b = re.fullmatch(
    rf"\[(.)\];\[(.)\];\[(.)\];\[<sum>\]{summary}", _marked(second)
  )
  assert vocab.decode(third.prompt) == f"<bos><sum>{summary}{b[3]};"
  assert re.fullmatch(
    rf"\[(.)\];\[<obs>{k}\?</obs>\]<answer>{v}</answer><eos>", _marked(third)
  )
  np.testing.assert_equal(second.extras, first.extras)
  np.testing.assert_equal(third.extras, first.extras)


def test_contexts_together_are_an_episode_and_fill_their_budget():
  for options in (
    {},
    {"brief": False, "every": 4, "keep_turns": 3},
    {"num_facts": 2, "max_summary_len": 8},
    {"compaction": False},
    {"compaction": False, "brief": False, "num_facts": 4},
  ):
    made = make_task("memchain", **{**SMALL, **options})
    contexts = made.example.keywords["contexts"]
    longest = np.zeros(3, int)
    for seed in range(20):
      examples = contexts(np.random.default_rng(seed), "train")
      compaction = made.compaction
      num_compactions = compaction.max_compactions if compaction else 0
      assert len(examples) == num_compactions + 1
      actions = [
        action
        for example in examples
        for action in episodes.split_actions(example)
        if action[-1] != vocab.SUM_END  # Summaries are no actions.
      ]
      assert len(actions) == made.environment.max_turns
      heard = re.findall(
        r"\[((?:<obs>)?[a-z](?::\d</obs>)?)\]", "".join(map(_marked, examples))
      )
      start = memchain.MemchainState(
        *[None] * 2,
        np.array([vocab.encode(text) for text in heard]),
        *[None] * 3,
      )
      turns, scores = made.replay_numpy(examples[0].extras, start, actions)
      assert scores == {"accuracy": 1, "semicolons": 1}
      said = [token for turn in turns for token in turn.observation]
      read = np.concatenate([e.completion[e.observed] for e in examples])
      assert read[read != vocab.SUM].tolist() == said
      for e in examples:
        sizes = (len(e.prompt), len(e.completion))
        longest = np.maximum(longest, (*sizes, sum(sizes)))
    assert longest[0] == made.max_prompt_len
    assert longest[1] == made.max_completion_len
    if made.compaction is not None:
      assert longest[2] == made.compaction.context_len


def test_the_contexts_of_the_specification_have_64_tokens():
  assert make_task("memchain").compaction.context_len == 71
  made = make_task("memchain", max_summary_len=4)
  assert made.compaction.context_len == 64
  assert made.compaction.max_compactions == 3
  assert made.compaction.every == 24
  assert make_task("memchain", brief=False).compaction.context_len > 150


def test_lessons_are_all_contexts_and_examples_the_first():
  made, contexts = _contexts()
  first = contexts(np.random.default_rng(5), "test")[0]
  example = made.example(np.random.default_rng(5), "test")
  np.testing.assert_array_equal(first.completion, example.completion)
  rng = np.random.default_rng(0)
  kinds = {
    re.sub("[a-z0-9]", "", _marked(made.lesson(rng, "train")))
    for _ in range(50)
  }
  assert len(kinds) == 3
  assert make_task("memchain", compaction=False).lesson is None


@pytest.mark.parametrize("compaction", [True, False])
def test_a_teacher_who_forgets_is_right_by_chance(compaction):
  forgets = functools.partial(
    make_task, "memchain", **SMALL, num_digits=2, compaction=compaction
  )
  rates = {}
  for error in (0.0, 0.3, 1.0):
    contexts = forgets(teacher_error=error).example.keywords["contexts"]
    rng = np.random.default_rng(0)
    right = []
    for _ in range(400):
      last = contexts(rng, "train")[-1]
      gold = vocab.decode(last.extras["digits"])
      text = vocab.decode(last.completion)
      right.append(text.endswith(f"<answer>{gold}</answer><eos>"))
      if compaction:  # What it says is what its context says.
        said = vocab.decode(last.prompt)[len("<bos><sum>") + 2]
        assert f"<answer>{said}</answer>" in text
    rates[error] = np.mean(right)
  assert rates[0.0] == 1
  kept = 0.7**2 if compaction else 0.7
  assert rates[0.3] == pytest.approx(kept + (1 - kept) / 2, abs=0.08)
  assert rates[1.0] == pytest.approx(0.5, abs=0.08)


def test_without_its_summaries_a_teacher_guesses():
  _, contexts = _contexts(summaries="dropped", num_digits=2)
  first, second, last = contexts(np.random.default_rng(0), "train")
  k, v = (vocab.decode(first.extras[name]) for name in ("letters", "digits"))
  assert _marked(first).endswith(f"[<sum>]{k}:{v}</sum>")
  for example in (second, last):
    assert re.fullmatch("<bos>[a-z];", vocab.decode(example.prompt))
  rng, right = np.random.default_rng(0), []
  for _ in range(400):
    last = contexts(rng, "train")[-1]
    gold = vocab.decode(last.extras["digits"])
    right.append(
      vocab.decode(last.completion).endswith(f"{gold}</answer><eos>")
    )
  assert np.mean(right) == pytest.approx(0.5, abs=0.08)
  assert make_task("memchain", summaries="frozen").compaction.keeps_summary
  with pytest.raises(ValueError, match="unknown summaries 'lost'"):
    make_task("memchain", summaries="lost")


@pytest.mark.slow
def test_a_letter_has_all_digits_in_its_split():
  """Or a letter would tell what its digit is not."""
  made = make_task("memchain", num_digits=3)
  seen = {}
  for split in ("train", "test"):
    rng = np.random.default_rng(0)
    drawn = [made.example(rng, split).extras for _ in range(600)]
    facts = {(int(x["letters"][0]), int(x["digits"][0])) for x in drawn}
    seen[split] = {letter for letter, _ in facts}
    assert len(facts) == 3 * len(seen[split])
  assert not seen["train"] & seen["test"]
  assert len(seen["test"]) >= 3


def test_facts_have_few_digits_and_orders_share_a_split():
  made = make_task("memchain", num_facts=2, num_digits=3)
  rng = np.random.default_rng(0)
  digits, orders = set(), set()
  for _ in range(200):
    extras = made.example(rng, "test").extras
    digits |= set(vocab.decode(extras["digits"]))
    letters = extras["letters"].tolist()
    orders.add(letters == sorted(letters))
    assert len(set(letters)) == 2
  assert digits == {*"012"}
  assert orders == {True, False}
