"""HostScorer: no verifier can stop the run or pass for a reward of 0."""

import os
import pathlib
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from grpo_jax.rewards.workers import frames, host, pool, processes
from tests.rewards.workers import bad_verifiers

BAD = "tests.rewards.workers.bad_verifiers"
ROOT = pathlib.Path(__file__).parents[3]


def make_scorer(*functions, **options):
  paths = {name: f"{BAD}:{name}" for name in functions}
  return host.HostScorer(paths, dict.fromkeys(paths, 1.0), **options)


def score(scorer, words, extras=None):
  size = len(words)
  return scorer.score(
    [""] * size, list(words), list(range(size)), extras or [{}] * size
  )


def is_gone(pid):
  """True once the process has ended, reaped or not."""
  try:
    state = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")")[-1]
  except (FileNotFoundError, ProcessLookupError):
    return True
  return state.split()[0] == "Z"


def wait_until(condition, seconds=10.0):
  end = time.monotonic() + seconds
  while not condition() and time.monotonic() < end:
    time.sleep(0.05)
  return condition()


@pytest.fixture(scope="module")
def scorer():
  with make_scorer("by_completion", "length", row_timeout_s=1.0) as scorer:
    yield scorer


@pytest.mark.slow
def test_good_rows_keep_their_scores_whatever_their_neighbours_do(scorer):
  kinds = {
    "loop": "timeout",
    "sleep": "timeout",
    "raise": "raised",
    "raise timeout": "timeout",
    "sys.exit": "raised",
    "os._exit": "worker_died",
    "crash": "worker_died",
    "nan": "nan",
    "inf": "nan",
    "-1e39": "nan",  # In float32 it is infinite,
    "1e30": "nan",  # and the square of this one.
    "two": "raised",
    "empty": "raised",
    "text": "raised",
  }
  words = []
  for number, bad in enumerate(kinds):
    words += [str(number), bad]
  words += ["none", "99", "1e15"]
  start = time.monotonic()
  scores = score(scorer, words)
  assert time.monotonic() - start < 20.0

  expected = [np.nan if w in (*kinds, "none") else float(w) for w in words]
  np.testing.assert_array_equal(
    scores.components["by_completion"], np.float32(expected)
  )
  np.testing.assert_array_equal(scores.failed, [w in kinds for w in words])
  counts = dict.fromkeys(host.FAILURE_KINDS, 0)
  for kind in kinds.values():
    counts[kind] += 1
  assert scores.failures == counts
  assert len(scores.errors) == 3
  # Components beside one that raised are kept; those of a dead worker are not.
  lengths = scores.components["length"]
  assert lengths[words.index("raise")] == len("raise")
  assert np.isnan(lengths[words.index("os._exit")])
  assert lengths[words.index("none")] == len("none")


def test_order_is_kept_over_many_chunks_and_in_replaced_workers(scorer):
  words = [str(i) for i in range(200)]
  scores = score(scorer, words)
  np.testing.assert_array_equal(
    scores.components["by_completion"], np.arange(200.0)
  )
  assert not scores.failed.any()
  assert sum(scores.failures.values()) == 0
  assert scores.errors == []


def test_an_empty_batch_has_empty_scores(scorer):
  scores = score(scorer, [])
  assert scores.components["length"].shape == (0,)
  assert scores.failed.shape == (0,)


def test_an_alarm_left_behind_does_not_strike_the_next_row(scorer):
  assert not score(scorer, ["leave alarm"] * 2).failed.any()
  time.sleep(1.2)
  assert not score(scorer, ["1"] * 4).failed.any()


def test_a_killed_row_takes_its_subprocesses_with_it(scorer, tmp_path):
  pid_file = tmp_path / "pid"
  scores = score(scorer, ["sleep with child"], [{"pid_file": str(pid_file)}])
  assert scores.failures["timeout"] == 1
  child = int(pid_file.read_text())
  assert wait_until(lambda: is_gone(child))


@pytest.mark.parametrize("end", ["sleep", "crash"])
def test_a_lost_worker_takes_processes_that_left_its_group(
  scorer, tmp_path, end
):
  pid_file = tmp_path / "pid"
  extras = [{"pid_file": str(pid_file)}, {}]
  scores = score(scorer, [f"{end} with daemon", "1"], extras)
  np.testing.assert_array_equal(scores.failed, [True, False])
  child = int(pid_file.read_text())
  assert wait_until(lambda: is_gone(child))


def test_a_process_that_a_verifier_forks_does_not_answer(scorer):
  scores = score(scorer, ["1", "fork", "2", "fork", "3"])
  assert scores.components["by_completion"].tolist() == [1, 1, 2, 1, 3]
  assert not scores.failed.any()


@pytest.mark.slow
def test_what_nobody_asked_for_fails_its_row_and_no_other(scorer):
  words = []
  for number, said in enumerate(bad_verifiers.SAID):
    words += [said, str(number)]
  scores = score(scorer, words)
  bad = np.array([word in bad_verifiers.SAID for word in words])
  np.testing.assert_array_equal(scores.failed, bad)
  assert scores.failures["worker_died"] == bad.sum()
  np.testing.assert_array_equal(
    scores.components["by_completion"][~bad], np.arange(len(words) // 2)
  )


def test_half_a_message_is_an_answer_that_does_not_come(scorer):
  scores = score(scorer, ["1", "half", "2"])
  np.testing.assert_array_equal(scores.failed, [False, True, False])
  assert scores.failures["timeout"] == 1


@pytest.mark.slow
def test_a_late_word_of_an_earlier_row_costs_no_row():
  with make_scorer("by_completion", num_workers=1) as scorer:
    assert not score(scorer, ["fork and speak"]).failed.any()
    time.sleep(0.5)  # A stranger's answer lies in the pipe of the next call.
    for _ in range(2):
      scores = score(scorer, ["1", "2", "3"])
      assert scores.components["by_completion"].tolist() == [1, 2, 3]
      assert not scores.failed.any()


def test_numbers_and_text_arrive_as_they_are():
  x = [0.1, 1e-310, -2.0 / 3, 1e14, 2**45 + 1, np.float32(0.1), np.int32(7)]
  with make_scorer("exact", num_workers=1) as scorer:
    scores = score(scorer, ["\ud800\x00é"] * len(x), [{"x": one} for one in x])
  expected = [np.asarray(one).item() / 3 for one in x]
  np.testing.assert_array_equal(
    scores.components["exact"], np.float32(expected)
  )


def test_what_no_worker_can_be_told_fails_its_row(scorer):
  extras = [{}, {"x": object()}, {}, {"x": "x" * frames.MAX_BYTES}]
  scores = score(scorer, ["1"] * 4, extras)
  np.testing.assert_array_equal(scores.failed, [False, True, False, True])
  assert "holds a object" in scores.errors[0]


@pytest.mark.slow
def test_a_worker_that_reads_nothing_does_not_hold_up_the_others():
  long = "1" + " " * 2**22  # More than a pipe has room for.
  with make_scorer("by_completion", row_timeout_s=2.0) as scorer:
    stopped = scorer._pool._workers[0].process.pid
    (below,) = processes.below(stopped)
    os.kill(below, signal.SIGSTOP)
    scores = score(scorer, [long] * 4)
  assert scores.failed.sum() == scores.failures["timeout"] == 1


def test_workers_get_no_secrets_unless_they_are_named(monkeypatch):
  monkeypatch.setenv("HF_TOKEN", "secret")
  monkeypatch.setenv("LC_TIME", "C")
  names = ["HF_TOKEN", "PATH", "LC_TIME", "NO_SUCH"]
  with make_scorer("variable", num_workers=1) as scorer:
    said = score(scorer, names).components["variable"]
    assert said.tolist() == [0, 1, 1, 0]
  with make_scorer(
    "variable", num_workers=1, variables=("HF_TOKEN",)
  ) as scorer:
    said = score(scorer, names).components["variable"]
    assert said.tolist() == [1, 1, 1, 0]


@pytest.mark.slow
def test_slow_rows_come_last_and_no_good_row_is_lost():
  words = ["slow 0.6"] + ["1", "sleep", "2"] * 8
  with make_scorer(
    "by_completion", row_timeout_s=2.0, step_timeout_s=12.0
  ) as scorer:
    scores = score(scorer, words)
  assert scores.failures["step_timeout"] == 0
  assert scores.failures["timeout"] == scores.failed.sum() == 8
  np.testing.assert_array_equal(scores.failed, [w == "sleep" for w in words])
  assert scores.components["by_completion"][0] == 0.25


def test_a_spare_worker_takes_the_place_of_one_that_is_lost():
  with make_scorer("by_completion", num_workers=1) as scorer:
    assert scorer._pool._spare is None
    assert score(scorer, ["crash", "1"]).failed.tolist() == [True, False]
    spare = scorer._pool._spare
    assert score(scorer, ["crash", "1"]).failed.tolist() == [True, False]
    assert scorer._pool._workers == [spare]
    last = scorer._pool._spare
  assert is_gone(spare.process.pid)
  assert is_gone(last.process.pid)


def test_an_error_message_says_which_row_function_and_line(scorer):
  (message,) = score(scorer, ["1", "raise"]).errors
  assert message.startswith("row 1: raised: by_completion: ValueError: no such")
  assert "bad_verifiers.py:" in message


def test_what_functions_print_is_bounded(tmp_path, monkeypatch, capfd):
  (tmp_path / "loud.py").write_text(
    "import os, subprocess, sys\n"
    "def loud(completions, **kwargs):\n"
    "  print('heard')\n"
    "  os.write(1, b'z' * 10_000)\n"
    "  subprocess.run(['head', '-c', '1000000', '/dev/zero'])\n"
    "  for _ in range(100):\n"
    "    print('x' * 10_000)\n"
    "    print('y' * 10_000, file=sys.stderr)\n"
    "  return [1.0]\n"
  )
  monkeypatch.syspath_prepend(tmp_path)
  with host.HostScorer({"a": "loud:loud"}, {"a": 1.0}, num_workers=1) as scorer:
    assert score(scorer, ["", ""]).components["a"].tolist() == [1.0, 1.0]
  for said in capfd.readouterr():
    assert 20_000 < len(said) < 20_500
    assert said.count("it prints no more") == 1
  with host.HostScorer({"a": "loud:loud"}, {"a": 1.0}, num_workers=1) as scorer:
    score(scorer, [""])
  assert capfd.readouterr().out.startswith("heard\n")


def test_unequal_lengths_raise(scorer):
  with pytest.raises(ValueError, match=r"lengths \[2, 1, 1, 1\]"):
    scorer.score(["", ""], ["1"], [0], [{}])


@pytest.mark.slow
def test_the_step_deadline_bounds_the_call_and_leaves_no_late_answers():
  with make_scorer("by_completion", step_timeout_s=1.0) as scorer:
    start = time.monotonic()
    scores = score(scorer, ["7", "8"] + ["sleep"] * 20)
    assert 0.9 < time.monotonic() - start < 30.0
    np.testing.assert_array_equal(
      scores.components["by_completion"], [7.0, 8.0] + [np.nan] * 20
    )
    counts = scores.failures
    assert counts["step_timeout"] > 0
    assert counts["step_timeout"] + counts["timeout"] == scores.failed.sum()
    assert scores.failed.sum() == 20
    assert (
      f"of {counts['step_timeout']} that were not tried" in scores.errors[0]
    )
    scorer.step_timeout_s = 60.0
    again = score(scorer, ["1", "2", "3"])
    np.testing.assert_array_equal(
      again.components["by_completion"], [1.0, 2.0, 3.0]
    )


def test_workers_have_a_main_thread_and_import_no_jax():
  with make_scorer("surroundings", num_workers=1) as scorer:
    assert score(scorer, ["x"]).components["surroundings"] == 1.0


@pytest.mark.slow
def test_slow_imports_do_not_count_towards_the_first_row():
  with make_scorer("slow_import", num_workers=1, row_timeout_s=0.5) as scorer:
    assert score(scorer, ["3"]).components["slow_import"] == 3.0


@pytest.mark.slow
def test_a_worker_that_cannot_be_replaced_at_once_is_tried_again(
  monkeypatch, tmp_path
):
  options = {"num_workers": 1, "variables": ("STARTS", "BAD_STARTS")}
  for number, (bad, is_right) in enumerate([(2, True), (1000, False)]):
    monkeypatch.setenv("STARTS", str(tmp_path / str(number)))
    monkeypatch.setenv("BAD_STARTS", str(bad))
    with make_scorer("starts_badly", **options) as scorer:
      if is_right:
        scores = score(scorer, ["1", "crash", "2"])
        assert scores.failed.tolist() == [False, True, False]
      else:
        with pytest.raises(RuntimeError, match="a file system is gone"):
          score(scorer, ["1", "crash", "2"])


@pytest.mark.slow
def test_builtin_functions_score_by_short_name():
  names = {"accuracy": "math_accuracy", "format": "think_answer_format"}
  weights = {"accuracy": 1.0, "format": 0.5}
  with host.HostScorer(
    names, weights, num_workers=1, row_timeout_s=30.0
  ) as scorer:
    completions = [
      "<think>t</think><answer>18</answer>",
      r"\boxed{\frac{36}{2}}",
      "<think>t</think><answer>17</answer>",
      "18",
    ]
    extras = [{"answer": "18"}] * 3 + [{"answer": r"\frac{"}]
    scores = score(scorer, completions, extras)
  np.testing.assert_array_equal(
    scores.components["accuracy"], [1.0, 1.0, 0.0, np.nan]
  )
  np.testing.assert_array_equal(
    scores.components["format"], [1.0, 0.0, 1.0, 0.0]
  )
  assert not scores.failed.any()


def test_a_closed_scorer_has_no_processes_and_says_so():
  scorer = make_scorer("pid", num_workers=1)
  worker = int(score(scorer, ["x"]).components["pid"][0])
  assert not is_gone(worker)
  scorer.close()
  scorer.close()
  assert is_gone(worker)
  with pytest.raises(RuntimeError, match="closed"):
    score(scorer, ["x"])


@pytest.mark.parametrize(
  ("path", "needed"),
  [
    ("math_acuracy", "Did you mean 'math_accuracy'"),
    (f"{BAD}:by_complete", "Did you mean 'by_completion'"),
    ("tests.rewards.no_such_module:f", "No module named"),
    (BAD, "package.module:function"),
  ],
)
def test_a_function_that_cannot_be_found_raises_at_construction(path, needed):
  with pytest.raises(ValueError, match=needed):
    host.HostScorer({"a": path}, {"a": 1.0})


def test_a_worker_that_cannot_import_raises_at_construction():
  with pytest.raises(RuntimeError, match="package that is not installed"):
    make_scorer("broken_import", num_workers=1)


def test_bad_options_raise():
  with pytest.raises(KeyError, match="same names"):
    host.HostScorer({"a": "math_accuracy"}, {"b": 1.0})
  with pytest.raises(ValueError, match="no functions"):
    host.HostScorer({}, {})
  with pytest.raises(ValueError, match="finite"):
    host.HostScorer({"a": "math_accuracy"}, {"a": float("nan")})
  with pytest.raises(ValueError, match="row_timeout_s is 0"):
    host.HostScorer({"a": "math_accuracy"}, {"a": 1.0}, row_timeout_s=0)


# A main program without a guard: workers must not import it again.
PROGRAM = f"""
import sys
from grpo_jax.rewards.workers import host
paths = {{"f": "{BAD}:by_completion", "pid": "{BAD}:pid"}}
scorer = host.HostScorer(paths, {{"f": 1.0, "pid": 0.0}}, num_workers=1)
scores = scorer.score([""], ["1"], [0], [{{}}])
print(int(scores.components["pid"][0]), flush=True)
if sys.argv[1] == "killed":
  scorer.score([""], ["loop"], [0], [{{}}])
"""


@pytest.mark.slow
@pytest.mark.parametrize("end", ["returns", "killed"])
def test_workers_end_with_their_parent(tmp_path, end):
  script = tmp_path / "program.py"
  script.write_text(PROGRAM)
  parent = subprocess.Popen(
    [sys.executable, str(script), end],
    stdout=subprocess.PIPE,
    text=True,
    env={**os.environ, "PYTHONPATH": str(ROOT)},
  )
  worker = int(parent.stdout.readline())
  if end == "killed":
    time.sleep(0.2)  # Until the worker is in its endless loop.
    parent.send_signal(signal.SIGKILL)
  parent.wait(timeout=30)
  parent.stdout.close()
  assert wait_until(lambda: is_gone(worker))


def test_short_rows_are_sent_many_at_a_time(scorer, monkeypatch):
  sent = []
  message = host._Call.message

  def counted(call, index):
    sent.append(len(call.items[index].units))
    return message(call, index)

  monkeypatch.setattr(host._Call, "message", counted)
  for name in ("_CHEAP_S", "_BATCH_S"):  # Whatever else is running here.
    monkeypatch.setattr(host, name, 1e9)
  size = 2000
  scores = score(scorer, [str(i) for i in range(size)])
  np.testing.assert_array_equal(
    scores.components["by_completion"], np.arange(size)
  )
  # After some dozens, each message has a quarter of those that are left.
  assert sum(sent) == size
  assert len(sent) < size / 10


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["os._exit", "sleep", "raise", "x" * 10**7])
def test_bad_rows_among_many_harm_none_of_the_others(monkeypatch, kind):
  for name in ("_CHEAP_S", "_BATCH_S"):
    monkeypatch.setattr(host, name, 1e9)
  words = [str(i) for i in range(300)]
  words[150], words[299] = 2 * [kind]
  with make_scorer("by_completion", row_timeout_s=1.0) as scorer:
    scores = score(scorer, words)
  assert np.flatnonzero(scores.failed).tolist() == [150, 299]
  good = np.delete(scores.components["by_completion"], [150, 299])
  assert good.tolist() == [i for i in range(299) if i != 150]


@pytest.mark.parametrize(
  ("row_s", "size"), [(1e-4, 64), (5e-4, 40), (0.01, 8), (10.0, 8)]
)
def test_only_short_rows_wait_in_large_numbers(monkeypatch, row_s, size):
  call = pool.PoolCall(range(1000), pool.Failures(1000))
  first = call.take(0, 2, 0)
  assert len(first) == 8  # Nothing is known of them.
  call.num_answered = 8
  now = call.start + 8 * row_s / 2
  monkeypatch.setattr(pool.time, "monotonic", lambda: now)
  assert abs(len(call.take(0, 2, 0)) - size) <= 1
  assert call.take(0, 2, size // 2 + 1) == []
  assert abs(len(call.take(0, 2, size // 2 - 1)) - size // 2) <= 2


def test_long_rows_are_not_all_held_in_memory_to_be_sent(scorer, monkeypatch):
  sent = []
  write = frames.Channel.write

  def counted(channel, *messages):
    sent.append(sum(map(len, messages)))
    write(channel, *messages)
    sent.append(len(channel._unsent))

  monkeypatch.setattr(frames.Channel, "write", counted)
  long = 2**18
  rows = ["1" + " " * long] * 40
  scores = score(scorer, rows)
  assert not scores.failed.any()
  # A chunk, and what the worker has not read of the one before.
  assert max(sent) < 2 * (2**20 + 2 * long) < sum(map(len, rows)) / 3


@pytest.mark.slow
def test_a_worker_that_leaks_is_replaced_and_loses_no_row(
  tmp_path, monkeypatch, caplog
):
  (tmp_path / "leaky.py").write_text(
    "import time\n"
    "kept = []\n"
    "def leak(completions, **kwargs):\n"
    "  (word,) = completions\n"
    "  if word == 'hog':\n"
    "    held = b'x' * (250 << 20)\n"
    "    time.sleep(60)\n"
    "  kept.append(b'x' * (40 << 20))\n"
    "  time.sleep(0.1)\n"
    "  return [float(word)]\n"
  )
  monkeypatch.syspath_prepend(tmp_path)
  monkeypatch.setattr(pool, "_LOOK_S", 0.1)
  words = [*map(str, range(12)), "hog"]
  with host.HostScorer(
    {"a": "leaky:leak"},
    {"a": 1.0},
    num_workers=1,
    step_timeout_s=1e3,
    row_timeout_s=30.0,
    worker_memory_gib=0.15,
  ) as scorer:
    scores = score(scorer, words)
  assert scores.components["a"][:12].tolist() == [*range(12)]
  assert np.flatnonzero(scores.failed).tolist() == [12]
  assert scores.failures["worker_died"] == 1
  assert "config.rewards.worker_memory_gib=0.15" in scores.messages[12]
  assert "it is replaced" in caplog.text


def test_a_slow_import_takes_its_time_once(tmp_path, monkeypatch):
  """The parent imports while its workers do: it waits here for one of them."""
  (tmp_path / "slow_import.py").write_text(
    "import os, pathlib, time\n"
    f"begun = pathlib.Path({str(tmp_path / 'begun')!r})\n"
    f"if os.getpid() != {os.getpid()}:\n"
    "  begun.touch()\n"
    "end = time.monotonic() + 30\n"
    "while not begun.exists() and time.monotonic() < end:\n"
    "  time.sleep(0.01)\n"
    "assert begun.exists()\n"
    "def f(completions, **kwargs):\n"
    "  return [1.0]\n"
  )
  monkeypatch.syspath_prepend(tmp_path)
  with host.HostScorer({"a": "slow_import:f"}, {"a": 1.0}) as scorer:
    assert score(scorer, [""]).components["a"].tolist() == [1.0]
