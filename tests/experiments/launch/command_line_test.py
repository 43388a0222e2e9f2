"""Command lines of the launchers: what they print, and what they refuse.

golden/NAME.txt is what a dry run printed, with COMMIT for the commit.
"""

import pathlib

import pytest

from experiments.launch import job, preflight, skypilot, xpk
from grpo_jax.settings import config as config_lib
from grpo_jax.settings import overrides
from tests.experiments.launch import conftest

_GOLDEN = pathlib.Path(__file__).parent / "golden"
_PLACE = ["--project=my-project", "--zone=us-central1-a"]
_CLUSTER = ["--cluster=my-cluster", *_PLACE]
_WHAT = [
  "--topology=v5e-16",
  "--workdir=gs://bucket/sort",
  "--config=configs/quickstart.py:gspo",
]
_REST = ["--", "--config.rl.steps=5", "--config.phases=('rl',)"]
_LAUNCHERS = {"xpk": xpk, "skypilot": skypilot}
_CASES = {
  "xpk_create": [*_CLUSTER, "--topology=v5p-16", "--slices=2", "--spot"],
  "xpk_run": [
    *(*_CLUSTER, *_WHAT, "--slices=2", *_REST, "--config.rl.num_prompts=32")
  ],
  "xpk_status": _CLUSTER,
  "xpk_logs": ["--follow"],
  "xpk_stop": _CLUSTER,
  "xpk_delete": _CLUSTER,
  "skypilot_run": [*_WHAT, "--spot", *_REST],
  # A mesh, and secrets by their names.
  "xpk_secret_run": [
    *(*_CLUSTER, *_WHAT, "--mesh=fsdp:8,tensor:2", "--env=HF_TOKEN"),
    *("--env=KEY=my-key", "--wait"),
  ],
  "skypilot_secret_run": [
    *(*_WHAT, "--project=my-project", "--env=HF_TOKEN", "--wait")
  ],
  "skypilot_status": [],
  "skypilot_logs": ["--follow"],
  "skypilot_stop": [],
}


def _launch(name: str, *arguments: str) -> int:
  launcher, action = name.replace("_secret", "").rsplit("_", 1)
  return _LAUNCHERS[launcher].main([launcher, action, *arguments])


@pytest.mark.parametrize("name", _CASES)
def test_dry_run_prints_the_commands(name, repository, capsys):
  assert _launch(name, "--name=sort", "--dry_run", *_CASES[name]) == 0
  commit = conftest.git("rev-parse", "HEAD").strip()
  printed = capsys.readouterr().out.replace(commit, "COMMIT")
  printed = printed.replace(commit[:12], "COMMIT")
  assert printed == (_GOLDEN / f"{name}.txt").read_text("utf-8")
  assert not (repository / ".cache").exists()


@pytest.mark.parametrize("launcher", _LAUNCHERS.values())
def test_help_shows_the_actions_and_the_flags(launcher, capsys):
  assert launcher.main(["", "--help"]) == 0
  out = capsys.readouterr().out
  assert "`status`" in out
  assert "--topology: TPUs, such as v5e-16 or v5p-128." in out


@pytest.mark.parametrize(
  ("name", "arguments", "message"),
  [
    ("xpk_run", ["--name=Sort"], "--name=Sort: needs up to 28 lower"),
    ("xpk_run", ["--name=sort-"], "--name=sort-: needs"),
    ("xpk_run", ["--name=" + "a" * 29], "needs up to 28"),
    ("xpk_run", ["--name="], "--name is missing, and run needs it"),
    ("xpk_run", ["--zone="], "--zone is missing, and run needs it: Zone"),
    ("xpk_run", ["--project="], "--project is missing"),
    ("xpk_run", ["--workdir=gs:/bucket/a"], "needs gs://BUCKET/PATH"),
    ("xpk_run", ["--topology=v9-16"], "there is no generation 'v9' here"),
    ("xpk_run", ["--topology=v5e-17"], "no slice of v5e has 17"),
    ("xpk_run", ["--topology=tpu"], "needs GENERATION:SHAPE"),
    ("skypilot_run", ["--topology=tpu7x-16"], "through experiments.launch.xpk"),
    # What would fail on the machines.
    ("xpk_run", ["--mesh=tp:4"], "'tp:4' is no axis; needs NAME:SIZE"),
    ("xpk_run", ["--mesh=fsdp:2,fsdp:8"], "fsdp is there twice"),
    (
      "xpk_run",
      ["--mesh=fsdp:3"],
      "data ? x fsdp 3 x expert 1 x tensor 1 is not 16 devices",
    ),
    (
      "skypilot_run",
      ["--mesh=data:2,fsdp:4,tensor:4"],
      "For example --mesh=fsdp:4,tensor:4.",
    ),
    (
      "xpk_run",
      ["--slices=2", "--mesh=data:1,fsdp:32"],
      "data 1 does not split over 2 slices",
    ),
    ("xpk_run", ["--", "--config.rl.stepz=5"], "mean --config.rl.steps?"),
    ("xpk_run", ["--", "--config.rl.steps=-5"], "train would refuse this:"),
    ("skypilot_run", ["--", "--stepz=5"], "Unknown command line flag 'stepz'"),
    # What the trainer would refuse before its first step.
    ("xpk_run", ["--", "--config.rl.staleness=1"], "without a correction"),
    (
      "xpk_run",
      ["--", "--config.guards.on=True", "--config.guards.canaries=('none',)"],
      "config.guards.canaries: 'none' is no component of the reward",
    ),
    (
      "xpk_run",
      ["--", "--config.rl.num_prompts=3"],
      "config.rl.num_prompts=3 does not split over the 16 devices",
    ),
    (
      "xpk_run",
      [
        *("--", "--config.rl.schedule.name=frontier"),
        "--config.rl.schedule.pool=8",
      ],
      "more than the 8 to choose from",
    ),
    (
      "xpk_run",
      ["--mesh=fsdp:4,tensor:4"],
      "the model's num_kv_heads 2 does not split over tensor 4",
    ),
    (
      "xpk_run",
      ["--extras=tpu"],
      "needs gcs too, and would end when it is started; pass --extras=tpu,gcs",
    ),
    (
      "xpk_run",
      ["--", "--config.model.checkpoint=Qwen/Qwen2.5-0.5B"],
      "pass --extras=tpu,gcs,hf",
    ),
    (
      "xpk_run",
      [
        "--extras=tpu,gcs,hf",
        "--",
        "--config.model.checkpoint=meta-llama/Llama-3.2-1B",
      ],
      "set HF_TOKEN here and pass --env=HF_TOKEN",
    ),
    ("xpk_run", ["--env=HF_TOKEN=hf_abc"], "looks like the value itself"),
    ("xpk_run", ["--env=2"], "needs NAME, or NAME=SECRET"),
    ("skypilot_run", ["--env=HF_TOKEN"], "--project is missing, whose Secret"),
    ("xpk_run", ["--config=a.py"], "there is no file a.py here"),
    ("xpk_run", ["--slices=0"], "--slices=0"),
    ("xpk_run", ["--steps=5"], "experiments.train comes after `--`"),
    ("xpk_run", ["--", "a\nb"], "received a line break"),
    ("xpk_go", [], "received the action 'go'; needs one of create, run"),
    ("xpk_run", ["stop"], "received the action 'run stop'"),
    ("xpk_run", ["--workdir=/runs/a"], "needs gs://BUCKET/PATH"),
    ("xpk_status", ["--cluster="], "--cluster is missing"),
    ("skypilot_run", ["--workdir=/runs/a"], "needs gs://BUCKET/PATH"),
    ("skypilot_run", ["--slices=2"], "Unknown command line flag 'slices'"),
  ],
)
@pytest.mark.usefixtures("repository")
def test_mistake_is_explained(name, arguments, message, capsys):
  place = _CLUSTER if name.startswith("xpk") else []
  given = ["--name=sort", *place, *_WHAT, *arguments]
  assert _launch(name, *given) == 2
  out, err = capsys.readouterr()
  assert err.startswith("error: ")
  assert message in err
  assert out == ""


def _resolved(config, settings=None):
  name, _, argument = config.partition(":")
  made = overrides.load(
    str(overrides.find(name)), *([argument] if argument else [])
  )
  made.update_from_flattened_dict(
    {"allow_unpublished": True} | (settings or {})
  )
  return config_lib.resolve(made)


_PARTS = {"data": 8, "fsdp": 1, "expert": 1, "tensor": 1}


@pytest.mark.parametrize(
  ("config", "said"),
  [
    ("spo_add", None),
    ("verifiers_grpo", None),
    ("recipes/compaction_rl:qwen2.5-0.5b", None),
    ("recipes/sao:qwen2.5-0.5b", None),  # Rollouts that are drawn ahead.
    ("recipes/n_grpo:qwen2.5-0.5b", None),
    ("judge", "config.judge.model='runs/judges/truth'"),
  ],
)
def test_parts_of_a_run_are_made_without_its_files(config, said):
  """Neither verifiers nor sessions are started, and no model is read."""
  notes = preflight.check_parts(_resolved(config), _PARTS)
  assert len(notes) == (said is not None)
  for note in notes:
    assert f"are not checked here: {said}" in note


@pytest.mark.parametrize(
  ("config", "settings", "message"),
  [
    (
      "calc_tool_grpo",
      {"sampling.lanes": 8},
      "the environment of the task 'calc_tool' do not go together",
    ),
    # Sessions on the host, of a task and of text.
    (
      "calc_python_grpo",
      {"algorithm.dynamic_sampling": True, "rl.max_rounds": 2},
      "max_rounds=2 and config.data.environment=",
    ),
    (
      "search_agent",
      {"rl.num_prompts": 8, "algorithm.dynamic_sampling": True}
      | {"rl.max_rounds": 2, "algorithm.advantage_scale": "group"},
      "max_rounds=2 and config.data.environment=",
    ),
    (
      "recipes/dapo:qwen2.5-0.5b",
      {"rl.staleness": 1, "rl.max_rounds": 1},
      "without a correction",
    ),
    (
      "recipes/dapo:qwen2.5-0.5b",
      {"guards.on": True, "guards.canaries": ("none",)},
      "'none' is no component of the reward; they are math_accuracy",
    ),
  ],
)
def test_features_that_do_not_go_together_are_refused(
  config, settings, message
):
  run = _resolved(config, settings)
  with pytest.raises(ValueError, match="would refuse this") as error:
    preflight.check_parts(run, _PARTS)
  assert message in str(error.value)


def test_changes_are_sent_only_if_that_is_allowed(repository, capsys):
  path = repository / "configs/quickstart.py"
  changed = path.read_text("utf-8") + "# changed\n"
  path.write_text(changed)
  given = ["--name=sort", *_CASES["skypilot_run"]]
  assert _launch("skypilot_run", "--dry_run", *given) == 2
  err = capsys.readouterr().err
  assert "changes that are not committed" in err
  assert "configs/quickstart.py" in err
  assert _launch("skypilot_run", "--dry_run", "--allow_dirty", *given) == 0
  git_archive = capsys.readouterr().out.splitlines()[1].split()
  commit = git_archive[-1]
  assert commit != conftest.git("rev-parse", "HEAD").strip()
  assert conftest.git("show", f"{commit}:configs/quickstart.py") == changed
  assert path.read_text() == changed


def test_no_value_of_a_secret_is_printed(repository, capsys, monkeypatch):
  del repository
  monkeypatch.setenv("HF_TOKEN", "s3cret")
  for name in _LAUNCHERS:
    case = f"{name}_secret_run"
    assert _launch(case, "--name=sort", "--dry_run", *_CASES[case]) == 0
    out, err = capsys.readouterr()
    assert "secrets create HF_TOKEN --project=my-project" in out
    assert "s3cret" not in out + err


def test_a_secret_is_made_once_and_its_value_is_in_no_command(
  repository, capsys, monkeypatch
):
  del repository
  secrets, commands, capture = {}, [], job.capture

  def captured(command, given=""):
    if command[:2] != ["gcloud", "secrets"]:
      return capture(command)
    commands.append(command)
    if command[2] == "create":
      secrets[command[3]] = given
    elif command[3] not in secrets:
      raise job.CommandError(command, 1, "NOT_FOUND: no such secret")
    return ""

  monkeypatch.setattr(job, "capture", captured)
  monkeypatch.setattr(job, "execute", lambda made, _: commands.extend(made))
  given = ["--name=sort", *_CLUSTER, *_WHAT, "--env=HF_TOKEN"]
  assert _launch("xpk_run", *given) == 2
  assert "HF_TOKEN is not set here" in capsys.readouterr().err
  monkeypatch.setenv("HF_TOKEN", "s3cret")
  assert _launch("xpk_run", *given) == 0
  assert secrets == {"HF_TOKEN": "s3cret"}
  monkeypatch.delenv("HF_TOKEN")
  assert _launch("xpk_run", *given) == 0  # It is there.
  assert sum(command[1:3] == ["secrets", "create"] for command in commands) == 1
  assert "s3cret" not in f"{commands}{capsys.readouterr()}"


def test_a_program_that_is_missing_or_fails_is_explained(
  tmp_path, capsys, monkeypatch
):
  monkeypatch.setenv("PATH", str(tmp_path))
  assert _launch("xpk_status", "--name=sort", *_CLUSTER) == 2
  assert capsys.readouterr().err.startswith("error: xpk is not installed")
  (tmp_path / "xpk").write_text("#!/bin/sh\nexit 3\n")
  (tmp_path / "xpk").chmod(0o755)
  assert _launch("xpk_status", "--name=sort", *_CLUSTER) == 2
  message = "error: exit status 3 of xpk workload list --cluster=my-cluster"
  assert message in capsys.readouterr().err


def test_credentials_are_looked_for(repository, capsys, monkeypatch):
  monkeypatch.setenv("CLOUDSDK_CONFIG", str(repository))
  given = ["--name=sort", *_CASES["xpk_run"]]
  assert _launch("xpk_run", *given) == 2
  message = "run `gcloud auth application-default login`"
  assert message in capsys.readouterr().err
  # A dry run goes on, and says it.
  assert _launch("xpk_run", "--dry_run", *given) == 0
  out, err = capsys.readouterr()
  assert "note: without --dry_run this would be refused" in err
  assert "xpk workload create" in out
  monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", "/none.json")
  assert _launch("xpk_run", *given) == 2
  assert "/none.json: there is no such file" in capsys.readouterr().err


_TEXT = {
  "data.source": "jsonl",
  "data.train_path": "gs://b/a.jsonl",
  "data.tokenizer": "bytes",
  "data.max_prompt_len": 8,
  "sampling.max_new_tokens": 8,
  "rewards.functions": ("math_accuracy",),
}


@pytest.mark.parametrize(
  "name", ["coding_agent", "python_agent", "search_agent"]
)
def test_environments_with_tools_need_their_extra(name):
  config = config_lib.resolve(overrides.config(name))
  assert "tools" in preflight.needed_extras(config, "/runs/a")


_TUNED = {"model.checkpoint": "Qwen/Qwen3-8B", "model.lora_rank": 2}
_JUDGED = {
  **_TEXT,
  "rewards.functions": ("math_accuracy", "judge"),
  "rewards.weights": (0.0, 1.0),
  "judge.rubric": "Is {completion} right?",
}


@pytest.mark.parametrize(
  ("settings", "local", "extras"),
  [
    ({}, [], set()),
    ({"log.trackers": ("wandb", "trackio")}, [], {"wandb", "trackio"}),
    (_TEXT, [], set()),
    ({**_TEXT, "data.tokenizer": "mine/tok"}, ["data.tokenizer"], set()),
    ({**_TEXT, "data.tokenizer": "gs://b/tok"}, [], set()),
    ({**_TEXT, "data.quarantine": "bad.json"}, ["data.quarantine"], set()),
    (
      {**_TUNED, "model.adapter_checkpoint": "my/lora"},
      ["model.adapter_checkpoint"],
      {"hf"},
    ),
    ({**_JUDGED, "judge.model": "runs/a/b"}, ["judge.model"], set()),
    ({**_JUDGED, "judge.model": "Qwen/Qwen3-8B"}, [], {"hf"}),
    (
      {
        **_JUDGED,
        "judge.model": "judge/of-them",
        "judge.service.url": "https://a.b",
      },
      [],
      {"judge"},
    ),
  ],
)
def test_files_and_checkpoints_are_looked_at(settings, local, extras):
  config = config_lib.resolve(overrides.config("quickstart", **settings))
  notes = preflight._local_files(config)
  assert [note.partition("=")[0] for note in notes] == [
    f"config.{name}" for name in local
  ]
  of_text = {"gcs", "math"} if settings.get("data.source") else set()
  found = preflight.needed_extras(config, "/runs/a")
  assert found == {"tpu", *of_text, *extras}


@pytest.mark.parametrize(
  ("settings", "name"),
  [
    ({**_TUNED, "model.checkpoint": "gs://b/qwen"}, "model.checkpoint"),
    ({**_TUNED, "model.adapter_checkpoint": "gs://b/lora"}, "model.adapter_"),
  ],
)
def test_weights_in_a_bucket_are_refused(settings, name):
  config = config_lib.resolve(overrides.config("quickstart", **settings))
  with pytest.raises(ValueError, match=rf"config\.{name}.*from no bucket"):
    preflight._check_folders(config)


def test_a_judge_whose_license_has_to_be_accepted_needs_a_token():
  settings = {**_JUDGED, "judge.model": "meta-llama/Llama-3.1-8B-Instruct"}
  config = config_lib.resolve(overrides.config("quickstart", **settings))
  preflight._check_token(config, {"HF_TOKEN": "HF_TOKEN"})
  with pytest.raises(ValueError, match=r"config\.judge\.model=meta-llama/"):
    preflight._check_token(config, {})


def test_a_config_is_found_by_its_name(repository, capsys):
  del repository
  given = ["--name=sort", *_WHAT, "--config=quickstart:gspo"]
  assert _launch("skypilot_run", "--dry_run", *given) == 0
  assert "--config=configs/quickstart.py:gspo" in capsys.readouterr().out


@pytest.mark.parametrize(
  ("name", "product", "devices"),
  [
    ("v5e-16", "v5litepod-16", 16),
    ("v5litepod-8", "v5litepod-8", 8),
    ("v5e:4x4", "v5litepod-16", 16),
    ("v4-16", "v4-16", 8),
    ("v5p-8", "v5p-8", 4),
    ("v3-8", "v3-8", 8),
    ("v6e-256", "v6e-256", 256),
    ("tpu7x-16", "tpu7x-16", 16),
  ],
)
def test_topologies_have_one_spelling(name, product, devices):
  found = job.parse_topology(name)
  assert (found.product, found.num_devices) == (product, devices)
