"""Requests that no SDK sends: each gets a clear error, and the server goes on.

Nothing is compiled here but the draw of fresh adapters: what is refused reaches
no program.
"""

import json
import socket
import time
import urllib.error
import urllib.request

import numpy as np
import pytest

from grpo_jax.serving import http, requests
from grpo_jax.serving.tinker import jobs
from grpo_jax.serving.tinker import service as service_lib
from tests.serving.tinker import door as door_lib

PROTO = "application/x-protobuf"


@pytest.fixture(scope="module")
def door(tmp_path_factory):
  with door_lib.opened(tmp_path_factory.mktemp("door"), max_models=2) as door:
    yield door


def send(door, path, body, kind="application/json", **headers):
  """Sends a body; returns the status and the answer."""
  data = body if isinstance(body, bytes) else json.dumps(body).encode()
  headers = {"Content-Type": kind, "X-API-Key": door_lib.KEY, **headers}
  url = f"{door.url}/api/v1/{path}"
  request = urllib.request.Request(url, data, headers)
  try:
    with urllib.request.urlopen(request, timeout=60) as answer:
      return answer.status, json.load(answer)
  except urllib.error.HTTPError as error:
    with error:
      return error.code, json.load(error)


def result(door, sent):
  """The result of a request that waits."""
  status, answer = sent
  assert status == 200, answer
  status, found = 408, {}
  while status == 408:  # A busy machine; the SDK asks again, too.
    status, found = send(door, "retrieve_future", answer)
  assert status == 200
  return found


@pytest.fixture(scope="module")
def session(door):
  return send(door, "create_session", {})[1]["session_id"]


@pytest.fixture(scope="module")
def model(door, session):
  made = {"session_id": session, "model_seq_id": 0}
  made |= {"base_model": door_lib.MODEL, "lora_config": {"rank": 2, "seed": 1}}
  return result(door, send(door, "create_model", made))["model_id"]


@pytest.fixture(scope="module")
def sampler(door, session):
  made = {"session_id": session, "sampling_session_seq_id": 0}
  made["base_model"] = door_lib.MODEL
  sent = send(door, "create_sampling_session", made)
  return sent[1]["sampling_session_id"]


@pytest.fixture(autouse=True)
def _goes_on(door, session):
  """The server answers after each test."""
  yield
  assert send(door, "session_heartbeat", {"session_id": session})[0] == 200


def test_refused_at_once(door, session, model):
  deep = b"[" * 100_000
  for path, body, status, said in (
    ("create_session", b"{", 400, "not JSON"),
    ("create_session", b"\xff\xfe", 400, "not JSON"),
    ("create_session", deep, 400, "not JSON"),
    ("create_session", b'{"a": NaN}', 400, "NaN is no number"),
    ("create_session", b'{"a": 1e999}', 400, "beyond the numbers"),
    ("create_session", [1], 400, "must be an object"),
    ("session_heartbeat", {"session_id": "gone"}, 404, "no session 'gone'"),
    ("session_heartbeat", {"session_id": 5}, 400, "must be text"),
    ("get_info", {"model_id": "gone"}, 404, "no model 'gone'"),
    ("get_info", {}, 400, "model_id is missing"),
    ("optim_step", {"model_id": "gone", "seq_id": 1}, 404, "no model"),
    ("optim_step", {"model_id": model, "seq_id": -1}, 400, "seq_id=-1"),
    ("optim_step", {"model_id": model, "seq_id": 10**30}, 400, "seq_id="),
    ("optim_step", {"model_id": model, "seq_id": 1.5}, 400, "seq_id=1.5"),
    ("optim_step", {"model_id": model}, 400, "seq_id is missing"),
    ("optim_step", {"model_id": model, "seq_id": 0}, 400, "missing or 0"),
    ("weights_info", {"tinker_path": "tinker://a"}, 400, "is no path"),
    ("weights_info", {"tinker_path": "tinker://a/weights/b"}, 404, "nothing"),
    (
      *("weights_info", {"tinker_path": "tinker://a/weights/../../b"}),
      *(400, "is no path"),
    ),
    ("retrieve_future", {"request_id": "gone"}, 404, "no request 'gone'"),
    ("create_custom_loss", {}, 404, "there is no POST"),
    ("asample", {"sampling_session_id": "gone"}, 404, "no session"),
    ("create_session", b"x" * (5 * 2**20), 413, "more than 4194304 bytes"),
  ):
    found, answer = send(door, path, body)
    assert found == status, (path, answer)
    assert said in answer["error"]["message"], answer


def test_wrong_keys_and_encodings(door):
  assert send(door, "create_session", {}, **{"X-API-Key": "tml-no"})[0] == 401
  assert send(door, "create_session", {}, **{"X-API-Key": "\xe9"})[0] == 401
  zipped = send(door, "create_session", b"x", **{"Content-Encoding": "gzip"})
  assert zipped[0] == 415
  assert send(door, "forward_backward", {})[0] == 415  # JSON, as older SDKs.
  status, answer = send(door, "forward_backward", b"\xff\xff\xff", PROTO)
  assert status == 400
  assert "no ForwardBackwardRequest" in answer["error"]["message"]


def test_refused_samples(door, sampler):
  prompt = {"chunks": [{"type": "encoded_text", "tokens": [3, 4]}]}
  for number, (changes, said) in enumerate(
    (
      ({"prompt": {"chunks": [{"tokens": [10**9]}]}}, "ids from 0"),
      ({"prompt": {"chunks": [{"tokens": [-1]}]}}, "ids from 0"),
      ({"prompt": {"chunks": [{"tokens": [True]}]}}, "ids from 0"),
      ({"prompt": {"chunks": []}}, "at least one token"),
      ({"prompt": {"chunks": {"a": 1}}}, "must be a list"),
      ({"prompt": {"chunks": [{"type": "image"}]}}, "that is not text"),
      ({"prompt": {"chunks": [{"tokens": [3] * 41}]}}, "at most 40 fit"),
      ({"num_samples": 10**6}, "num_samples=1000000"),
      ({"num_samples": 0}, "num_samples=0"),
      ({"sampling_params": {"temperature": -1}}, "temperature=-1"),
      ({"sampling_params": {"temperature": "hot"}}, "temperature='hot'"),
      ({"sampling_params": {"temperature": 1e-40}}, "beyond float32"),
      ({"seq_id": None}, "seq_id is missing"),
      ({"sampling_params": {"top_p": 2}}, "top_p=2"),
      ({"sampling_params": {"top_k": 5}}, "top_k is not supported"),
      ({"sampling_params": {"max_tokens": 10**9}}, "max_tokens=1000000000"),
      ({"sampling_params": {"seed": 2**40}}, "seed=1099511627776"),
      ({"sampling_params": {"stop": {"a": 1}}}, "stop="),
      ({"sampling_params": {"stop": ["a"] * 99}}, "stop="),
      ({"sampling_params": {"penalty": 1}}, "'penalty' is not supported"),
      ({"topk_sample_logprobs": 2}, "'topk_sample_logprobs' is not supported"),
      ({"prompt_logprobs_last_n": 7}, "prompt_logprobs_last_n=7"),
      ({"prompt_alt_tokens_k": 1}, "'prompt_alt_tokens_k' is not supported"),
      # Asked for before the loss is named.
      ({"record_stability_info": True}, "its formula is not published"),
    )
  ):
    body = {"sampling_session_id": sampler, "seq_id": number, "prompt": prompt}
    status, answer = send(door, "asample", body | changes)
    assert status == 400, (changes, answer)
    assert said in answer["error"]["message"], answer


def datum(door, **changes):
  """A message of a row, whose tensors are replaced."""
  made = door_lib.message([door.datum("abc")], "cross_entropy", "m").data[0]
  for one in made.loss_fn_inputs:
    if one in changes:
      made.loss_fn_inputs[one].CopyFrom(changes[one])
  return made


def test_refused_rows(door, model):
  base = door_lib.message([door.datum("abcd")], "cross_entropy", model)
  number = 100

  def refused(change, said):
    nonlocal number
    number += 1
    message = type(base)()
    message.CopyFrom(base)
    message.seq_id = number
    change(message)
    body = message.SerializeToString()
    answer = result(door, send(door, "forward_backward", body, PROTO))
    assert answer["category"] == "user"
    assert said in answer["error"], answer

  def tokens(*ids):
    def change(message):
      text = message.data[0].model_input[0].encoded_text
      text.tokens = np.array(ids, np.int32).tobytes()

    return change

  def tensor(name, **fields):
    def change(message):
      for key, value in fields.items():
        found = message.data[0].loss_fn_inputs[name]
        if key == "shape":
          del found.shape[:]
          found.shape.extend(value)
        else:
          setattr(found, key, value)

    return change

  floats = np.ones(3, np.float32)
  refused(lambda m: m.ClearField("data"), "data is empty")
  refused(tokens(), "no token")
  refused(tokens(1, 2), "2 tokens; send one number for each")
  refused(tokens(1, 2, 10**6), "id 1000000 in model_input")
  refused(tokens(1, 2, -5), "id -5 in model_input")
  refused(tensor("weights", dense=floats.tobytes()[:-1]), "no numbers of 4")
  refused(tensor("weights", dense=b""), "with 0 numbers")
  refused(tensor("weights", shape=[3, 1]), "has shape [3, 1]")
  refused(tensor("weights", shape=[-3]), "has shape [-3]")
  refused(tensor("weights", dtype=0), "neither float32 nor int64")
  refused(tensor("weights", dense=(floats * np.nan).tobytes()), "not finite")
  refused(tensor("weights", dense=(floats * 1e30).tobytes()), "of size 1e+30")
  targets = np.array([1, 2, 2**40]).tobytes()
  refused(tensor("target_tokens", dense=targets), "in target_tokens")
  refused(lambda m: m.data[0].loss_fn_inputs.pop("weights"), "lacks weights")
  refused(
    lambda m: (
      m.data[0]
      .loss_fn_inputs["x"]
      .CopyFrom(m.data[0].loss_fn_inputs["weights"])
    ),
    "'x', which no loss reads",
  )
  refused(lambda m: setattr(m, "loss_fn", "x" * 500), "there is no loss_fn")
  refused(
    lambda m: setattr(m, "loss_fn", "stable_reinforce"),
    "its formula is not published",
  )
  refused(
    lambda m: m.data[0].model_input[0].image.SetInParent(), "that is not text"
  )
  refused(
    lambda m: m.data[0].loss_fn_inputs["weights"].sparse_csr.SetInParent(),
    "is sparse",
  )


def test_refused_models_and_steps(door, session, model):
  made = {"session_id": session, "base_model": door_lib.MODEL}
  number = 0
  for changes, said in (
    ({"lora_config": {"rank": 10**6}}, "rank=1000000 must be from 1 to 8"),
    ({"lora_config": {"rank": 0}}, "rank=0"),
    (
      {"lora_config": {"rank": 2, "train_mlp": False, "train_attn": False}},
      "train_mlp and train_attn are false",
    ),
    (
      {"lora_config": {"rank": 2}, "optimizer_config": {"type": "dimuon"}},
      "optimizer 'dimuon' is not supported",
    ),
    ({"lora_config": {"rank": 2, "alpha": 64}}, "'alpha' is not supported"),
    (
      {"lora_config": {"rank": 2}, "optimizer_config": {"beta1": 0.5}},
      "'beta1' is not supported",
    ),
    ({"lora_config": {"rank": 2}}, ""),  # The second and last one.
    ({"lora_config": {"rank": 2}}, "2 models are trained, and no more"),
  ):
    number += 1
    body = made | {"model_seq_id": number} | changes
    answer = result(door, send(door, "create_model", body))
    assert said in answer.get("error", ""), answer
  for adam, said in (
    ({"learning_rate": -1}, "learning_rate=-1"),
    ({"beta1": 1.0}, "beta1=1.0"),
    ({"eps": "small"}, "eps='small'"),
    ({"momentum": 0.5}, "'momentum' is not supported"),
    ({}, "no gradient since the last step"),
  ):
    number += 1
    body = {"model_id": model, "seq_id": 500 + number, "adam_params": adam}
    assert said in result(door, send(door, "optim_step", body))["error"]
  body = {"model_id": model, "seq_id": 400, "adam_params": {}}
  status, answer = send(door, "optim_step", body)
  assert status == 400
  assert "seq_id=400 was used" in answer["error"]["message"]


def test_a_request_that_is_sent_twice_is_one(door, model):
  body = {"model_id": model, "seq_id": 900, "adam_params": {}}
  one, two = send(door, "optim_step", body), send(door, "optim_step", body)
  assert one == two
  assert result(door, one) == result(door, two)


def test_half_messages(door, monkeypatch):
  monkeypatch.setattr(http, "_BODY_S", 0.3)
  head = (
    f"POST /api/v1/create_session HTTP/1.1\r\nHost: {door.server.host}\r\n"
    f"X-API-Key: {door_lib.KEY}\r\nContent-Length: 100\r\n\r\n"
  )
  for end in (b"", b'{"tags": ['):
    with socket.create_connection((door.server.host, door.server.port)) as link:
      link.sendall(head.encode() + end)
      if end:
        assert b"408" in link.recv(100)


def test_floods_are_bounded(door, tmp_path, monkeypatch):
  """Without a worker: what waits, and what nobody fetches, has a limit."""
  idle = service_lib.Service(
    door.service._device, door.service._speaker, door.service._files, "tiny"
  )
  session = idle.session()
  body = {"session_id": session, "sampling_session_seq_id": 0}
  sampler = idle.sampler(service_lib.Body(body | {"base_model": "tiny"}))

  def ask(number):
    prompt = {"chunks": [{"tokens": [3] * 40}]}
    body = {"sampling_session_id": sampler, "seq_id": number, "prompt": prompt}
    return idle.sample(service_lib.Body(body))

  monkeypatch.setattr(jobs, "_MAX_WAITING", 20)
  for number in range(20):
    ask(number)
  with pytest.raises(requests.BadRequest, match="20 requests wait") as caught:
    ask(20)
  assert caught.value.status == 429
  monkeypatch.setattr(jobs, "_MAX_WAITING", 10**6)
  size = sum(x.size for x in idle.queue.waiting)
  monkeypatch.setattr(jobs, "_MAX_WAITING_BYTES", size)
  with pytest.raises(requests.BadRequest, match="20 requests wait"):
    ask(20)
  idle.queue.close()
  queue = idle.queue
  assert queue.result(f"{sampler}:0").result().body.startswith(b'{"error"')
  monkeypatch.setattr(jobs, "_MAX_RESULTS", 4)
  assert not queue.work(0.0)
  with pytest.raises(requests.BadRequest, match="nobody fetched it"):
    queue.result(f"{sampler}:0")
  assert queue.result(f"{sampler}:19").done()


def test_sessions_end(door, monkeypatch):
  first = send(door, "create_session", {})[1]["session_id"]
  made = {"session_id": first, "sampling_session_seq_id": 0}
  made["base_model"] = door_lib.MODEL
  assert send(door, "create_sampling_session", made)[0] == 200
  assert send(door, f"sessions/{first}/finish", {})[0] == 200
  assert send(door, "create_sampling_session", made)[0] == 404
  second = door.service.session()
  door.service._sessions[second] = time.monotonic() - 1e6
  door.service.session()
  with pytest.raises(requests.BadRequest, match="it is over"):
    door.service.alive(second)
