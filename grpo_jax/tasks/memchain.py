"""Memory: facts at the start, a long chain of distractors, a final question.

The prompt is `BOS <obs> k : v , .. </obs>`: letters with their digits. Step 0
answers the prompt and the next steps answer distractors, each with one token;
`;` is expected, and is worth no reward. The last step answers

    <obs> k ? </obs>    with    <answer> v </answer> EOS

and alone decides the reward. So a chain of n steps is n actions. An EOS before
the question is a wrong token like any other, and does not end the episode.

A context does not hold the chain. After every `every` steps the policy writes a
summary, and facts that are not in the summary are lost (`types.Compaction`).
The teacher's summary is `k : v , .. </sum>`.

A distractor is one letter: a step has 2 tokens, and 24 steps, a prompt of 6 and
a summary fit 64 tokens. The long form `<obs> w : d </obs>` takes 6 tokens a
step with its answer, so that 24 steps need 144. Contexts after a compaction
begin with a summary and the kept steps: they need 71 tokens with summaries of
up to 8 tokens, and 64 with summaries of 4, the length of the teacher's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from grpo_jax.tasks import task as task_lib
from grpo_jax.tasks import vocabulary as vocab
from grpo_jax.tasks.task import Example, PlainTurn, Task
from grpo_jax.types import Compaction, Environment, Extras, Turn

ANSWER_LEN = 4  # <answer> v </answer> EOS
QUESTION_LEN = 4  # <obs> k ? </obs>
SUMMARIES = ("trained", "frozen", "dropped")


def make(
  num_steps: int = 96,
  num_facts: int = 1,
  num_digits: int = 10,
  every: int = 24,
  keep_turns: int = 2,
  max_summary_len: int = 8,
  summaries: str = "trained",
  brief: bool = True,
  compaction: bool = True,
  teacher_error: float = 0.0,
) -> Task:
  """Makes the chain.

  The reward is 1 for the right answer. Scores: "accuracy"; "semicolons", the
  share of right answers to the prompt and to all distractors.

  Args:
    num_steps: n, actions of an episode, 8 to 256.
    num_facts: F, letters with digits, 1 to 8; the question is about one.
    num_digits: Number of different digits of facts, 2 to 10; a guess is right
      once in so many times.
    every: Steps between two compactions, 2 to num_steps - 1.
    keep_turns: Steps that a context keeps of the context before, 0 to
      every - 1.
    max_summary_len: Most tokens of a summary, `</sum>` included, 4F to 64.
    summaries: "trained"; "frozen": the policy writes summaries and is not
      trained on them; or "dropped": the next context does not begin with the
      summary, so that the facts are lost.
    brief: Whether a distractor is one letter; else it is `<obs> w : d </obs>`,
      where w is not a letter of the facts.
    compaction: Whether contexts are compacted; otherwise one context holds the
      chain, and `every`, `keep_turns`, `max_summary_len` and `summaries` are
      not read.
    teacher_error: Probability with which a summary of the teacher has random
      digits; without compaction, its answer. It answers from its context, so
      1.0 is as good as guessing.
  """
  options = dict(locals())
  caller = "memchain.make"
  if summaries not in SUMMARIES:
    raise ValueError(
      f"{caller}: unknown summaries {summaries!r}; use one of {SUMMARIES}."
    )
  task_lib.check_ranges(
    caller,
    options,
    num_steps=(8, 256),
    num_facts=(1, 8),
    num_digits=(2, 10),
    teacher_error=(0.0, 1.0),
  )
  per_step = 2 if brief else 6
  first_prompt_len = 2 + 4 * num_facts
  if compaction:
    task_lib.check_ranges(
      caller,
      options,
      every=(2, num_steps - 1),
      keep_turns=(0, every - 1),
      max_summary_len=(4 * num_facts, 64),
    )
    compactions, prompt_len, completion_len = _compactions(
      num_steps,
      first_prompt_len,
      per_step,
      every=every,
      keep_turns=keep_turns,
      max_summary_len=max_summary_len,
      summaries=summaries,
    )
  else:
    compactions = None
    prompt_len = first_prompt_len
    completion_len = 1 + (num_steps - 2) * per_step + QUESTION_LEN + ANSWER_LEN
  options |= {
    "every": every if compaction else num_steps,
    "keeps_summary": summaries != "dropped",
  }
  options["contexts"] = task_lib.bound(teach, options)
  return Task(
    name="memchain",
    **vocab.of_task(),
    max_prompt_len=prompt_len,
    max_completion_len=completion_len,
    example=task_lib.bound(example, options),
    verify=None,
    verify_numpy=None,
    environment=_environment(options, per_step),
    compaction=compactions,
    lesson=task_lib.bound(lesson, options) if compaction else None,
    replay_numpy=replay_numpy,
  )


# The generator and the teacher.


def example(rng: np.random.Generator, split: str, *, contexts: Any) -> Example:
  """Draws the first context of an episode; see `Task.example`.

  Extras: letters [F], digits [F] (ids), query [] (index of the letter in the
  question).
  """
  return contexts(rng, split)[0]


def lesson(rng: np.random.Generator, split: str, *, contexts: Any) -> Example:
  """Draws any context of an episode; see `Task.lesson`."""
  examples = contexts(rng, split)
  return examples[int(rng.integers(len(examples)))]


def _environment(options: Mapping[str, Any], per_step: int) -> Environment:
  """The environment, which shows distractors, and at last the question."""
  return Environment(
    max_turns=options["num_steps"],
    max_action_len=ANSWER_LEN,
    max_observation_len=max(QUESTION_LEN, per_step - 1),
    action_ends=(vocab.EOS,),
    reset=task_lib.bound(reset, options),
    step=step,
    scores=scores,
    action_len=action_len,
  )


def _compactions(
  num_steps: int,
  first_prompt_len: int,
  per_step: int,
  *,
  every: int,
  keep_turns: int,
  max_summary_len: int,
  summaries: str,
) -> tuple[Compaction | None, int, int]:
  """The compaction, and slots of prompts and completions, tokens."""
  max_compactions = (num_steps - 1) // every
  later_prompt_len = 2 + max_summary_len + keep_turns * per_step
  # Contexts end with `<sum>` and a summary. The last context ends with the
  # question, which replaces a distractor, and the answer.
  ending_len = 1 + max_summary_len
  first_len = 1 + (every - 1) * per_step + ending_len
  middle_len = every * per_step + ending_len if max_compactions > 1 else 0
  last_steps = num_steps - every * max_compactions
  last_len = (last_steps - 1) * per_step + QUESTION_LEN + ANSWER_LEN
  later_len = max(middle_len, last_len)
  compaction = Compaction(
    every=every,
    context_len=max(first_prompt_len + first_len, later_prompt_len + later_len),
    reserve=ending_len,
    open_id=vocab.SUM,
    close_id=vocab.SUM_END,
    max_summary_len=max_summary_len,
    keep_turns=keep_turns,
    max_compactions=max_compactions,
    head_len=1,
    trains_summary=summaries == "trained",
    keeps_summary=summaries != "dropped",
  )
  prompt_len = max(first_prompt_len, later_prompt_len)
  return compaction, prompt_len, max(first_len, later_len)


def _distractors(
  rng: np.random.Generator,
  letters: list[int],
  count: int,
  num_digits: int,
  brief: bool,
) -> list[list[int]]:
  """Draws the observations between the facts and the question."""
  others = np.setdiff1d(vocab.LETTER_A + np.arange(vocab.NUM_LETTERS), letters)
  pairs = zip(
    rng.choice(others, size=count).tolist(),
    (vocab.DIGIT_0 + rng.integers(num_digits, size=count)).tolist(),
    strict=True,
  )
  return [
    [letter]
    if brief
    else [vocab.OBS, letter, vocab.COLON, digit, vocab.OBS_END]
    for letter, digit in pairs
  ]


def teach(
  rng: np.random.Generator,
  split: str,
  *,
  num_steps: int,
  num_facts: int,
  num_digits: int,
  every: int,
  keep_turns: int,
  keeps_summary: bool,
  brief: bool,
  teacher_error: float,
) -> list[Example]:
  """Plays an episode of the teacher; returns its contexts in order."""

  def random_digits() -> list[int]:
    return (vocab.DIGIT_0 + rng.integers(num_digits, size=num_facts)).tolist()

  def sample(rng: np.random.Generator) -> tuple[list[int], list[int]]:
    letters = vocab.LETTER_A + rng.permutation(vocab.NUM_LETTERS)[:num_facts]
    return letters.tolist(), random_digits()

  letters, digits = task_lib.draw(
    rng,
    split,
    sample,
    # Letters alone. With digits in the identity, the digits that a letter never
    # has in training would be those that it has in the test.
    identity=lambda facts: sorted(facts[0]),
  )
  query = int(rng.integers(num_facts))
  extras = {
    "letters": np.array(letters, np.int32),
    "digits": np.array(digits, np.int32),
    "query": np.array(query, np.int32),
  }
  messages = _distractors(rng, letters, num_steps - 2, num_digits, brief)
  messages.append([vocab.OBS, letters[query], vocab.QUESTION, vocab.OBS_END])

  def recall() -> list[int]:
    """The digits in the context, or random digits."""
    guess = random_digits()  # Always drawn: all teachers see the same problem.
    is_lost = bool(examples) and not keeps_summary
    return guess if is_lost or rng.random() < teacher_error else memory

  memory = digits
  examples: list[Example] = []
  prompt = [vocab.BOS, vocab.OBS, *_facts(letters, digits), vocab.OBS_END]
  completion: list[int] = []
  observed: list[bool] = []
  turns: list[list[int]] = []

  def write(ids: list[int], is_observed: bool) -> None:
    completion.extend(ids)
    observed.extend([is_observed] * len(ids))

  def end_context() -> None:
    examples.append(Example.of(prompt, completion, extras, observed))
    completion.clear()
    observed.clear()

  for turn in range(num_steps):
    observation = messages[turn - 1] if turn else []
    write(observation, True)
    if turn == num_steps - 1:
      if not examples or not keeps_summary:
        memory = recall()
      write(vocab.wrapped([memory[query]], tags=True), False)
      break
    write([vocab.SEMICOLON], False)
    turns.append([*observation, vocab.SEMICOLON])
    if (turn + 1) % every == 0:
      memory = recall()
      summary = [*_facts(letters, memory), vocab.SUM_END]
      write([vocab.SUM], True)
      write(summary, False)
      end_context()
      prompt = [vocab.BOS]
      if keeps_summary:
        prompt += [vocab.SUM, *summary]
      for pair in turns[len(turns) - keep_turns :]:
        prompt += pair
  end_context()
  return examples


def _facts(letters: Sequence[int], digits: Sequence[int]) -> list[int]:
  """Writes facts: `k : v , k : v`."""
  ids: list[int] = []
  for letter, digit in zip(letters, digits, strict=True):
    ids += [vocab.COMMA] * bool(ids) + [letter, vocab.COLON, digit]
  return ids


# The environment.


class MemchainState(NamedTuple):
  """The state of an episode.

  Attributes:
    question: The last observation, padded.
    answer: The right answer to the question.
    distractors: The observations before the question, padded; the first follows
      action 0.
    turn: Number of actions so far.
    semicolons: Number of right answers to the facts and to distractors.
    right: Whether the answer was right.
  """

  question: jax.Array  # [O] int32
  answer: jax.Array  # [4] int32
  distractors: jax.Array  # [n - 2, D] int32, without padding
  turn: jax.Array  # [] int32
  semicolons: jax.Array  # [] int32
  right: jax.Array  # [] bool


def reset(
  key: jax.Array,
  extras: Extras,
  *,
  num_steps: int,
  num_digits: int,
  brief: bool,
) -> MemchainState:
  """Begins an episode; the distractors are drawn."""
  letter_key, digit_key = jax.random.split(key)
  facts = jnp.asarray(extras["letters"], jnp.int32)  # [F]
  size = (num_steps - 2,)
  letters = vocab.LETTER_A + jax.random.randint(
    letter_key, size, 0, vocab.NUM_LETTERS - len(facts)
  )
  # The i-th of the letters that are not in the facts.
  for letter in jnp.sort(facts):
    letters = letters + (letters >= letter)
  digits = vocab.DIGIT_0 + jax.random.randint(digit_key, size, 0, num_digits)

  def sign(token: int) -> jax.Array:
    return jnp.full(size, token)

  framed = (
    sign(vocab.OBS),
    letters,
    sign(vocab.COLON),
    digits,
    sign(vocab.OBS_END),
  )
  query = extras["query"]
  zero = jnp.zeros((), jnp.int32)
  return MemchainState(
    question=jnp.array(
      [vocab.OBS, facts[query], vocab.QUESTION, vocab.OBS_END], jnp.int32
    ),
    answer=jnp.array(
      [vocab.ANSWER, extras["digits"][query], vocab.ANSWER_END, vocab.EOS],
      jnp.int32,
    ),
    distractors=jnp.stack([letters] if brief else framed, -1).astype(jnp.int32),
    turn=zero,
    semicolons=zero,
    right=jnp.zeros((), bool),
  )


def step(
  state: MemchainState,
  tokens: jax.Array,  # [4] int32
  mask: jax.Array,  # [4] bool
) -> tuple[MemchainState, Turn]:
  """Does one action; see `Environment.step`."""
  num_distractors, size = state.distractors.shape
  num_steps = num_distractors + 2
  is_asked = state.turn == num_steps - 1
  right = is_asked & mask.all() & (tokens == state.answer).all()
  semicolon = ~is_asked & (mask.sum() == 1) & (tokens[0] == vocab.SEMICOLON)
  turn = state.turn + 1
  done = turn == num_steps
  asks = turn == num_steps - 1
  longest = max(QUESTION_LEN, size)
  question = jnp.pad(state.question, (0, longest - QUESTION_LEN))
  distractor = jnp.pad(
    state.distractors[jnp.minimum(state.turn, num_distractors - 1)],
    (0, longest - size),
  )
  length = jnp.where(asks, QUESTION_LEN, size)
  new = state._replace(
    turn=turn, semicolons=state.semicolons + semicolon, right=right
  )
  return task_lib.mask_after_end(
    state.turn >= num_steps,
    state,
    new,
    Turn(
      jnp.where(asks, question, distractor),
      jnp.arange(longest) < length,
      right.astype(jnp.float32),
      done,
    ),
  )


def scores(state: MemchainState) -> dict[str, jax.Array]:
  """Judges an episode; see `make` for the names."""
  num_expected = state.distractors.shape[0] + 1
  return {
    "accuracy": state.right.astype(jnp.float32),
    "semicolons": state.semicolons.astype(jnp.float32) / num_expected,
  }


def action_len(state: MemchainState) -> jax.Array:  # [] int32
  """Length of the next action: 4 for the answer to the question, else 1."""
  is_asked = state.turn == state.distractors.shape[0] + 1
  return jnp.where(is_asked, ANSWER_LEN, 1)


# The twin.


def replay_numpy(
  extras: Mapping[str, np.ndarray],
  start: MemchainState,
  actions: Sequence[Sequence[int]],
) -> tuple[list[PlainTurn], dict[str, float]]:
  """Replays an episode on the host; see `Task.replay_numpy`."""
  facts = dict(
    zip(
      vocab.decode(extras["letters"]),
      vocab.decode(extras["digits"]),
      strict=True,
    )
  )
  letter = vocab.decode(extras["letters"])[int(extras["query"])]
  # Observations, and the words that should answer them. The facts are in the
  # prompt.
  observations = ["", *(vocab.decode(row) for row in start.distractors)]
  script = [(text, [";"]) for text in observations]
  answer = ["<answer>", facts[letter], "</answer>", "<eos>"]
  script.append((f"<obs>{letter}?</obs>", answer))
  turns, right = [], []
  for action, (_, expected) in zip(actions, script, strict=False):
    words = vocab.words(np.array(action, int), np.ones(len(action), bool))
    right.append(words == expected)
    over = len(right) == len(script)
    text = "" if over else script[len(right)][0]
    reward = float(over and right[-1])
    turns.append(PlainTurn(vocab.encode(text), reward, over))
  turns += [PlainTurn([], 0.0, True)] * (len(actions) - len(turns))
  last = len(script) - 1
  return turns, {
    "accuracy": float(sum(right[last:])),
    "semicolons": sum(right[:last]) / last,
  }
