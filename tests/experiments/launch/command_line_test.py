"""Command lines of the launchers: what they print, and what they refuse.

golden/NAME.txt is what a dry run printed, with COMMIT for the commit.
"""

import pathlib

import pytest

from experiments.launch import job, preflight, skypilot, tpu_vm, xpk
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
_LAUNCHERS = {"tpu_vm": tpu_vm, "xpk": xpk, "skypilot": skypilot}
_CASES = {
  "tpu_vm_run": [*_PLACE, *_WHAT, "--spot", *_REST],
  "tpu_vm_create": [
    *_PLACE,
    "--topology=v6e-256",
    "--slices=4",
    "--internal_ip",
    "--service_account=trainer@my-project.iam.gserviceaccount.com",
  ],
  "tpu_vm_status": [*_PLACE, "--slices=2"],
  "tpu_vm_logs": [*_PLACE, "--worker=3", "--follow"],
  "tpu_vm_stop": _PLACE,
  "tpu_vm_delete": _PLACE,
  "xpk_create": [*_CLUSTER, "--topology=v5p-16", "--slices=2", "--spot"],
  "xpk_run": [
    *(*_CLUSTER, *_WHAT, "--slices=2", *_REST, "--config.rl.num_prompts=32")
  ],
  "xpk_status": _CLUSTER,
  "xpk_logs": ["--follow"],
  "xpk_stop": _CLUSTER,
  "xpk_delete": _CLUSTER,
  "skypilot_run": [*_WHAT, "--spot", *_REST],
  # A mesh, and a secret by its name.
  "tpu_vm_secret_run": [
    *_PLACE,
    *_WHAT,
    "--mesh=fsdp:8,tensor:2",
    "--env=HF_TOKEN",
    "--env=KEY=my-key",
  ],
  "xpk_secret_run": [*_CLUSTER, *_WHAT, "--env=HF_TOKEN", "--wait"],
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
    ("tpu_vm_run", ["--name=Sort"], "--name=Sort: needed are up to 28 lower"),
    ("tpu_vm_run", ["--name=sort-"], "--name=sort-: needed are"),
    ("tpu_vm_run", ["--name=" + "a" * 29], "needed are up to 28"),
    ("tpu_vm_run", ["--name="], "--name is missing, and run needs it"),
    ("tpu_vm_run", ["--zone="], "--zone is missing, and run needs it: Zone"),
    ("tpu_vm_run", ["--project="], "--project is missing"),
    ("tpu_vm_run", ["--workdir=runs/a"], "needed is gs://BUCKET/PATH"),
    ("tpu_vm_run", ["--workdir=gs:/bucket/a"], "needed is gs://BUCKET/PATH"),
    (
      "tpu_vm_run",
      ["--workdir=runs/a", "--accelerator=v5litepod-8"],
      "needed is gs://BUCKET/PATH, or a path on the VM from its root",
    ),
    (
      "tpu_vm_run",
      ["--workdir=/runs/a", "--accelerator=v5litepod-8", "--slices=2"],
      "needed is gs://BUCKET/PATH",
    ),
    (
      "tpu_vm_run",
      ["--workdir=/runs/a", "--accelerator=v5litepod-8", "--spot"],
      "needed is gs://BUCKET/PATH",
    ),
    ("tpu_vm_run", ["--topology=v9-16"], "there is no generation 'v9' here"),
    ("tpu_vm_run", ["--topology=v5e-17"], "no slice of v5e has 17"),
    ("tpu_vm_run", ["--topology=tpu"], "needed is GENERATION:SHAPE"),
    ("tpu_vm_run", ["--topology=tpu7x-16"], "through experiments.launch.xpk"),
    ("skypilot_run", ["--topology=tpu7x-16"], "tpu7x is to be had on GKE"),
    # What would fail on the machines.
    ("tpu_vm_run", ["--mesh=tp:4"], "'tp:4' is no axis; needed is NAME:SIZE"),
    ("xpk_run", ["--mesh=fsdp:2,fsdp:8"], "fsdp is there twice"),
    (
      "tpu_vm_run",
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
    ("tpu_vm_run", ["--", "--config.rl.stepz=5"], "mean --config.rl.steps?"),
    ("xpk_run", ["--", "--config.rl.steps=-5"], "train would refuse this:"),
    ("skypilot_run", ["--", "--stepz=5"], "Unknown command line flag 'stepz'"),
    # What the trainer would refuse before its first step.
    ("tpu_vm_run", ["--", "--config.rl.staleness=1"], "without a correction"),
    (
      "xpk_run",
      ["--", "--config.guards.on=True", "--config.guards.canaries=('none',)"],
      "config.guards.canaries: 'none' is no component of the reward",
    ),
    (
      "tpu_vm_run",
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
      "tpu_vm_run",
      ["--mesh=fsdp:4,tensor:4"],
      "the model's num_kv_heads 2 does not split over tensor 4",
    ),
    (
      "tpu_vm_run",
      ["--extras=tpu"],
      "needs gcs too, and would end when it is started; pass --extras=tpu,gcs",
    ),
    (
      "xpk_run",
      ["--", "--config.model.checkpoint=Qwen/Qwen2.5-0.5B"],
      "pass --extras=tpu,gcs,hf",
    ),
    (
      "tpu_vm_run",
      [
        "--extras=tpu,gcs,hf",
        "--",
        "--config.model.checkpoint=meta-llama/Llama-3.2-1B",
      ],
      "set HF_TOKEN here and pass --env=HF_TOKEN",
    ),
    ("tpu_vm_run", ["--env=HF_TOKEN=hf_abc"], "looks like the value itself"),
    ("tpu_vm_run", ["--env=2"], "needed is NAME, or NAME=SECRET"),
    ("skypilot_run", ["--env=HF_TOKEN"], "--project is missing, whose Secret"),
    ("tpu_vm_run", ["--config=a.py"], "there is no file a.py here"),
    ("tpu_vm_run", ["--slices=0"], "--slices=0"),
    ("tpu_vm_run", ["--steps=5"], "experiments.train comes after `--`"),
    ("tpu_vm_run", ["--", "a\nb"], "received a line break"),
    ("tpu_vm_go", [], "received the action 'go'; needed is one of create, run"),
    ("tpu_vm_run", ["stop"], "received the action 'run stop'"),
    ("tpu_vm_logs", ["--slices=2", "--follow"], "--follow reads one slice"),
    ("xpk_run", ["--workdir=/runs/a"], "needed is gs://BUCKET/PATH"),
    ("xpk_status", ["--cluster="], "--cluster is missing"),
    ("skypilot_run", ["--workdir=/runs/a"], "needed is gs://BUCKET/PATH"),
    ("skypilot_run", ["--slices=2"], "Unknown command line flag 'slices'"),
  ],
)
@pytest.mark.usefixtures("repository")
def test_mistake_is_explained(name, arguments, message, capsys):
  place = {"tpu_vm": _PLACE, "xpk": _CLUSTER}.get(name.rsplit("_", 1)[0], [])
  given = ["--name=sort", *place, *_WHAT, *arguments]
  assert _launch(name, *given) == 2
  out, err = capsys.readouterr()
  assert err.startswith("error: ")
  assert message in err
  assert out == ""


def test_workdir_of_one_vm_that_stays_may_be_on_it(repository, capsys):
  del repository
  given = ["--accelerator=v5litepod-8", "--workdir=/runs/a"]
  assert (
    _launch(
      "tpu_vm_run",
      *_CASES["tpu_vm_run"][:2],
      "--name=sort",
      "--config=configs/quickstart.py",
      *given,
      "--dry_run",
    )
    == 0
  )
  assert "--workdir=/runs/a" in capsys.readouterr().out


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
  for name in ("tpu_vm", "xpk", "skypilot"):
    case = f"{name}_secret_run"
    assert _launch(case, "--name=sort", "--dry_run", *_CASES[case]) == 0
    out, err = capsys.readouterr()
    assert "secrets create HF_TOKEN --project=my-project" in out
    assert "s3cret" not in out + err


def test_credentials_are_looked_for(repository, capsys, monkeypatch):
  monkeypatch.setenv("CLOUDSDK_CONFIG", str(repository))
  given = ["--name=sort", *_CASES["tpu_vm_run"]]
  assert _launch("tpu_vm_run", *given) == 2
  message = "run `gcloud auth application-default login`"
  assert message in capsys.readouterr().err
  # A dry run goes on, and says it.
  assert _launch("tpu_vm_run", "--dry_run", *given) == 0
  out, err = capsys.readouterr()
  assert "note: without --dry_run this would be refused" in err
  assert "queued-resources create" in out
  account = "--service_account=a@my-project.iam.gserviceaccount.com"
  assert _launch("tpu_vm_run", "--dry_run", account, *given) == 0
  assert capsys.readouterr().err == ""
  monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", "/none.json")
  assert _launch("xpk_run", "--name=sort", *_CASES["xpk_run"]) == 2
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
  ("settings", "extras"),
  [
    ({}, set()),
    ({"log.wandb_project": "x"}, {"wandb"}),
    (
      _TEXT,
      {"gcs", "math"},
    ),
  ],
)
def test_extras_follow_from_the_config(settings, extras):
  config = overrides.config("quickstart", **settings)
  found = preflight.needed_extras(config_lib.resolve(config), "/runs/a")
  assert found == {"tpu", *extras}


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
  given = [*_CASES["tpu_vm_run"][:-3], "--config=quickstart:gspo"]
  assert _launch("tpu_vm_run", "--name=sort", "--dry_run", *given) == 0
  assert "--config=configs/quickstart.py:gspo" in capsys.readouterr().out


@pytest.mark.parametrize(
  ("name", "product", "devices", "several"),
  [
    ("v5e-16", "v5litepod-16", 16, True),
    ("v5litepod-8", "v5litepod-8", 8, False),
    ("v5e:4x4", "v5litepod-16", 16, True),
    ("v4-16", "v4-16", 8, True),
    ("v5p-8", "v5p-8", 4, False),
    ("v3-8", "v3-8", 8, False),
    ("v6e-256", "v6e-256", 256, True),
    ("tpu7x-16", "tpu7x-16", 16, True),
  ],
)
def test_topologies_have_one_spelling(name, product, devices, several):
  found = job.parse_topology(name)
  assert (found.product, found.num_devices) == (product, devices)
  assert found.several_vms == several
