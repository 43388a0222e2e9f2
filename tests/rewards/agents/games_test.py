"""Sessions of games that others wrote: what is read, seeds, and options."""

import random
import threading

import numpy as np
import pytest

from grpo_jax.rewards.agents import games as games_lib
from grpo_jax.rewards.workers import session_worker

_HERE = "tests.rewards.workers.text_environments"
PATH = "grpo_jax.rewards.agents.games:make"
TIC_TAC_TOE = {"env": "textarena:TicTacToe-v0"}
SECRET = {"env": f"gymnasium:{_HERE}:Secret"}
VIEW = "grpo_jax.rewards.agents.tic_tac_toe:view"


def session(seed=0, row=0, **options):
  options = {**TIC_TAC_TOE, **options}
  prompt, extras = games_lib.problem(seed, **options)
  return games_lib.make(prompt, extras, row, **options)


def games(**options):
  """The games of six rows of a prompt, whose player takes the first moves."""
  found = []
  for row in range(6):
    made = session(0, row, **options)
    while not made.game.over:
      made.step(games_lib.legal_moves(made.game.observation)[0])
    found.append(made.game.scores() | {"row": made.game.observation})
  return [str(one) for one in found]


@pytest.mark.slow
def test_the_policy_reads_what_is_new_since_its_action():
  made = session()
  assert made.first().startswith("[GAME] You are Player 0 in Tic Tac Toe")
  said, reward, done = made.step("[4]<eos>")
  assert (reward, done) == (0.0, False)
  assert said.startswith("\n[GAME] Player 0 placed their symbol (O) in cell 4.")
  assert said.count("[Player 1] [") == 1
  assert "You are Player 0" not in said
  again, _, _ = made.step("[4]")
  assert again.startswith("\n[GAME] Player 0 attempted an invalid move.")


def test_the_policy_reads_everything_once_more_where_that_is_asked():
  made = session(history=True)
  said, _, _ = made.step("[4]")
  assert said.lstrip("\n").startswith(made.first()[:40])
  assert "[Player 0] [4]" in said


@pytest.mark.parametrize(
  ("said", "before", "action", "new"),
  [
    ("abc", "ab", "x", "c"),
    ("a\n[Player 0] [4]\n[GAME] b", "a", "[4]", "\n[GAME] b"),
    ("a\n[The Mafia] [4]b", "a", "[4]", "b"),
    ("a\n[GAME] you said: [4]b", "a", "[4]", "\n[GAME] you said: [4]b"),
    ("a\n[P] [4][4]", "a", "[4]", "[4]"),
    ("ab", "a", "", "b"),
    ("another board", "a board", "[4]", "another board"),
    ("said", "", "[4]", "said"),
    (3, 2, "x", 3),
  ],
)
def test_what_is_new(said, before, action, new):
  assert games_lib._new(said, before, action) == new


def test_a_view_is_all_that_the_policy_reads():
  made = session(view=VIEW)
  assert made.first() == "012345678"
  said, _, _ = made.step("[4]")
  assert len(said) == 9
  assert said[4] == "x"
  assert said.count("o") == 1


def test_a_chat_has_its_marks_around_what_is_read():
  made = session(view=VIEW, around=["<|im_end|>\n", "<|im_start|>"])
  assert made.first() == "012345678"
  before, said, after = made.step("[4]<|im_end|>")[0]
  assert (before, after) == ("<|im_end|>\n", "<|im_start|>")
  assert said[4] == "x"


def test_only_an_end_token_is_taken_away():
  made = session(**SECRET, kwargs={"turns": 9})
  assert made.step("a<eos>b<eos>")[0] == "not a<eos>b"
  assert made.step("a<eos><eos>")[0] == "not a<eos>"
  made = session(**SECRET, ends=["."], kwargs={"turns": 9})
  assert made.step("a<eos>.")[0] == "not a<eos>"


def test_other_types_need_functions():
  numbers = {"env": f"gymnasium:{_HERE}:Numbers"}
  with pytest.raises(ValueError, match=r"3, which is no text.*options.view"):
    session(seed=3, **numbers)
  numbers |= {"view": f"{_HERE}:spelt", "action": f"{_HERE}:first_digit"}
  made = session(seed=3, **numbers)
  assert made.first() == "number 3"
  assert made.step("41<eos>") == ("number 5", 0.25, False)


def test_an_episode_of_gymnasium_ends():
  made = session(**SECRET, success="solved")
  assert made.step("1") in (("not 1", 0.0, False), ("", 1.0, True))
  assert made.scores()["accuracy"] == 1.0
  made.close()
  assert made.game._env.closed == 1
  session().close()  # Of textarena, which has nothing to close.


def test_rows_share_what_was_dealt_and_not_what_comes():
  assert games() == games()
  assert len(set(games())) > 2
  assert len(set(games(same_luck=True))) == 1
  kuhn = {"env": "textarena:KuhnPoker-v0", "seat": 1}  # Who begins.
  assert len({session(3, row, **kuhn).first() for row in range(6)}) == 1
  assert len({session(seed, **kuhn).first() for seed in range(9)}) == 3


def test_opponents_are_what_the_options_say():
  strong = session(
    opponent="grpo_jax.rewards.agents.tic_tac_toe:careful", view=VIEW
  )
  strong.step("[0]")
  cells = strong.game.observation
  assert "[Player 1] [" in cells
  listed = session(opponent=["[8]"])
  assert "[Player 1] [8]" in listed.step("[4]")[0]
  loser = session(opponent=f"{_HERE}:loser")
  assert loser.step("[4]") == ("", 1.0, True)


def test_a_problem_leaves_the_random_numbers_of_the_process_alone():
  random.seed(1)
  np.random.seed(1)
  expected = random.random(), np.random.random()
  random.seed(1)
  np.random.seed(1)
  prompt, extras = games_lib.problem(0, **TIC_TAC_TOE)
  games_lib.lesson(prompt, extras, **TIC_TAC_TOE)
  assert (random.random(), np.random.random()) == expected


def test_games_of_several_threads_are_those_of_one():
  options = {"env": "textarena:PigDice-v0-short"}

  def lessons():
    return [
      games_lib.lesson(*games_lib.problem(i, **options), **options)
      for i in range(3)
    ]

  expected, found = lessons(), []
  threads = [
    threading.Thread(target=lambda: found.append(lessons())) for _ in range(3)
  ]
  for thread in threads:
    thread.start()
  for thread in threads:
    thread.join()
  assert found == [expected] * 3


def test_a_lesson_is_a_game_that_a_session_plays_alike():
  options = {**TIC_TAC_TOE, "view": VIEW, "seat": "alternate"}
  for seed in range(6):
    prompt, extras = games_lib.problem(seed, **options)
    lesson = games_lib.lesson(prompt, extras, **options)
    made = games_lib.make(prompt, extras, seed, **options)
    for number, (action, said) in enumerate(lesson, start=1):
      assert made.step(action)[0] == said
      assert made.game.over == (number == len(lesson))
    assert made.scores()["invalid_moves"] == 0


def test_a_teacher_may_be_ones_own():
  options = {**SECRET, "teacher": f"{_HERE}:guesses", "kwargs": {"turns": 99}}
  lesson = games_lib.lesson("Guess 2: 0 to 9?", {"seed": 2}, **options)
  *wrong, (last, said) = lesson
  assert said == ""
  assert all(answer == f"not {guess}" for guess, answer in wrong)
  assert last.isdigit()
  with pytest.raises(ValueError, match="lists no moves"):
    games_lib.lesson("Guess 2: 0 to 9?", {"seed": 2}, **SECRET)


def test_a_game_that_is_over_at_once_is_no_problem(monkeypatch):
  # With this opponent the game ends before the second seat moves.
  options = {**TIC_TAC_TOE, "opponent": f"{_HERE}:loser", "seat": 1}
  assert games_lib.problem(0, **options) is None
  with pytest.raises(ValueError, match="is over before the policy moves"):
    games_lib.make("", {"seed": 0}, 0, **options)


@pytest.mark.parametrize(
  ("prompt", "extras", "options", "message"),
  [
    ("", {}, {}, r"extras \[\] have no 'seed'.*source='environment'"),
    ("Hello", {"seed": 0}, {}, "shows \"\\[GAME.*and the prompt is 'Hello'"),
    ("", {"seed": 0}, {"env": "Nim-v0"}, "is 'Nim-v0'; needs 'textarena:"),
    (
      "",
      {"seed": 0},
      {"opponent": "weak"},
      "opponent 'weak': needs an imp",
    ),
    ("", {"seed": 0}, {"view": f"{_HERE}:nothing"}, "view '.*nothing'"),
    ("", {"seed": 0}, {"opponent": []}, "not moves; needs texts"),
  ],
)
def test_what_is_wrong_is_told(prompt, extras, options, message):
  with pytest.raises(ValueError, match=message):
    games_lib.make(prompt, extras, 0, **{**TIC_TAC_TOE, **options})


def test_a_wrong_option_is_told_before_there_is_a_process():
  with pytest.raises(ValueError, match=r"'oponent'.*takes env, kwargs, pl"):
    session_worker.load_factory(PATH, {**TIC_TAC_TOE, "oponent": "random"})


def test_the_options_reach_all_that_makes_prompts():
  factory = session_worker.load_factory(PATH, {**TIC_TAC_TOE, "view": VIEW})
  factory.warm_up()
  assert factory.problem(0) == ("012345678", {"seed": 0})
  assert len(factory.lesson("012345678", {"seed": 0})) >= 3
