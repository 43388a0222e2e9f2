"""Episodes over HTTP as rows: what is drawn, what is refused, who fails.

Here the environment is a script of threads, which asks as others do; that of
the package `verifiers` is in `served_run_test.py`.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import queue
import threading
import time
import urllib.parse
from concurrent import futures
from http import client

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from grpo_jax.data import pipeline
from grpo_jax.ops import logprobs
from grpo_jax.rewards.workers import verifiers_process
from grpo_jax.rollout import host_turns, sampling
from grpo_jax.serving import engine
from grpo_jax.settings import environment
from grpo_jax.training.phases import host_sampler, served_episodes
from grpo_jax.training.problem import rewards as rewards_lib
from grpo_jax.training.problem import served as served_lib
from grpo_jax.types import HostEnvironment, Prompts
from tests.training.phases import sampler_test, served

QUESTIONS = "say a", "bc"
GROUP = 2
MOST = 12  # Tokens of a row, of which an action has half.


class Scripted:
  """An environment whose episodes are a function of (ask, row)."""

  def __init__(self, script):
    self._script = script
    self._said: queue.Queue = queue.Queue()
    self._threads, self._wrong = [], []
    self.killed = 0

  def play(self, number, rows, url, token):
    for row in rows:
      thread = threading.Thread(
        target=self._play, args=(row, url, token), daemon=True
      )
      self._threads.append(thread)
      thread.start()

  def _play(self, row, url, token):
    def ask(messages, path="/chat/completions", **fields):
      body = {"messages": messages, "model": row["model"], **fields}
      return served.post(url + path, body, token)

    try:
      said = self._script(ask, row)
    except AssertionError as error:
      self._wrong.append(error)
      said = done(row)
    if said is not None:
      self._said.put(said)

  def hear(self, number):
    found = []
    while not self._said.empty():
      one = self._said.get()
      if isinstance(one, Exception):
        raise one
      found.append(one)
    return found

  def kill(self):
    self.killed += 1

  def close(self):
    pass

  def join(self):
    """Waits for the scripts; what they found wrong is raised."""
    for thread in self._threads:
      thread.join(timeout=30)
    if self._wrong:
      raise self._wrong.pop()


def done(row, reward=1.0, **metrics):
  return verifiers_process.VerifiersEpisode(
    row["row"], "", reward, metrics, True
  )


def question(row):
  return {"role": "user", "content": QUESTIONS[row["example"]]}


@pytest.fixture(scope="module")
def loaded(tmp_path_factory):
  path = tmp_path_factory.mktemp("served") / "prompts.jsonl"
  served.write_prompts(path, QUESTIONS)
  return served.loaded_of(served.config_of(path))


class Game:
  """A problem with a script for an environment, and its player."""

  def __init__(self, loaded, script=None, temperature=1.0, **limits):
    self.loaded = loaded
    self.environment = Scripted(script or single)
    timeouts = {"row_timeout_s": 20.0, "step_timeout_s": 30.0, **limits}
    self.served = served_lib.Served(
      self.environment, environment.ServedConfig(), **timeouts
    )
    text = loaded.problem.tokenizer
    self.turns = host_turns.HostTurns(
      loaded.policy,
      sampling.SamplerConfig(MOST, text.end_ids, text.pad_id, temperature),
      GROUP,
      HostEnvironment(
        MOST, MOST // 2, MOST, tuple(text.end_ids), "verifiers:x"
      ),
    )
    config = loaded.config
    rewards = dataclasses.replace(
      config.rewards, functions=("return",), correct="return", in_graph=False
    )
    self.problem = dataclasses.replace(
      loaded.problem,
      sessions=self.served,
      host_environment=self.turns.environment,
      score_names=frozenset({"length", served_lib.ACCURACY}),
      reward=rewards_lib.make(
        dataclasses.replace(config, rewards=rewards),
        rewards_lib.InGraph(rewards_lib.of_episodes),
        "return",
      ),
    )
    self.player = host_sampler.host_episodes(
      self.problem, loaded.mesh, self.turns
    )

  def play(self, script=None):
    """Plays a step; the rollout as NumPy arrays, and what was counted."""
    if script is not None:
      self.environment._script = script
    with jax.set_mesh(self.loaded.mesh):
      played = self.player.sample(
        self.loaded.params, self.prompts, jax.random.key(3), self.batch
      )
    self.environment.join()
    sampler_test.check_shapes(self.player, self.prompts, played, self.loaded)
    return jax.device_get(played.rollout), played

  @functools.cached_property
  def batch(self):
    ids = [self.loaded.problem.tokenizer.encode(x) for x in QUESTIONS]
    tokens = np.zeros((2, served.MAX_PROMPT_LEN), np.int32)
    for row, x in enumerate(ids):
      tokens[row, -len(x) :] = x
    mask = np.arange(served.MAX_PROMPT_LEN) >= (
      served.MAX_PROMPT_LEN - np.array([[len(x)] for x in ids])
    )
    prompts = Prompts(tokens, mask, np.array([5, 9], np.int32), {})
    records = [
      {
        "prompt": np.array(x),
        "answer": "",
        "extras": {"split": "train", "example": i},
      }
      for i, x in enumerate(ids)
    ]
    return pipeline.PromptBatch(prompts, records)

  @property
  def prompts(self):
    return jax.tree.map(jnp.asarray, self.batch.prompts)

  def close(self):
    self.served.close()


def single(ask, row):
  status, answer = ask([question(row)])
  assert status == 200, answer
  text = answer["choices"][0]["message"]["content"]
  return done(row, float(row["row"]), length=float(len(text)))


def talk(ask, row, said="go", turns=2):
  """An episode of several turns."""
  messages = [question(row)]
  for _ in range(turns):
    status, answer = ask(messages)
    assert status == 200, answer
    message = answer["choices"][0]["message"]
    messages += [message, {"role": "user", "content": said}]
  return done(row)


@pytest.fixture(scope="module")
def game(loaded):
  game = Game(loaded)
  yield game
  game.close()


@pytest.mark.slow
def test_one_turn_has_the_draws_of_the_sampler(loaded, game):
  rollout, played = game.play(single)
  text = loaded.problem.tokenizer
  config = sampling.SamplerConfig(MOST // 2, text.end_ids, text.pad_id)
  expected = jax.device_get(
    sampling.sample(
      *(loaded.policy, loaded.params, game.prompts, jax.random.key(3)),
      config,
      GROUP,
    )
  )
  slots = slice(0, MOST // 2)
  np.testing.assert_array_equal(
    rollout.completion_mask[:, slots], expected.completion_mask
  )
  assert not rollout.completion_mask[:, MOST // 2 :].any()
  np.testing.assert_array_equal(
    np.where(expected.completion_mask, rollout.tokens[:, slots], 0),
    np.where(expected.completion_mask, expected.tokens, 0),
  )
  for name in ("behavior_logp", "sampler_logp", "entropy"):
    np.testing.assert_allclose(
      getattr(rollout, name)[:, slots], getattr(expected, name), atol=2e-6
    )
  assert not rollout.observed.any()
  np.testing.assert_array_equal(rollout.scores["return"], [0, 1, 2, 3])
  np.testing.assert_array_equal(rollout.scores["accuracy"], [0, 1, 1, 1])
  np.testing.assert_array_equal(rollout.turn_rewards.sum(axis=1), [0, 1, 2, 3])
  np.testing.assert_array_equal(rollout.prompt_index, [0, 0, 1, 1])
  assert rollout.terminated.all()
  assert not any(played.failures.values())
  np.testing.assert_array_equal(played.scored.rewards, [0, 1, 2, 3])
  assert played.calls >= 1


@pytest.mark.slow
def test_turns_are_one_row_whose_log_probs_are_those_of_the_update(
  loaded, game
):
  rollout, played = game.play(talk)
  own = rollout.completion_mask & ~rollout.observed
  for turn in (0, 1):
    assert played.turns[f"turn/{turn}/calls"] == 4
    tokens = (own & (rollout.turn == turn)).sum()
    assert played.turns[f"turn/{turn}/tokens"] == tokens
  assert played.turns["turn/0/observed"] == rollout.observed.sum()
  assert played.turns["turn/2/calls"] == 0
  text = loaded.problem.tokenizer
  for row in range(4):
    mask = rollout.completion_mask[row]
    shown = text.decode(rollout.tokens[row][rollout.observed[row]].tolist())
    assert shown == "go"
    turns = rollout.turn[row][mask]
    assert turns[0] == 0
    assert turns[-1] == 1
    assert (np.diff(turns) >= 0).all()
    seen = rollout.observed[row]
    assert set(rollout.turn[row][seen]) == {1}
    assert not rollout.behavior_logp[row][seen].any()
  h, _ = loaded.policy.hidden(
    loaded.params,
    game.prompts.tokens,
    game.prompts.mask,
    jnp.asarray(rollout.tokens),
    jnp.asarray(rollout.completion_mask),
    jnp.asarray(rollout.prompt_index),
  )
  found = logprobs.token_outputs(
    functools.partial(loaded.policy.head, loaded.params),
    h,
    jnp.asarray(rollout.tokens),
    temperature=1.0,
    with_entropy=False,
  )
  np.testing.assert_allclose(
    np.asarray(found.logp)[own], rollout.behavior_logp[own], atol=1e-5
  )


def rewritten(ask, row):
  """The first row forgets what it has said."""
  status, answer = ask([question(row)])
  message = answer["choices"][0]["message"]
  if row["row"]:
    return done(row)
  message["content"] += "!"
  status, answer = ask([question(row), message, question(row)])
  assert status == 400
  assert "rewritten" in answer["error"]["message"]
  # What comes later changes nothing.
  status, answer = ask([question(row)])
  assert status == 400
  assert "is over" in answer["error"]["message"]
  return done(row)


def other_prompt(ask, row):
  if row["row"]:
    return single(ask, row)
  status, answer = ask([{"role": "user", "content": "what?"}])
  assert status == 400
  assert "another prompt" in answer["error"]["message"]
  return done(row)


def says_why(ask, row):
  if row["row"]:
    return single(ask, row)
  return verifiers_process.VerifiersEpisode(0, "no tool today", 0.0, {}, False)


def asks_nothing(ask, row):
  return single(ask, row) if row["row"] else done(row)


def hangs(ask, row):
  return single(ask, row) if row["row"] else None


def dies(ask, row):
  single(ask, row)
  if row["row"] == 3:
    time.sleep(0.3)
    return verifiers_process.Ended("its process has ended")
  return None


@pytest.mark.parametrize(
  ("script", "kind", "message", "failed"),
  [
    (rewritten, "rewritten", "rewritten", [0]),
    (other_prompt, "rewritten", "another prompt", [0]),
    (says_why, "raised", "environment: no tool today", [0]),
    (asks_nothing, "raised", "asked for nothing", [0]),
    (hangs, "timeout", "no request in 0.5 s", [0]),
    (dies, "worker_died", "its process has ended", [0, 1, 2, 3]),
  ],
)
def test_rows_that_fail_are_unscored_and_counted(
  loaded, game, script, kind, message, failed
):
  game.served.row_timeout_s = 0.5 if script is hangs else 20.0
  before = game.environment.killed
  rollout, played = game.play(script)
  unscored = np.isnan(rollout.scores["return"])
  np.testing.assert_array_equal(np.flatnonzero(unscored), failed)
  np.testing.assert_array_equal(~np.asarray(played.scored.valid), unscored)
  assert {k: n for k, n in played.failures.items() if n} == {kind: len(failed)}
  assert message in played.errors[5, 0]
  assert played.turns["turn/0/failed"] == len(failed)
  assert not rollout.terminated[failed].any()
  # What hangs is ended; what has failed by itself is left alone.
  assert game.environment.killed - before == (script is hangs)


@pytest.mark.slow
def test_all_rows_have_a_deadline_together(loaded):
  game = Game(loaded, hangs, step_timeout_s=0.3)
  rollout, played = game.play()
  game.close()
  assert played.failures["step_timeout"] >= 1
  assert np.isnan(rollout.scores["return"][0])
  assert game.environment.killed == 1


def too_long(ask, row):
  messages = [question(row)]
  answer = ask(messages)[1]
  messages += [answer["choices"][0]["message"], question(row)]
  messages[-1]["content"] = "x" * MOST
  status, answer = ask(messages)
  assert status == 400
  assert "maximum context length" in answer["error"]["message"]
  return done(row)


def test_a_row_that_is_full_was_cut_off(game):
  rollout, played = game.play(too_long)
  assert not any(played.failures.values())
  assert not rollout.terminated.any()
  # The last request is not part of the row.
  assert not rollout.observed.any()
  assert played.scored.valid.all()


@pytest.mark.parametrize(
  ("fields", "param"),
  [
    ({"n": 2}, "n"),
    ({"seed": 1}, "seed"),
    ({"temperature": 0.5}, "temperature"),
    ({"top_p": 0.5}, "top_p"),
  ],
)
def test_what_would_not_be_trained_as_drawn_is_refused(game, fields, param):
  def script(ask, row):
    status, answer = ask([question(row)], **fields)
    assert status == 400
    assert answer["error"]["param"] == param
    status, _ = ask([question(row)], temperature=1, top_p=1, max_tokens=2)
    assert status == 200
    return done(row)

  rollout, played = game.play(script)
  assert not any(played.failures.values())
  assert (rollout.completion_mask.sum(axis=1) <= 2).all()


def test_a_prompt_without_messages_is_refused(game):
  def script(ask, row):
    prompt = QUESTIONS[row["example"]]
    status, answer = ask(None, path="/completions", prompt=prompt)
    assert status == 400
    assert "is a chat" in answer["error"]["message"]
    return single(ask, row)

  _, played = game.play(script)
  assert not any(played.failures.values())


def test_requests_after_the_step_are_refused(game):
  models = []

  def script(ask, row):
    models.append(row["model"])
    return single(ask, row)

  game.play(script)
  address = f"{game.served.url}/chat/completions"
  body = {"messages": [question({"example": 0})], "model": models[0]}
  status, answer = served.post(address, body, game.served.token)
  assert status == 404
  assert "it is over" in answer["error"]["message"]
  # And without the token nobody is told anything.
  status, _ = served.post(address, {})
  assert status == 401


def test_the_same_step_has_the_same_rows(game):
  first, second = (game.play(talk)[0] for _ in range(2))
  jax.tree.map(np.testing.assert_array_equal, first, second)


def test_prompts_of_others_are_refused(game):
  record = {"prompt": np.array([5]), "answer": "", "extras": {}}
  batch = pipeline.PromptBatch(game.batch.prompts, [record, record])
  with (
    jax.set_mesh(game.loaded.mesh),
    pytest.raises(ValueError, match=r"none of them; pass those of the run"),
  ):
    game.player.sample(
      game.loaded.params, game.prompts, jax.random.key(0), batch
    )


def test_a_client_that_asks_again_gets_the_same_answer(loaded, game):
  game.play(single)
  sampler, rollouts = game.player._sampler, game.served.rollouts
  limits = served_lib.ServedLimits(MOST, MOST // 2, 1.0, None)
  text = question({"example": 0})
  prompt = loaded.problem.tokenizer.encode(text["content"])
  key = engine.key_of(1)
  url = urllib.parse.urlsplit(game.served.url)

  def waited(condition):
    end = time.monotonic() + 30
    while not condition():
      assert time.monotonic() < end
      time.sleep(0.01)

  def draw():
    with jax.set_mesh(loaded.mesh):
      assert sampler.work(loaded.params, 30.0) == 1

  def ask():
    address = f"{game.served.url}/chat/completions"
    return served.post(address, body, game.served.token)

  for gives_up in (True, False):
    episode = served_lib.Episode(prompt, key)
    rollouts.begin([episode], game.player._speaker, sampler, limits)
    body = {"messages": [text], "model": rollouts.model(0)}
    with futures.ThreadPoolExecutor() as pool:
      if gives_up:
        link = client.HTTPConnection(url.hostname, url.port)
        token = {"Authorization": f"Bearer {game.served.token}"}
        link.request(
          "POST", f"{url.path}/chat/completions", json.dumps(body), token
        )
        waited(lambda: sampler._waiting)
        link.close()
        waited(lambda: not game.served._server._num_requests)
        draw()
        status, answer = ask()
      else:
        first = pool.submit(ask)
        waited(lambda: sampler._waiting)
        second = pool.submit(ask)
        waited(lambda: game.served._server._num_requests == 2)
        draw()
        status, answer = first.result()
        assert second.result() == (status, answer)
    assert status == 200, answer
    assert len(episode.turns) == 1
    # An answer that has arrived is not asked for again.
    status, answer = ask()
    assert status == 400
    assert "rewritten" in answer["error"]["message"]
    rollouts.end()


@pytest.mark.parametrize("name", ["record_kept", "record_routing"])
def test_what_is_not_recorded_is_refused(game, name):
  config = dataclasses.replace(game.turns.config, top_k=3)
  turns = dataclasses.replace(game.turns, config=config)
  object.__setattr__(turns.config, name, True)
  with pytest.raises(ValueError, match=f"{name}.*is not recorded"):
    served_episodes.ServedEpisodes(game.problem, game.loaded.mesh, turns)


def test_bodies_are_json(game):
  def script(ask, row):
    status, answer = ask([question(row)], logprobs=True, return_token_ids=True)
    assert status == 200
    assert json.dumps(answer)
    choice = answer["choices"][0]
    logps = [x["logprob"] for x in choice["logprobs"]["content"]]
    return done(row, float(np.sum(logps)), length=len(choice["token_ids"]))

  rollout, _ = game.play(script)
  np.testing.assert_allclose(
    rollout.scores["return"], rollout.behavior_logp.sum(axis=1), rtol=1e-5
  )
  np.testing.assert_array_equal(
    rollout.scores["length"], rollout.completion_mask.sum(axis=1)
  )
