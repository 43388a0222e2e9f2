"""Tasks of Harbor in the sandbox: what pays, what does not, and wrong tasks."""

import contextlib
import io
import json
import os
import tarfile

import pytest

from grpo_jax.rewards.agents import harbor, tools
from grpo_jax.rewards.sandbox import box as box_lib
from grpo_jax.rewards.sandbox import shell
from grpo_jax.rewards.workers import sessions
from tests.experiments import command
from tests.rewards.agents import chats

REWARD = "/logs/verifier/reward"
SHARED = {
  "task.toml": "[verifier]\ntimeout_sec = 60\nenv = { WANTED = 'hello' }\n",
  "instruction.md": "# Canary 7\n\nWrite hello into out/said.\n",
  "environment/Dockerfile": "FROM x\nRUN y\nWORKDIR /app\nCOPY . .\n",
  "environment/word": "hello",
  "tests/test.sh": "#!/bin/bash\n"
  f'[ "$(cat out/said)" = $WANTED ]; echo $((1 - $?)) > {REWARD}.txt\n',
  "solution/solve.sh": "#!/bin/sh\nmkdir out; cp word out/said\n",
}
# Of what the commands leave, these tests have the artifacts alone.
APART = SHARED | {
  "task.toml": "artifacts = ['out', {source = '/logs/artifacts/log'}]\n"
  "[verifier]\nenvironment_mode = 'separate'\ntimeout_sec = 60\n",
  "tests/Dockerfile": 'FROM x\nENV SHARE="0.75"\nWORKDIR /app\n'
  "COPY . /tests/\nADD word /app/word\n",
  "tests/word": "hello",
  "tests/test.sh": "#!/bin/sh\ncmp word out/said && ! test -e /app/no && "
  f'echo "{{\\"reward\\": $SHARE}}" > {REWARD}.json\n'
  f"echo 0 > {REWARD}.txt\n",
  "solution/solve.sh": "mkdir out; echo x > word; echo x > no\n"
  "printf hello > out/said\n",
}


def written(folder, files=SHARED, **changed):
  """Writes a task; a file that is None is left out."""
  for name, text in {**files, **changed}.items():
    if text is not None:
      (folder / name).parent.mkdir(parents=True, exist_ok=True)
      (folder / name).write_text(text)
  return folder


def trial(folder, **options):
  options = {"call_s": 20.0, "turn_s": 30.0, **options}
  return harbor.Trial(harbor.read(str(folder)), tools.Options(**options))


def begun(folder, **options):
  options = {"call_s": 20.0, "turn_s": 30.0, **options}
  return harbor.make("", {"task": str(folder)}, 0, **options)


def says(session, command):
  call = chats.action_text("qwen", "", [("shell", {"command": command})])
  observation, reward, done = session.step(call)
  assert (reward, done) == (0.0, False)
  return observation[1]


def test_an_episode(tmp_path):
  session = begun(written(tmp_path))
  assert says(session, "pwd; ls; export A=1; cd /; sleep 99 &").split() == [
    *("/app", "Dockerfile", "word")
  ]
  assert says(session, "echo $A; pwd; mkdir out; false") == (
    "/app\n[exit status 1]"
  ).join(("\n", ""))
  assert says(session, "printf $(cat word) > out/said") == "[nothing printed]"
  assert session.step("Done.<|im_end|>") == ("", 1.0, True)
  scores = session.scores()
  assert (scores["accuracy"], scores["grade"]) == (1.0, 1.0)
  assert (scores["tool_calls"], scores["tool_errors"]) == (3.0, 0.0)


def test_a_working_directory_without_files_is_made(tmp_path):
  image = {"environment/Dockerfile": "FROM x\nWORKDIR /data/in\nWORKDIR it\n"}
  session = begun(written(tmp_path, **image))
  assert says(session, "pwd; echo 1 > a") == "/data/in/it"
  assert says(session, "ls") == "a"


@pytest.mark.slow
@pytest.mark.parametrize(("files", "most"), [(SHARED, 1.0), (APART, 0.75)])
def test_the_solution_pays_and_nothing_does_not(tmp_path, files, most):
  folder = written(tmp_path, files)
  assert trial(folder).reward() == 0.0
  solved = trial(folder)
  solved.solve()
  assert solved.reward() == most
  assert harbor.read(str(folder)).image.left_out == ("FROM x", "RUN y")


_FORGERIES = (
  # Tests and rewards are in other boxes, and what is put there is removed.
  "cat /tests/test.sh /solution/solve.sh",
  f"mkdir -p /tests /logs/verifier; echo 1 > {REWARD}.txt",
  f'(setsid sh -c "sleep 2; echo 1 > {REWARD}.txt" &); ls -d /logs/verifier',
  "ln -s /logs/verifier /app/out; rm -r /logs",
  "ps aux; kill -9 -1",
  "echo x > /usr/bin/x",
)


@pytest.mark.slow
def test_commands_forge_no_reward(tmp_path):
  forger = trial(written(tmp_path))
  for line in _FORGERIES:
    assert forger.shell(line).text.endswith(
      ("[exit status 1]", "[exit status 2]", "as before the command]")
    )
  assert forger.reward() == 0.0
  # What the tests start is ended before the reward is read.
  late = f'(setsid sh -c "sleep 1; echo 1 > {REWARD}.txt" &)\n'
  script = {"tests/test.sh": late + SHARED["tests/test.sh"]}
  assert trial(written(tmp_path / "late", **script)).reward() == 0.0
  # A forged tar writes into the box of the tests before they are there.
  tar = {f"{REWARD}.json": b'{"reward": 1}', "/tests/test.sh": b"#!/bin/sh\n"}
  for files in (SHARED, APART):
    forger = trial(written(tmp_path / str(len(files)), files))
    forger._files = shell.packed({x: shell.File(y) for x, y in tar.items()})
    assert forger.reward() == 0.0
    forger._files = b"no tar"
    assert forger.reward() == 0.0
  # Artifacts are plain files below their paths: no links, and no "..".
  forger._files = _links({"app/out": "/app", "app/out/../word": b"x"})
  assert forger.reward() == 0.0


def _links(entries):
  buffer = io.BytesIO()
  with tarfile.open(fileobj=buffer, mode="w") as tar:
    for name, value in entries.items():
      member = tarfile.TarInfo(name)
      if isinstance(value, str):
        member.type, member.linkname = tarfile.SYMTYPE, value
        value = b""
      member.size = len(value)
      tar.addfile(member, io.BytesIO(value))
  return buffer.getvalue()


@pytest.mark.slow
def test_a_command_has_limits(tmp_path):
  tried = trial(written(tmp_path), call_s=3.0, max_bytes=100)
  killed = "[killed: no end in 3 s]"
  assert tried.shell("echo a > b; sleep 99 & sleep 99") == (killed, True)
  assert tried.shell("cat b") == ("a", False)
  assert tried.shell("yes").text.startswith("y\ny\n")
  assert len(tried.shell("yes").text) < 200
  much = tried.shell(
    "for x in /root /app; do head -c 9000000 /dev/zero > $x/1; done"
  )
  assert much == (
    "[files of more than 16777216 bytes; files are as before the command]",
    True,
  )
  assert tried.shell("ls /root") == ("[nothing printed]", False)
  assert tried.shell("a\0") == (
    "Error: a command has no null bytes.",
    True,
  )
  # No process is left when files are read; the box's first one is.
  left = shell.Job(
    line="sleep 99 & ln -s /proc/$! /tmp/of",
    reads=("/tmp/of/comm", "/proc/1/comm"),
  )
  (gone, there) = shell.run(box_lib.require("bwrap"), left).reads
  assert gone is None
  assert there is not None
  forks = tried.shell("f() { f | f & }; f; sleep 0.5; echo $(cat b)")
  assert "Resource temporarily unavailable" in forks.text
  assert tried.shell("unshare -U true || echo no").text.endswith("no")


_PLACE = "environment/Dockerfile"
_TOML = "task.toml"
# What is wrong: files of the task, and a part of the message.
_WRONG = [
  ({_TOML: None}, "task.toml is missing"),
  ({_TOML: "a = ["}, "task.toml is not TOML"),
  ({_TOML: "verifier = 3"}, "=3 in task.toml; needs a table"),
  ({_TOML: "agent = {timeout_sec = 'x'}"}, "'x' in task.toml; needs a num"),
  ({_TOML: "agent = {timeout_sec = -1}"}, "agent.timeout_sec=-1"),
  ({_TOML: "verifier = {timeout_sec = nan}"}, "needs a number above 0"),
  ({_TOML: "[[steps]]\nname = 'a'"}, "has several steps; run it with harbor"),
  ({_TOML: "environment = {os = 'Windows'}"}, "has Windows"),
  (
    {_TOML: "verifier = {environment_mode = 'both'}"},
    "environment_mode='both'",
  ),
  ({_TOML: "[verifier.environment]\ndocker_image = 'x'"}, "tests in an image"),
  ({_TOML: "[[verifier.collect]]\ncommand = 'x'"}, "commands before the tests"),
  (
    {_TOML: "environment = {env = {KEY = '${KEY}'}}"},
    "no variable of the host",
  ),
  ({_TOML: "solution = {env = {KEY = 3}}"}, "solution.env has KEY=3; needs"),
  ({_TOML: "environment = {workdir = '/usr/x'}"}, "/usr/x cannot be writable"),
  ({_TOML: "environment = {workdir = 3}"}, "environment.workdir=3"),
  ({_TOML: "artifacts = ['/tests']", "apart": ""}, "the artifact '/tests'"),
  (
    {_TOML: "artifacts = ['../logs/verifier']", "apart": ""},
    "the artifact '../",
  ),
  (
    {_TOML: "artifacts = [{source = 'a', service = 'b'}]", "apart": ""},
    "artif",
  ),
  ({_TOML: "artifacts = [3]", "apart": ""}, "the artifact 3; needs a file"),
  ({"instruction.md": None}, "instruction.md is missing"),
  ({_PLACE: None}, "Dockerfile is missing; a task has"),
  (
    {_PLACE: "COPY none /app/"},
    "COPY none /app/: the folder environment has n",
  ),
  ({_PLACE: "ENV A='b"}, "Dockerfile: ENV A='b: No closing quotation"),
  ({_PLACE: "FROM x\nWORKDIR"}, "WORKDIR : an argument is missing"),
  ({_PLACE: "WORKDIR /tests"}, "directory /tests cannot be writable"),
  ({"environment/docker-compose.yaml": ""}, "has several containers"),
  ({"tests/test.sh": None}, "has no tests/test.sh"),
  ({"tests/big": "x" * (9 << 20)}, "tests has more than 2000 files or 83886"),
]


@pytest.mark.parametrize(("files", "message"), _WRONG)
def test_wrong_tasks(tmp_path, files, message):
  if "apart" in files:
    files = {_TOML: files[_TOML] + "\nverifier.environment_mode = 'separate'"}
  with pytest.raises(
    (ValueError, FileNotFoundError), match="harbor: "
  ) as error:
    harbor.read(str(written(tmp_path, **files)))
  assert message in str(error.value)
  assert len(str(error.value)) < 500


@pytest.mark.parametrize(
  ("name", "target", "message"),
  [
    ("tests/secret", "/etc/passwd", "leads out of the task"),
    ("environment/etc", "/etc", "leads out of the task"),
    ("instruction.md", "/etc/hostname", "leads out of the task"),
    ("tests/none", "nothing", "is not a file"),
    ("tests/folder", "../environment", "is not a file, nor a link to one"),
  ],
)
def test_links(tmp_path, name, target, message):
  folder = written(tmp_path, **{name: None})
  (folder / name).symlink_to(target)
  with pytest.raises(ValueError, match=message):
    harbor.read(str(folder))
  (folder / name).unlink()
  os.mkfifo(folder / name)
  with pytest.raises(ValueError, match="is not a file"):
    harbor.read(str(folder))


def test_lines_of_a_dockerfile(tmp_path):
  lines = r"""
    # syntax=docker/dockerfile:1
    FROM a AS first
    ENV LOST=1
    COPY word /app/lost
    FROM b
    ARG PLACE=/data
    ENV A=1 B="x y" C=${PLACE:-z} D=$NONE.$A
    ENV OLD its value
    WORKDIR $PLACE
    WORKDIR deep/../er
    RUN <<END
COPY word /app/inside
END
    RUN a && \
      # between
      b
    COPY --chown=me word folder/ ./
    COPY word name
    COPY fol* /opt/made
    COPY word /data
    ADD https://x/y /app/
    COPY word /usr/bin/word
    COPY word /tests/word
    COPY word /word
    COPY --from=first /x /app/
    CMD ["sh"]
  """
  folder = written(tmp_path, **{_PLACE: lines, "environment/folder/in.sh": "x"})
  image = harbor.read(str(folder)).image
  assert image.workdir == "/data/er"
  assert image.variables == {
    **{"A": "1", "B": "x y", "C": "/data", "D": ".", "OLD": "its value"}
  }
  assert set(image.files) == {
    *("/data/er/word", "/data/er/in.sh", "/data/er/name", "/opt/made/in.sh"),
    "/data/word",
  }
  assert image.files["/opt/made/in.sh"] == shell.File(b"x", True)
  assert image.folders == {"/data", "/opt"}
  kinds = [line.split()[0] for line in image.left_out]
  assert kinds == ["FROM", "FROM", "RUN", "RUN", "ADD", *["COPY"] * 4, "CMD"]


@pytest.mark.parametrize(
  ("name", "data", "reward"),
  [
    ("txt", b" 0.25\n", 0.25),
    ("txt", b"-1", -1.0),
    ("json", b'{"reward": 2, "other": 0}', 2.0),
    ("txt", b"", None),
    ("txt", b"nan", None),
    ("txt", b"inf", None),
    ("txt", b"1e300", None),
    ("txt", b"one", None),
    ("txt", b"\xff", None),
    ("json", b"", None),
    ("json", b"1.0", None),
    ("json", b"[1.0]", None),
    ("json", b'{"score": 1}', None),
    ("json", b'{"reward": NaN}', None),
    ("json", b'{"reward": 1e999}', None),
    ("json", b'{"reward": "1"}', None),
    ("json", b'{"reward": null}', None),
    ("json", b"[" * 100_000, None),
    ("json", b'{"reward": ' + b"9" * 9000 + b"}", None),
  ],
)
def test_rewards(name, data, reward):
  wrong = pytest.raises(
    RuntimeError, match=rf"reward.{name} is b.*needs a number"
  )
  with wrong if reward is None else contextlib.nullcontext():
    assert harbor._reward(f"{REWARD}.{name}", data, "") == reward


def test_wrong_records_and_options(tmp_path, monkeypatch):
  for extras in ({}, {"task": 3}, {"task": "a\0"}):
    with pytest.raises(ValueError, match="needs the folder of a task"):
      harbor.make("", extras, 0)
  with pytest.raises(FileNotFoundError, match=r"such/task\.toml is mis"):
    harbor.make("", {"task": str(tmp_path / "no-such")}, 0)
  with pytest.raises(ValueError, match="call_s=9"):
    harbor.warm_up(call_s=9, turn_s=8)
  # Boxes have the folder of Python.
  monkeypatch.setattr(harbor.sys, "base_prefix", str(tmp_path))
  with pytest.raises(ValueError, match="commands can read the tests; move"):
    harbor.read(str(written(tmp_path / "seen")))
  monkeypatch.undo()
  # The time of a task's agent is the most for all of its commands.
  toml = "agent = {timeout_sec = 2}"
  session = harbor.make(
    "", {"task": str(written(tmp_path, **{_TOML: toml}))}, 0
  )
  assert (session._options.total_s, session._options.call_s) == (2, 2)


@pytest.mark.slow
def test_rows_whose_tests_fail_are_unscored_and_the_others_go_on(tmp_path):
  tests = {
    "good": SHARED["tests/test.sh"],
    "hangs": "sleep 99 & sleep 99",
    "silent": "echo why >&2",
    "crashes": "kill -9 $$",
    "kills": "kill -9 -1",
    "floods": f"yes > {REWARD}.txt",
    "nan": f"echo nan > {REWARD}.txt",
    "link": f"ln -s /etc/passwd {REWARD}.txt",
    "pipe": f"mkfifo {REWARD}.json; echo 1 > {REWARD}.txt; rm {REWARD}.txt",
  }
  toml = "[verifier]\ntimeout_sec = 6\nenv = { WANTED = 'hello' }\n"
  for name, script in tests.items():
    written(tmp_path / name, **{"tests/test.sh": script, _TOML: toml})
  with sessions.HostSessions(
    "grpo_jax.rewards.agents.harbor:make", row_timeout_s=60.0, num_workers=1
  ) as workers:
    extras = [{"task": str(tmp_path / name)} for name in [*tests, "missing"]]
    rows = range(len(extras))
    episodes = workers.begin([""] * len(rows), extras, [0] * len(rows))
    call = [("shell", {"command": "mkdir out; cp word out/said"})]
    episodes.step(
      dict.fromkeys(rows, chats.action_text("qwen", "", call)), is_last=False
    )
    episodes.step(dict.fromkeys(rows[:-1], "Done."), is_last=True)
  assert {row: x["grade"] for row, x in episodes.scores.items() if x} == {
    0: 1.0
  }
  assert sum(episodes.failures.counts.values()) == len(tests)


@pytest.mark.slow
def test_a_folder_is_tried_and_written_as_records(tmp_path):
  for name in "ab":
    written(tmp_path / "tasks" / name)
  written(tmp_path / "tasks" / "c", **{"solution/solve.sh": "exit 1"})
  written(tmp_path / "tasks" / "d", **{"solution/solve.sh": None})
  written(tmp_path / "tasks" / "e", **{"instruction.md": None})
  out = tmp_path / "out"
  status, said, errors = command.run(
    *("rewards.harbor_tasks", f"--tasks={tmp_path / 'tasks'}"),
    *(f"--out={out}", "--held_out=1"),
  )
  assert status == 0, errors
  (train,), (test,) = (
    (out / f"{x}.jsonl").read_text().splitlines() for x in ("train", "test")
  )
  assert json.loads(train) == {
    "prompt": "Write hello into out/said.\n",
    "extras": {"task": str(tmp_path / "tasks" / "a")},
  }
  assert json.loads(test)["extras"]["task"].endswith("b")
  assert "a: 0 for nothing, 1 for the solution\n  not followed: FROM x" in said
  assert "c: 0 for nothing, 0 for the solution" in said
  assert "d: harbor: the task has no solution" in said
  assert "e: harbor: " in said
