"""Episodes with tools: calls, limits, answers, and what is counted."""

import datetime
import decimal
import json

import numpy as np
import pytest

from grpo_jax.rewards.agents import call_formats, tools
from grpo_jax.rewards.workers import session_worker, sessions
from tests.rewards.agents import chats, tool_functions

PATH = "grpo_jax.rewards.agents.tools:make"
OWN = "tests.rewards.agents.tool_functions"
ADD, FAIL = f"{OWN}:add", f"{OWN}:fail"


def act(*calls, text="", format="qwen"):
  return chats.action_text(format, text, calls)


def make(extras=None, prompt="q", **options):
  return tools.make(prompt, extras or {"answer": "42"}, 0, **options)


def play(session, *actions):
  """Results by action; the last one's reward and end."""
  found = [session.step(action) for action in actions]
  assert not any(done for *_, done in found[:-1])
  said = [x if isinstance(x, str) else list(x[1::2]) for x, _, _ in found]
  return said, found[-1][1:]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
  path = tmp_path_factory.mktemp("corpus") / "rows.jsonl"
  rows = [
    {"title": "Rhine", "text": "A river. It is 1230 km long."},
    {"title": "Elbe", "text": "A river. It is 1094 km long." + "x" * 999},
    {"text": "A river without a name."},
  ]
  path.write_text("\n".join(map(json.dumps, rows)))
  return str(path)


def test_an_episode_searches_and_answers(corpus):
  session = make(
    {"answer": "The Rhine"}, tools=("search",), corpus=corpus, grade="exact"
  )
  said, (reward, done) = play(
    session,
    act(("search", {"query": "Rhine river"})),
    act(("search", {"query": "zebra"}), ("search", {"query": "elbe"})),
    "<think>\n1230 > 1094\n</think>\n\nRhine.<|im_end|>",
  )
  assert said[0][0].startswith(
    "[1] Rhine\nA river. It is 1230 km long.\n\n[2] A river without a name."
  )
  assert said[1][0] == "No passage has any of these words."
  assert len(said[1][1]) == len("[1] Elbe\n") + 500
  assert (reward, done) == (1.0, True)
  assert session.scores() == {
    "accuracy": 1.0,
    "grade": 1.0,
    "answered": 1.0,
    "tool_calls": 3.0,
    "malformed": 0.0,
    "tool_errors": 0.0,
    "refused": 0.0,
    "tool_seconds": session.scores()["tool_seconds"],
  }
  assert 0.0 < session.scores()["tool_seconds"] < 5.0
  session.close()


@pytest.mark.parametrize("format", call_formats.FORMATS)
def test_results_are_written_as_the_format_has_them(format):
  session = make(tools=(ADD,), format=format)
  action = act(("add", {"x": 1}), format=format)
  said, reward, done = session.step(action)
  assert said == call_formats.named(format).render(["2.0"])
  assert (reward, done) == (0.0, False)
  # Without an end token of its own, the turn is ended.
  said, *_ = session.step(action.rpartition("<|")[0])
  assert said[0].startswith(call_formats.named(format).ends[0])


def test_parallel_calls_are_made_in_order_beside_wrong_ones():
  session = make(tools=(ADD, FAIL), max_parallel=6)
  said, _ = play(
    session,
    act(
      ("add", {"x": 1, "y": 2}),
      ("subtract", {}),
      ("add", {"x": "1"}),
      ("fail", {"how": "so"}),
      ("add", {"x": 40, "note": None}),
    ),
    "<tool_call>x</tool_call>" + act(("add", {"x": 1})) + "<tool_call>",
  )
  assert said[0][0] == "3"
  assert "there is no tool 'subtract'; there is 'add', 'fail'" in said[0][1]
  assert "'1' is not of type 'number'" in said[0][2]
  assert said[0][3:] == ["Error: ValueError: so", "41.0"]
  assert [x[:25] for x in said[1]] == [
    "Error: the call cannot be",
    "2.0",
    "Error: the call cannot be",
  ]
  scores = session.scores()
  assert scores["tool_calls"] == 4
  assert scores["tool_errors"] == 3
  assert scores["malformed"] == 2
  assert scores["answered"] == scores["accuracy"] == 0


@pytest.mark.parametrize(
  ("how", "said"),
  [
    ("so", "Error: ValueError: so"),
    ("loud", "Error: ValueError: " + "x" * 481),
    ("hang", "Error: no result in 0.1 s."),
  ],
)
def test_what_tools_raise_is_read_by_the_policy(how, said):
  session = make(tools=(FAIL,), call_s=0.1)
  ((found,),), _ = play(session, act(("fail", {"how": how})))
  assert found.startswith(said)
  assert len(found) <= 500
  assert session.scores()["tool_errors"] == 1


@pytest.mark.parametrize(
  ("value", "said"),
  [
    (np.float32(0.5), "0.5"),
    (np.int64(7), "7"),
    (np.bool_(True), "true"),
    (np.arange(4).reshape(2, 2), "[[0, 1], [2, 3]]"),
    ({"b", "a"}, '["a", "b"]'),
    (decimal.Decimal("12.50"), "12.50"),
    (datetime.date(2026, 1, 2), "2026-01-02"),
    (
      {"when": datetime.datetime(2026, 1, 2, 3), np.int64(1): (np.ones(1),)},
      '{"when": "2026-01-02T03:00:00", "1": [[1.0]]}',
    ),
    (None, "null"),
  ],
)
def test_what_has_one_meaning_is_written(monkeypatch, value, said):
  monkeypatch.setitem(tool_functions.GIVEN, "it", value)
  session = make(tools=(f"{OWN}:give",))
  ((found,),), _ = play(session, act(("give", {"what": "it"})))
  assert found == said
  assert session.scores()["tool_errors"] == 0


def test_what_cannot_be_written_is_an_error_and_no_result():
  session = make(tools=(FAIL,))
  with pytest.raises(TypeError, match=r"fail' returned <object .* Convert it"):
    play(session, act(("fail", {"how": "object"})))


def test_results_are_cut_by_bytes():
  session = make(tools=(FAIL,), max_bytes=9)
  ((long, odd),), _ = play(
    session, act(("fail", {"how": "long"}), ("fail", {"how": "surrogate"}))
  )
  assert long == "éééé\n[1999991 bytes left out]"
  assert odd == "\ud800"


def test_an_error_behind_much_output_is_read():
  session = make(tools=("python",), max_bytes=100)
  code = "print('x' * 1000)\n1 / 0"
  ((said,),), _ = play(session, act(("python", {"code": code})))
  session.close()
  assert said.startswith("x" * 75 + "\n[")
  assert "bytes left out]" in said
  assert said.endswith("division by zero")


def test_calls_beyond_a_limit_are_refused():
  one = act(("add", {"x": 1}))

  def last(*actions, **options):
    session = make(tools=(ADD, FAIL), **options)
    said, _ = play(session, *actions)
    return said[-1], session.scores()["refused"]

  assert last(one, one, max_calls=1) == (
    ["Error: the call was not made: all 1 calls are used up."],
    1.0,
  )
  (message,), refused = last(one, one, max_total_bytes=4)
  assert (message, refused) == ("2.0", 0.0)
  (message,), refused = last(one, one, max_total_bytes=3)
  assert ("said all that they may" in message, refused) == (True, 1.0)
  hang = act(("fail", {"how": "hang"}))
  (message,), _ = last(hang, one, call_s=0.1, total_s=0.15)
  assert "the 0.15 s for tools are used up" in message
  both = act(("fail", {"how": "hang"}), ("add", {"x": 1}))
  (_, message), _ = last(both, call_s=0.1, turn_s=0.15)
  assert "the time for the calls of a message is used up" in message


def test_a_message_has_only_so_many_calls():
  session = make(tools=(ADD,), max_parallel=2)
  (said,), _ = play(session, act(*[("add", {"x": 1})] * 1000))
  assert said[:2] == ["2.0"] * 2
  assert said[2:] == [
    "Error: 998 more calls were not made; a message has at most 2."
  ]
  assert session.scores()["tool_calls"] == 2
  assert session.scores()["refused"] == 998


@pytest.mark.slow
def test_python_keeps_names_between_calls():
  session = make()
  said, (reward, done) = play(
    session,
    act(("python", {"code": "x = 6"}), ("python", {"code": "x * 7"})),
    act(("python", {"code": "print(x)\n1 / 0"})),
    "It is \\boxed{42}.<|im_end|>",
  )
  assert said[0] == ["", "42"]
  assert said[1][0].startswith("6\n")
  assert "ZeroDivisionError" in said[1][0]
  assert (reward, done) == (1.0, True)
  assert session.scores()["tool_calls"] == 3
  assert session.scores()["tool_errors"] == 1
  session.close()


# --- Answers -----------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
  ("grade", "answer", "text", "value"),
  [
    ("exact", "Paris", "the  PARIS!", 1.0),
    ("exact", "Paris", "In Paris", 0.0),
    ("exact", ["Paris", "Lutetia"], "<answer>lutetia</answer>", 1.0),
    ("exact", 42, "I say \\boxed{42}", 1.0),
    ("exact", "Paris", "<think>Rome</think>Paris", 1.0),
    ("exact", "Paris", "<think>Paris", 0.0),
    ("exact", "The", "the", 0.0),
    ("exact", "!", "!", 1.0),
    ("contains", "Paris", "It is in Paris, of course.", 1.0),
    ("contains", "Paris", "Parisians", 0.0),
    ("contains", ["Rome", "Paris"], "<answer>Paris, France</answer>", 1.0),
    ("contains", "Paris", "<think>Paris</think>Rome", 0.0),
    ("math", "1/2", "So \\boxed{0.5}.", 1.0),
    ("math", 42, "<answer>41</answer>", 0.0),
    ("math", "42", "no box", 0.0),
    (f"{OWN}:letters", "abcd", "abx", 0.5),
    (f"{OWN}:slowly", "abcd", "abcd", 1.0),
  ],
)
def test_answers_are_graded(grade, answer, text, value):
  session = make({"gold": answer}, tools=(ADD,), grade=grade, answer="gold")
  assert session.step(text + "<|im_end|>") == ("", value, True)
  assert session.scores()["grade"] == value
  assert session.scores()["accuracy"] == float(value == 1.0)


@pytest.mark.slow
def test_an_answer_may_stand_behind_a_marker():
  session = make({"answer": "7"}, tools=(ADD,), answer_after="####")
  assert session.step("8, or:\n#### 7\n")[1] == 1.0


@pytest.mark.parametrize("extras", [{}, {"answer": ""}, {"answer": []}])
def test_without_a_right_answer_there_is_no_episode(extras):
  with pytest.raises(ValueError, match="the extras have no 'answer'"):
    tools.make("q", extras, 0, tools=(ADD,))


def test_who_grades_says_something():
  session = make(tools=(ADD,), grade=f"{OWN}:undecided")
  with pytest.raises(ValueError, match=r"returned \[None\] for an answer"):
    session.step("42")


# --- Options -----------------------------------------------------------------


@pytest.mark.parametrize(
  ("options", "message"),
  [
    ({"format": "xml"}, "unknown format 'xml'"),
    ({"max_calls": 0}, "max_calls=0; needs a positive number"),
    ({"call_s": "1"}, "call_s='1'; needs a positive number"),
    ({"call_s": 9.0}, "call_s=9.0 and turn_s=8.0"),
    ({"tools": "python"}, "tools='python'; needs a list"),
    ({"tools": ()}, r"tools=\(\); needs a list"),
    ({"tools": ("search",)}, "'search' needs a file of passages"),
    ({"corpus": "a.txt"}, "'search' needs a file of passages, and only it"),
    ({"tools": ("web",)}, "tool 'web': needs an import path"),
    ({"tools": (f"{OWN}:no_hint",)}, "no type hint of the argument 'x'"),
    ({"tools": (f"{OWN}:waits",)}, "is `async`; needs a plain function"),
    ({"tools": (ADD, ADD)}, "have the same name"),
    ({"grade": f"{OWN}:by_tokens", "tools": (ADD,)}, "asks for tokens"),
    ({"grade": "none_such", "tools": (ADD,)}, "reward function 'none_such'"),
  ],
)
def test_options_that_cannot_be_are_refused(options, message):
  with pytest.raises(ValueError, match=message):
    tools.warm_up(**options)


@pytest.mark.parametrize("begin", [tools.warm_up, make])
@pytest.mark.parametrize(
  "limit", [{"max_bytes": 2 << 20}, {"memory": 1 << 20}, {"max_calls": 1.5}]
)
def test_limits_of_python_are_checked_before_there_is_an_episode(begin, limit):
  ((name, value),) = limit.items()
  with pytest.raises(ValueError, match=f"Interpreter: {name}={value}; needs"):
    begin(**limit)
  begin(**limit, tools=(ADD,))


def test_unknown_options_are_refused_before_there_is_a_worker():
  with pytest.raises(
    ValueError, match=r"'max_call'; .* it takes format, tools"
  ):
    session_worker.load_factory(PATH, {"max_call": 1})


def test_search_by_another_name_is_refused(corpus):
  clash = ("search", f"{OWN}:search")
  with pytest.raises(ValueError, match="have the same name"):
    tools.schemas(tools=clash, corpus=corpus)


def test_schemas_are_those_of_the_tools(corpus):
  options = {"tools": ["python", "search", ADD], "corpus": corpus}
  made = session_worker.load_factory(PATH, options).schemas()
  assert [x["function"]["name"] for x in made] == ["python", "search", "add"]
  assert all(x["type"] == "function" for x in made)
  assert session_worker.load_factory(PATH).schemas() == made[:1]


def test_markup_of_the_largest_observation():
  chat_text = chats.template("qwen")
  said = tools.in_chat(chat_text, max_parallel=3)
  assert said == call_formats.named("qwen").render([""] * 4, ended=False)
  with pytest.raises(
    ValueError, match="format='hermes' is not that of the cha"
  ):
    tools.in_chat(chat_text, format="hermes")


# --- Workers -----------------------------------------------------------------


@pytest.mark.slow
def test_sessions_live_in_workers(corpus):
  options = {"tools": ["search", ADD], "corpus": corpus, "grade": "exact"}
  with sessions.HostSessions(PATH, num_workers=1, options=options) as workers:
    names = workers.score_names("q", {"answer": "Rhine"})
    episodes = workers.begin(["q"] * 2, [{"answer": "Rhine"}] * 2, [0, 1])
    action = act(("search", {"query": "1230"}), ("add", {"x": 1}))
    answers = episodes.step({0: action, 1: "Rhine<|im_end|>"}, False)
    said = answers[0].observation
    assert said[1].startswith("[1] Rhine\n")
    assert said[3] == "2.0"
    assert answers[1].done
    assert answers[1].scores["accuracy"] == 1.0
    assert sorted(answers[1].scores) == names
    assert episodes.end([0])[0]["tool_calls"] == 2.0
    assert not any(episodes.failures.failed)


def test_a_corpus_that_is_not_there_is_an_error_at_once():
  with pytest.raises(FileNotFoundError, match="no file '/no/such' of passages"):
    tools.warm_up(tools=["search"], corpus="/no/such")
