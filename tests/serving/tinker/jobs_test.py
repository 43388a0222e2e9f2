"""Requests that wait, without a device."""

import json

import pytest

from grpo_jax.serving import requests
from grpo_jax.serving.tinker import jobs


@pytest.fixture
def queue():
  return jobs.JobQueue()


@pytest.fixture
def calls():
  """The requests of each call of a job."""
  return []


def job_of(calls, owner, request, kind="pass"):
  """A job that is refused if "bad" is among it, as one program may fail."""

  def run(requests_):
    calls.append(requests_)
    for i, text in enumerate(requests_):
      if text == "bad":
        raise requests.BadRequest("it is bad.")
      if text == "full" and len(requests_) > 1:
        raise MemoryError("no room")
      yield i, jobs.outcome(text=text)

  return jobs.DeviceJob(owner, run, request, kind)


def body(queue, name):
  return json.loads(queue.result(name).result(0).body)


def submit(queue, calls, *asked, kind="pass"):
  """Queues "owner:number:text" for each."""
  for name in asked:
    owner, _, text = name.split(":")
    queue.submit(name, job_of(calls, owner, text, kind))


def test_one_request_of_each_owner_is_worked_on_at_a_time(queue, calls):
  submit(queue, calls, "a:0:x", "a:1:y", "b:0:z")
  submit(queue, calls, "c:0:step", kind=None)
  submit(queue, calls, "c:1:u", "d:0:v")
  submit(queue, calls, "e:0:w", kind="other pass")
  while queue.work(0.0):
    pass
  # c:1 does not overtake the step of its owner.
  assert calls == [["x", "z", "v"], ["y"], ["step"], ["u"], ["w"]]
  assert body(queue, "b:0:z") == {"text": "z"}


def test_requests_without_a_kind_are_worked_on_alone(queue, calls):
  submit(queue, calls, "a:0:x", "b:0:y", kind=None)
  assert queue.work(0.0)
  assert calls == [["x"]]


def test_an_error_of_one_request_is_of_no_other(queue, calls):
  submit(queue, calls, "a:0:x", "b:0:bad", "c:0:y")
  assert queue.work(0.0)
  assert calls == [["x", "bad", "y"], ["bad"], ["y"]]  # x was done.
  assert body(queue, "b:0:bad") == {"error": "it is bad.", "category": "user"}
  assert [body(queue, x)["text"] for x in ("a:0:x", "c:0:y")] == ["x", "y"]


def test_what_fails_together_is_worked_on_one_after_another(queue, calls):
  submit(queue, calls, "a:0:full", "b:0:x")
  with pytest.warns(UserWarning, match="2 requests together .* no room"):
    queue.work(0.0)
  assert calls == [["full", "x"], ["full"], ["x"]]
  assert body(queue, "a:0:full") == {"text": "full"}


def test_a_request_is_waited_for_as_long_as_programs_are(queue, monkeypatch):
  """A pause is a share of the last program, whose request would come late."""
  now, pauses = [0.0], []
  monkeypatch.setattr(jobs.time, "monotonic", lambda: now[0])
  monkeypatch.setattr(queue._changed, "wait", pauses.append)

  def run(requests_):
    now[0] += 5.0
    yield 0, jobs.outcome()

  for name, kind in (("a", "pass"), ("b", None), ("c", "pass")):
    queue.submit(name, jobs.DeviceJob(name, run, kind=kind))
    queue.work(0.0)
  assert pauses == [0.01, 0.1]


def test_requests_of_a_session_that_ends_are_dropped(queue, calls):
  submit(queue, calls, "a:0:x", "ab:0:y", "b:0:z")
  queue.drop("a", "the session is over.")
  assert queue.work(0.0)
  assert not queue.work(0.0)
  assert calls == [["z"]]
  assert body(queue, "ab:0:y")["error"] == "the session is over."
  queue.close()
  with pytest.raises(requests.BadRequest, match="the server ends"):
    submit(queue, calls, "c:0:x")
