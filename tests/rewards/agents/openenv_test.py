"""Sessions of OpenEnv's servers, and servers that break the protocol."""

import contextlib
import time
import tracemalloc

import pytest

from grpo_jax.rewards.agents import openenv
from grpo_jax.rewards.workers import sessions
from tests.rewards.agents import openenv_peers

LIMIT_S = 0.4
PATIENT_S = 20.0
NOWHERE = "http://127.0.0.1:9"


def options(url, limit_s=PATIENT_S, **more):
  settings = {"url": url, "action": "text", "view": "said", **more}
  return {"servers": {"peer": settings}, "timeout_s": limit_s}


def played(made, actions="aaa", extras=None):
  """Answers of a session to some actions, and its scores."""
  session = openenv.make("?", extras or {}, 0, **made)
  with contextlib.closing(session):
    return [session.step(x) for x in actions], session.scores()


@pytest.mark.parametrize("name", openenv_peers.BAD)
def test_a_peer_that_breaks_the_protocol_is_an_error_of_its_row(name):
  tracemalloc.start()
  start = time.monotonic()
  with (
    openenv_peers.serve(name) as url,
    pytest.raises((openenv.ServerError, TimeoutError)) as caught,
  ):
    played(options(url, LIMIT_S))
  assert time.monotonic() - start < 30
  # The texts of a peer are shown as they are written in Python, and cut.
  assert len(str(caught.value)) < 600
  assert str(caught.value).isprintable()
  assert tracemalloc.get_traced_memory()[1] < 64 << 20
  tracemalloc.stop()


def test_an_episode():
  scores = {"accuracy": 1.0, "turns": 2.0}
  said = [("more", 0.5, False), ("", 1.0, True)]
  with openenv_peers.serve("good") as url:
    assert played(options(url), ("a<eos>", "b")) == (said, scores)
    cut_off = played(options(url), "a")[1]
    assert cut_off == {"accuracy": 0.0, "turns": 1.0}
    # The first address that can be reached, from the row's own on.
    assert played(options([NOWHERE, url]), "ab") == (said, scores)
  with openenv_peers.serve("full at first") as url:
    assert played(options(url), "ab") == (said, scores)


def test_rows_of_a_prompt_are_spread_over_the_addresses():
  with openenv_peers.serve("good") as one, openenv_peers.serve("good") as two:
    made, names = options([one, two]), []
    for row in range(4):
      session = openenv.make("?", {"seed": 6}, row, **made)
      names.append(session.game._connection.name)
      session.close()
    assert names == [x.removeprefix("http://") for x in (one, two)] * 2


def test_tools_are_called_in_the_format_of_a_chat():
  with openenv_peers.serve("tools") as url:
    made = options(url, action="", scores={"calls": "calls"})
    made["calls"] = "qwen"
    (schema,) = openenv.schemas(**made)
    call = '<tool_call>\n{"name": "twice", "arguments": %s}\n</tool_call>'
    actions = [
      call % '{"x": 4}' + call % "{}" + "<|im_end|>",
      call % "{",  # It cannot be read, and is not made.
      call % '{"x": 1}',
    ]
    said, scores = played(made, actions)
    nothing, _ = played(made, ["I give up.<|im_end|>"])
  assert schema["function"]["name"] == "twice"
  assert schema["function"]["parameters"]["type"] == "object"
  assert said[0][0][1::2] == ("8", "Error: no x")
  assert said[1][0][1].startswith("Error: the call cannot be read")
  assert said[2] == ("", 0.0, True)
  assert scores == {"accuracy": 0.0, "turns": 3.0, "calls": 3.0}
  assert nothing == [("", 0.0, True)]


def test_a_record_chooses_its_environment_and_its_reset():
  with (
    openenv_peers.serve("tools") as url,
    openenv_peers.serve("good") as other,
  ):
    made = options(other)
    made["servers"]["tools"] = {
      **{"url": url, "action": "text", "reset": {"level": 1}},
      **{"view": "said", "scores": {"num": "calls"}},
    }
    extras = {"environment": "tools", "reset": {"level": 2}, "seed": 7}
    session = openenv.make("?", extras, 0, **made)
    assert session.game.observation == {
      **{"said": "the seed is 7", "seed": 7, "level": 2}
    }
    assert session.scores() == {"accuracy": 0.0, "turns": 0.0, "num": 0.0}
    session.close()
    # A score of another environment does not apply.
    _, scores = played(made, "a", {"environment": "peer"})
    assert scores == {"accuracy": 0.0, "turns": 1.0, "num": None}
    for wrong in ({}, {"environment": "chess"}):
      with pytest.raises(ValueError, match=r"'environment' of a record"):
        openenv.make("?", wrong, 0, **made)
    # Prompts come from all environments alike, and are what a reset shows.
    prompts = [openenv.problem(seed, **made) for seed in (6, 7)]
    assert prompts == [
      ("go on", {"seed": 6, "environment": "peer", "first": "go on"}),
      (
        "the seed is 7",
        {"seed": 7, "environment": "tools", "first": "the seed is 7"},
      ),
    ]
    openenv.make(*prompts[1], 0, **made).close()
    with pytest.raises(openenv.ServerError, match="is 7' after a reset, and"):
      openenv.make("?", {**prompts[1][1], "first": "another"}, 0, **made)


def test_a_prompt_that_no_server_makes_costs_its_rows():
  made = options(NOWHERE)
  prompt, extras = openenv.problem(3, **made)
  assert prompt == openenv.UNKNOWN
  with pytest.raises(openenv.ServerError, match="ConnectionRefused"):
    openenv.make(prompt, extras, 0, **made)


@pytest.mark.parametrize(
  ("change", "message"),
  [
    ({"servers": {}}, r"servers=\{\}; needs \{'NAME': \{'url'"),
    ({"servers": {"a": {"url": "ftp://a"}}}, "'a' has the url 'ftp://a'; need"),
    ({"servers": {"a": {"url": []}}}, "'a' has the url ''"),
    ({"servers": {"a": {"uri": "b"}}}, "'uri'; a server has url, action, view"),
    ({"servers": {"a": {"url": NOWHERE}}}, "'a' has no action, the field that"),
    (
      {**options(NOWHERE, token="NO_SUCH")},
      "has the token 'NO_SUCH', and ther",
    ),
    ({**options(NOWHERE), "calls": "xml"}, "unknown format 'xml'; known are"),
  ],
)
def test_wrong_options(change, message):
  with pytest.raises(ValueError, match=message):
    openenv.warm_up(**change)


@pytest.mark.slow
def test_rows_of_broken_peers_fail_and_the_others_go_on():
  bad = ("silence", "closes", "flood", "NaN", "redirects")
  with contextlib.ExitStack() as stack:
    servers = {
      name: {
        "url": stack.enter_context(openenv_peers.serve(name)),
        **openenv_peers.OPTIONS,
      }
      for name in (*bad, "good")
    }
    names = [*servers] * 2
    workers = stack.enter_context(
      sessions.HostSessions(
        "grpo_jax.rewards.agents.openenv:make",
        row_timeout_s=60.0,
        options={"servers": servers, "timeout_s": 3.0},
      )
    )
    episodes = workers.begin(
      ["?"] * len(names), [{"environment": x} for x in names], [0] * len(names)
    )
    rows = range(len(names))
    first = episodes.step(dict.fromkeys(rows, "a"), is_last=False)
    last = episodes.step(dict.fromkeys(first, "b"), is_last=False)
    assert [names[row] for row in last] == ["good", "good"]
    assert {episodes.scores[row]["accuracy"] for row in last} == {1.0}
    counts = episodes.failures.counts
    assert counts["raised"] + counts["timeout"] == 10
    assert counts["timeout"] >= 2  # The silent one.
