"""The server as the unmodified SDK of Tinker sees it."""

import json

import jax
import numpy as np
import pytest
import tinker
from tinker import types

from tests.serving.tinker import door as door_lib
from tests.training.phases import served

TEXTS = ["hello world", "abc", "27 + 58 = 85"]
# Every test compiles or uses programs of some seconds.
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def door(tmp_path_factory):
  with door_lib.opened(tmp_path_factory.mktemp("door")) as door:
    yield door


@pytest.fixture(scope="module")
def service(door):
  client = door.client()
  yield client
  client.close("success").result()


def training(service, rank=4, seed=1):
  return service.create_lora_training_client(
    door_lib.MODEL, rank=rank, seed=seed
  ).result()


def losses_of(client, data, steps=3, rate=1e-2):
  """Losses of a few steps."""
  found = []
  for _ in range(steps):
    passed = client.forward_backward(data, "cross_entropy")
    step = client.optim_step(types.AdamParams(learning_rate=rate))
    found.append(passed.result().metrics["loss:sum"])
    assert step.result().metrics["gradient_norm"] > 0
  return found


def test_the_loss_of_imitation_falls(door, service):
  client = training(service)
  info = client.get_info()
  assert info.model_data.model_name == door_lib.MODEL
  assert info.lora_rank == 4
  data = [door.datum(text) for text in TEXTS]
  first, *_, last = losses_of(client, data, steps=8, rate=3e-2)
  assert last < 0.7 * first
  passed = client.forward(data, "cross_entropy").result()
  total = 0.0
  for text, one in zip(TEXTS, passed.loss_fn_outputs, strict=True):
    assert one["logprobs"].shape == [len(door.tokenizer.encode(text)) - 1]
    total -= sum(one["logprobs"].data)
  np.testing.assert_allclose(passed.metrics["loss:sum"], total, rtol=1e-5)


def test_a_request_in_parts_is_one(door, service):
  data = [door.datum(text) for text in TEXTS * 3]
  whole, parts = training(service), training(service)
  losses_of(whole, data, steps=1)
  passed = [parts.forward_backward([x], "cross_entropy") for x in data]
  parts.optim_step(types.AdamParams(learning_rate=1e-2)).result()
  found = [
    x.forward(data, "cross_entropy").result().metrics["loss:sum"]
    for x in (whole, parts)
  ]
  np.testing.assert_allclose(*found, rtol=1e-6)
  assert all(x.result().metrics["loss:sum"] > 0 for x in passed)


def test_clients_do_not_disturb_each_other(door, service):
  data = [door.datum(text) for text in TEXTS]
  alone = losses_of(training(service), data)
  one, other = training(service), training(service, rank=2, seed=5)
  among = []
  for _ in range(3):
    among += losses_of(one, data, steps=1)
    losses_of(other, data[:1], steps=1, rate=1e-1)
  assert among == alone
  assert other.get_info().lora_rank == 2


def test_clients_that_wait_are_run_together(door, service, monkeypatch):
  """Passes and samples; one that fails, fails alone."""
  data = [door.datum(text) for text in TEXTS]
  prompt = types.ModelInput.from_ints(door.tokenizer.encode("hel"))
  params = types.SamplingParams(max_tokens=6, seed=7)
  of_clients = (data, data[:1])
  alone = []
  for seed, own in enumerate(of_clients):
    client = training(service, seed=seed)
    found = losses_of(client, own, steps=1)
    sampler = client.save_weights_and_get_sampling_client().result()
    alone.append((found, sampler.sample(prompt, 2, params).result()))

  sizes = []

  def counting(call):
    def counted(asked, *more):
      sizes.append(len(asked))
      return call(asked, *more)

    return counted

  device = door.service._device
  monkeypatch.setattr(device, "run", counting(device.run))
  monkeypatch.setattr(device, "draw", counting(device.draw))
  others = door.client()
  one, two, three = (
    training(x, seed=seed) for seed, x in enumerate((service, others, service))
  )
  with door.held() as until:
    passed = [
      client.forward_backward(own, "cross_entropy")
      for client, own in zip((one, two), of_clients, strict=True)
    ]
    step = one.optim_step(types.AdamParams(learning_rate=1e-2))
    bad = three.forward_backward([door.datum("x" * 60)], "cross_entropy")
    until(4)
  with pytest.raises(tinker.RequestFailedError, match="at most 40 fit"):
    bad.result()
  for (found, _), now in zip(alone, passed, strict=True):
    np.testing.assert_allclose(
      now.result().metrics["loss:sum"], found[0], rtol=1e-6
    )
  assert step.result().metrics["gradient_norm"] > 0
  two.optim_step(types.AdamParams(learning_rate=1e-2)).result()
  assert sizes == [2]
  samplers = [
    x.save_weights_and_get_sampling_client().result() for x in (one, two)
  ]
  with door.held() as until:
    drawn = [x.sample(prompt, 2, params) for x in samplers]
    until(2)
  for (_, expected), now in zip(alone, drawn, strict=True):
    for x, y in zip(expected.sequences, now.result().sequences, strict=True):
      assert x.tokens == y.tokens
      np.testing.assert_allclose(x.logprobs, y.logprobs, atol=3e-6)
  assert sizes == [2, 2]
  # A client that ends takes along what it has asked for.
  with door.held() as until:
    passed = [x.forward(data, "cross_entropy") for x in (two, one)]
    until(2)
    others.close("success").result()
  assert passed[1].result().metrics["loss:sum"] > 0
  assert sizes == [2, 2, 1]


def test_samples_have_the_log_probs_of_a_pass(door, service):
  """So the ratio of an unchanged policy is 1, to round-off."""
  client = training(service)
  losses_of(client, [door.datum(TEXTS[0])])
  sampler = client.save_weights_and_get_sampling_client().result()
  prompt = door.tokenizer.encode("hel")
  params = types.SamplingParams(max_tokens=6, seed=7)
  drawn = sampler.sample(types.ModelInput.from_ints(prompt), 4, params).result()
  data, advantages = [], []
  for one in drawn.sequences:
    assert one.stop_reason in ("length", "stop")
    ids, pad = [*prompt, *one.tokens], [0.0] * (len(prompt) - 1)
    of = {"advantages": [*pad, *([0.5] * len(one.tokens))]}
    of["logprobs"] = [*pad, *one.logprobs]
    given = {k: np.array(x, np.float32) for k, x in of.items()}
    given["target_tokens"] = np.array(ids[1:])
    data.append(types.Datum(types.ModelInput.from_ints(ids[:-1]), given))
    advantages.append(0.5 * len(one.tokens))
  passed = client.forward(data, "importance_sampling").result()
  for one, row in zip(drawn.sequences, passed.loss_fn_outputs, strict=True):
    found = row["logprobs"].data[len(prompt) - 1 :]
    np.testing.assert_allclose(found, one.logprobs, atol=3e-6)
  total = passed.metrics["loss:sum"]
  np.testing.assert_allclose(total, -sum(advantages), rtol=3e-6)
  # A seed decides the draws; what is trained later does not.
  losses_of(client, [door.datum(TEXTS[1])])
  again = sampler.sample(types.ModelInput.from_ints(prompt), 4, params).result()
  assert [x.tokens for x in again.sequences] == [
    x.tokens for x in drawn.sequences
  ]


def test_log_probs_of_a_prompt_are_those_of_the_policy(door, service):
  sampler = service.create_sampling_client(base_model=door_lib.MODEL).result()
  ids = door.tokenizer.encode(TEXTS[2])
  prompt = types.ModelInput.from_ints(ids)
  logps = sampler.compute_logprobs(prompt).result()
  policy, params = door.loaded.policy, door.loaded.params
  tokens = np.array([ids])
  mask = np.ones(tokens.shape, bool)
  with jax.set_mesh(door.loaded.mesh):
    h, _ = policy.hidden(
      *(params, tokens[:, :1], mask[:, :1], tokens[:, 1:], mask[:, 1:]),
      np.zeros(1, np.int32),
    )
    table = jax.nn.log_softmax(policy.head(params, h)[0])
  expected = [float(table[t, x]) for t, x in enumerate(ids[1:])]
  assert logps[0] is None
  np.testing.assert_allclose(logps[1:], expected, atol=3e-6)
  last = sampler.compute_logprobs(prompt, prompt_logprobs_last_n=3).result()
  assert last == [None] * (len(ids) - 3) + logps[-3:]
  drawn = sampler.sample(
    *(prompt, 2, types.SamplingParams(max_tokens=4, temperature=0.0)),
    include_prompt_logprobs=True,
  ).result()
  assert drawn.prompt_logprobs == logps
  one, two = drawn.sequences
  assert one.tokens == two.tokens  # Greedy.


def test_stops(door, service):
  sampler = service.create_sampling_client(base_model=door_lib.MODEL).result()
  prompt = types.ModelInput.from_ints(door.tokenizer.encode("ab"))

  def drawn(stop):
    params = types.SamplingParams(max_tokens=6, seed=3, stop=stop)
    return sampler.sample(prompt, 1, params).result().sequences[0]

  whole = drawn([])  # Not even the end token ends it.
  assert len(whole.tokens) == 6
  assert whole.stop_reason == "length"
  by_id = drawn([whole.tokens[2]])
  first = whole.tokens.index(whole.tokens[2])
  assert by_id.tokens == whole.tokens[: first + 1]
  assert by_id.stop_reason == "stop"
  said = door.tokenizer.decode
  text = said(whole.tokens[:3])[-1]
  by_text = drawn(text)
  assert by_text.stop_reason == "stop"
  assert by_text.tokens == whole.tokens[: len(by_text.tokens)]
  assert text in said(by_text.tokens)
  assert text not in said(by_text.tokens[:-1])


def test_importance_sampling_learns(door, service):
  """The reward is the share of the letters a to m, at first by chance."""
  client = training(service, seed=2)
  good = {
    i for i in range(256) if door.tokenizer.decode([i]) in [*"abcdefghijklm"]
  }
  prompt = door.tokenizer.encode("x:")
  rewards = []
  for step in range(12):
    sampler = client.save_weights_and_get_sampling_client().result()
    params = types.SamplingParams(max_tokens=4, seed=step, stop=[])
    asks = [
      sampler.sample(types.ModelInput.from_ints(prompt), 8, params)
      for params in (params, params.model_copy(update={"seed": 100 + step}))
    ]
    drawn = [x for ask in asks for x in ask.result().sequences]
    scores = np.array([np.mean([i in good for i in x.tokens]) for x in drawn])
    rewards.append(scores.mean())
    data = []
    for one, advantage in zip(drawn, scores - scores.mean(), strict=True):
      ids, pad = [*prompt, *one.tokens], [0.0] * (len(prompt) - 1)
      given = {
        "target_tokens": np.array(ids[1:]),
        "logprobs": np.array([*pad, *one.logprobs], np.float32),
        "advantages": np.array([*pad, *([advantage] * 4)], np.float32),
      }
      data.append(types.Datum(types.ModelInput.from_ints(ids[:-1]), given))
    passed = client.forward_backward(data, "importance_sampling")
    client.optim_step(types.AdamParams(learning_rate=5e-2)).result()
    assert abs(passed.result().metrics["loss:sum"]) < 1e-3  # Ratios are 1.
  assert np.mean(rewards[-3:]) > np.mean(rewards[:3]) + 0.15, rewards


def test_saved_weights_outlive_a_killed_server(door, tmp_path):
  """The next losses are the same, to the bit, after a kill in a pass."""
  data = [door.datum(text) for text in TEXTS]
  found, path = [], ""
  for life in range(2):
    with door_lib.process(tmp_path) as (process, url):
      service = tinker.ServiceClient(base_url=url, api_key=door_lib.KEY)
      if life == 0:
        client = training(service)
        losses_of(client, data)
        path = client.save_state("one").result().path
        found.append(losses_of(client, data))
        client.forward_backward(data * 20, "cross_entropy")
      else:
        resumed = service.create_training_client_from_state_with_optimizer(path)
        found.append(losses_of(resumed.result(), data))
        sampler = service.create_sampling_client(model_path=path).result()
        prompt = types.ModelInput.from_ints(door.tokenizer.encode("ab"))
        assert sampler.compute_logprobs(prompt).result()[1] < 0
      process.kill()
  assert found[0] == found[1]


def test_algorithms_of_the_library_by_name(door, service):
  client = training(service)
  of = {"logprobs": [-4.0] * 2, "advantages": [1.0] * 2, "weights": [1.0] * 2}
  data = [door.datum("abc", **of)]
  config = {"kl_coef": 0.0, "clip_low": 1.0, "clip_high": 10.0}
  passed = client.forward_backward(data, "grpo_jax.gspo", config).result()
  logp = np.mean(passed.loss_fn_outputs[0]["logprobs"].data)
  expected = -np.exp(logp + 4)  # No ratio is clipped.
  np.testing.assert_allclose(passed.metrics["loss:sum"], expected, rtol=1e-4)
  client.optim_step(types.AdamParams()).result()


def test_clients_of_bad_requests_get_clear_errors_and_go_on(door, service):
  client = training(service)
  good = door.datum("abc")
  for data, loss, config, said in (
    ([good], "focal", None, "there is no loss_fn 'focal'"),
    ([good], "ppo", None, "lacks logprobs, advantages"),
    ([good], "cross_entropy", {"beta": 1.0}, "no setting 'beta'"),
    ([door.datum("x" * 60)], "cross_entropy", None, "at most 40 fit"),
    (
      [door.datum("abc", weights=[np.nan, 1.0])],
      *("cross_entropy", None, "not finite"),
    ),
  ):
    with pytest.raises(tinker.RequestFailedError, match=said) as caught:
      client.forward_backward(data, loss, config).result()
    assert caught.value.category == "user"
  with pytest.raises(tinker.RequestFailedError, match="no gradient"):
    client.optim_step(types.AdamParams()).result()
  of = {"logprobs": [-300.0] * 2, "advantages": [1.0] * 2}
  client.forward_backward(
    [door.datum("abc", **of)], "importance_sampling"
  ).result()
  with pytest.raises(tinker.RequestFailedError, match="not finite: it was"):
    client.optim_step(types.AdamParams()).result()
  for kind in ("save_state", "save_weights_for_sampler"):
    with pytest.raises(tinker.RequestFailedError, match="must be a name"):
      getattr(client, kind)("../up").result()
  assert losses_of(client, [good])
  with pytest.raises(tinker.APIStatusError, match="nothing at"):
    service.create_sampling_client(
      model_path="tinker://a:train:0/weights/b"
    ).result()
  with pytest.raises(tinker.RequestFailedError, match="no base_model 'other'"):
    service.create_lora_training_client("other").result()
  with pytest.raises(tinker.AuthenticationError):
    tinker.ServiceClient(base_url=door.url, api_key="tml-wrong").holder  # noqa: B018
  assert json.dumps(served.get(f"{door.url}/nowhere")[1])
