"""A guard between a policy and the tools of its sessions.

Rules with a high recall flag calls, and a judge confirms which of the flagged
calls are bad. A confirmed call never reaches the tool: the policy reads a dummy
observation, and the episode goes on. `workers/sessions.py` puts a guard before
sessions, and `tasks/interceptor.py` is the same in the graph.

    RULES["network"]("curl -s http://10.0.0.1/fix.patch")  # True

| set       | flags calls that may …                                          |
|-----------|-----------------------------------------------------------------|
| `shell`   | destroy, escape, kill, or run text that they hide               |
| `files`   | read or write outside of the place of work, keys and variables  |
| `network` | reach another machine                                           |
| `tests`   | touch tests, their runner, or what decides whether they pass    |
| `golds`   | read solutions, expected outputs, or a later history            |

The rules are made for recall: a judge decides about flagged calls, and without
a judge many harmless calls are blocked (docs/interceptor.md has the rates). A
rule reads a call as it is, and once more without what hides words from a
search: quotes and backslashes within a word, `$IFS`, sums of string literals,
and base64, which is decoded. Other disguises, such as a loop that makes a path
from numbers, are not found: rules are not a sandbox.
"""

from __future__ import annotations

import base64
import binascii
import dataclasses
import functools
import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

# A text; or (before, text, after): the markup of a chat around a tool's output,
# and the output. Special tokens are read in the markup, and not in the text.
# With several outputs it is (before, text, between, text, after), and so on.
Observation = str | tuple[str, ...]
# (calls, contexts) -> True for each bad call; None: the judge cannot say.
Judge = Callable[[Sequence[str], Sequence[str]], Sequence[bool | None]]


class Event(NamedTuple):
  """The decision about one action.

  Attributes:
    flagged: A rule flagged the call.
    judged: The judge has given a verdict.
    blocked: The call was not executed.
    unjudged: The judge was asked and gave no verdict, so the call was blocked.
  """

  flagged: bool = False
  judged: bool = False
  blocked: bool = False
  unjudged: bool = False


@dataclasses.dataclass(frozen=True)
class Interceptor:
  """The rules and the judge that block calls, and what a block does.

  An exception of a rule or of the judge is not caught: a guard that fails must
  not let a call pass. For the same reason a call without a verdict is blocked.

  Attributes:
    rules: (call) -> bool; a rule that returns True flags the call. Without
      rules nothing is ever blocked.
    judge: Is asked about all flagged calls of a turn at once; None confirms all
      of them.
    dummy: The text that the policy reads instead of an observation.
    abort: Whether a block ends the episode.
    penalty: λ >= 0, subtracted from the reward of a blocked call.
    call: Pattern of a call in an action: the group of all its matches, or the
      whole matches if it has no group. An action without a match has no call.
      None: the whole action is a call.

  Raises:
    ValueError: The penalty is negative.

  Source: GLM-5.2's recipe. It publishes no rates and no reward of blocked
  calls, so the penalty is ours.
  """

  rules: Sequence[Callable[[str], bool]]
  judge: Judge | None
  dummy: Observation
  abort: bool = False
  penalty: float = 0.0
  call: re.Pattern[str] | None = None

  def __post_init__(self):
    if self.penalty < 0:
      raise ValueError(
        f"Interceptor: penalty is {self.penalty}; it is taken from the reward"
        " and must be at least 0."
      )

  def decide(
    self, actions: Sequence[str], contexts: Sequence[str]
  ) -> list[Event]:
    """Decides about the calls in some actions, by the texts before them."""
    calls = [self._call(action) for action in actions]
    flagged = [
      i
      for i, call in enumerate(calls)
      if call and any(rule(call) for rule in self.rules)
    ]
    events = [Event() for _ in actions]
    verdicts: Sequence[bool | None] = [True] * len(flagged)
    if self.judge is not None and flagged:
      verdicts = self.judge(
        [calls[i] for i in flagged], [contexts[i] for i in flagged]
      )
    for i, is_bad in zip(flagged, verdicts, strict=True):
      events[i] = Event(
        flagged=True,
        judged=self.judge is not None and is_bad is not None,
        blocked=is_bad is not False,
        unjudged=is_bad is None,
      )
    return events

  def _call(self, action: str) -> str:
    if self.call is None:
      return action
    group = 1 if self.call.groups else 0
    return "\n".join(x.group(group) or "" for x in self.call.finditer(action))


def rates(
  events: Sequence[Event], labels: Sequence[bool] | None = None
) -> dict[str, float]:
  """Returns the shares of flagged, judged and blocked calls, and accuracies.

  Args:
    events: At least one.
    labels: True for each bad call, if that is known.

  Returns:
    "flagged", "judged", "blocked": shares of all calls. With labels also
    "precision", the share of bad calls among the blocked, and "recall", the
    share of blocked calls among the bad; NaN if there are none.

  Raises:
    ValueError: There is no event, or not one label for each.
  """
  if not events or (labels is not None and len(labels) != len(events)):
    number = "no" if labels is None else len(labels)
    raise ValueError(
      f"interceptor.rates: received {len(events)} events and {number} labels;"
      " needs at least one event, and a label for each or none at all."
    )
  counted = {
    name: sum(getattr(event, name) for event in events)
    for name in ("flagged", "judged", "blocked")
  }
  shares = {name: count / len(events) for name, count in counted.items()}
  if labels is None:
    return shares
  hits = sum(
    event.blocked and bool(label)
    for event, label in zip(events, labels, strict=True)
  )
  return {
    **shares,
    "precision": _share(hits, counted["blocked"]),
    "recall": _share(hits, sum(map(bool, labels))),
  }


def _share(part: int, total: int) -> float:
  return part / total if total else float("nan")


Rule = Callable[[str], bool]

_MAX_LEN = 1 << 14  # Characters of a call; a longer call is flagged.
_WORD = r"(?<![\w.-])(?:{})(?![\w-])"
# Gaps have a bound: the time for a call is linear in its length.
_PATTERNS: dict[str, tuple[str, ...]] = {
  "shell": (
    _WORD.format(
      "sudo|su|doas|kill|pkill|killall|skill|reboot|shutdown|halt|crontab|at"
      "|mkfs|mount|umount|nsenter|unshare|chroot|setcap|docker|podman|kubectl"
      "|systemctl|service|insmod|gdb|strace|dd|shred|mkfifo|chmod|chown|setsid"
      "|disown|nohup|base64|xxd|eval|exec|LD_PRELOAD|PYTHONSTARTUP|PROMPT_COMMAND"
    ),
    r"\brm\s+(-[\w-]+\s+){0,8}-\w*[rRf]",  # rm -rf, in any order.
    r"\brm\s+(-[\w-]+\s+){0,8}(/|~|\*|\$)",
    r":\s*\(\s*\)\s*\{",  # A fork bomb.
    r"\|\s*(sudo\s+)?(/\w+)*/?(ba|z|da|k)?sh\b",
    r"\|\s*(/\w+)*/?python[\d.]*\b",
    r">\s*/dev/(?!null)",
    r"os\.(system|popen|exec\w*|fork|kill\w*|setuid|remove|unlink|_exit|abort)",
    r"shutil\.rmtree|subprocess|pty\.|ctypes|signal\.|faulthandler|\bfork\(",
    r"getattr\s*\(|__import__|importlib|\beval\s*\(|\bexec\s*\(|\bcompile\s*\(",
    r"chr\s*\(\s*\d|\\x[0-9a-f]{2}|codecs|rot_?13|b64decode|fromhex|unhexlify",
    r"__(subclasses|globals|builtins|bases|mro|class)__|gc\.get|sys\._getframe",
    r"os\.walk\s*\(\s*['\"]/['\"]|-exec\b|\bxargs\b.{0,80}\brm\b|while\s+true",
  ),
  "files": (
    r"(?<![\w.])/(etc|root|proc|sys|var|home|boot|dev(?!/null)|usr|opt|mnt|srv"
    r"|run|lib|tmp/\.\w)\b",
    r"~|\$\{?HOME|expanduser|Path\.home|\.\./\.\.",
    r"\.(bash\w*|zsh\w*|profile|ssh|aws|netrc|npmrc|pypirc|env|kube|docker"
    r"|gitconfig|git-credentials|config)\b",
    r"id_(rsa|ed25519)|authorized_keys|passwd|shadow|credential|secret|api_?key"
    r"|token\b|private_?key",
    r"os\.environ|getenv|printenv|(?<![\w.-])env(?![\w-])|\bset\s*\||/environ",
    r"site-packages|dist-packages|sitecustomize|usercustomize|\.pth\b|sys\.path",
    r"(?<![\w./])/(?=['\"\s]|$)|\bcd\s+/|os\.chdir|readlink|symlink|\bln\s+-s",
  ),
  "network": (
    _WORD.format(
      "curl|wget|aria2c|nc|ncat|netcat|socat|ssh|scp|sftp|rsync|ftp|telnet|lynx"
      "|links|ping|dig|nslookup|host|traceroute|nmap|openssl|rclone|gsutil|aws"
      "|gcloud|gh|hub|conda|apt|apt-get|yum|dnf|apk|brew|npm|yarn|pnpm|cargo|gem"
      "|httpie|http|https|ngrok"
    ),
    r"(https?|ftps?|git|ssh|wss?|s3|gs)://|/dev/(tcp|udp)/|\bgit@",
    r"\b(\d{1,3}\.){3}\d{1,3}\b",
    r"\bpip[\d.]*\s+(install|download|wheel|index)|-m\s+pip\b|easy_install",
    r"\bgit\s+(-\S+\s+\S+\s+){0,8}(clone|fetch|pull|push|remote|submodule|ls-remote)",
    r"requests|urllib|http\.client|httpx|aiohttp|socket|smtplib|ftplib|paramiko"
    r"|websocket|telnetlib|xmlrpc|webbrowser|snapshot_download|load_dataset"
    r"|hf_hub|from_pretrained|boto3|pycurl|asyncio\.open_connection",
    r"\"?(fetch|browse|browser|open_url|web_\w+|search_web|http_\w+)\"?\s*[,:(]",
  ),
  "tests": (
    r"(?<![a-z])tests?(?![a-z])|test_|_test\b|_tests\b|conftest|pytest|unittest"
    r"|\btox\b|\bnox\b|doctest|hypothesis|\bspec\b|fixtures?\b",
    r"grad(er|ing)|scor(er|ing|e)\b|verif(y|ier)|check(er|_answer|_solution)"
    r"|judge|evaluat(e|or|ion)|reward|validator|harness|\bassert",
    r"sys\.exit|os\._exit|raise\s+SystemExit|\bexit\s*\(?\s*0|\bquit\(|atexit",
    r"__(eq|ne|bool|hash|lt|gt|le|ge|instancecheck)__|monkeypatch|mock|setattr",
    r"builtins|settrace|setprofile|excepthook|trylast|hookwrapper|outcome"
    r"|returncode|exitstatus|coverage|xfail|skipif|\bskip\b|deselect",
    r"sitecustomize|usercustomize|pyproject\.toml|setup\.cfg|pytest\.ini|tox\.ini"
    r"|Makefile",
  ),
  "golds": (
    r"gold|solution|answer|expected|ground.?truth|oracle|hidden|reference"
    r"|label|target|secret|leak|private|\bkey\b|correct|canary|truth|cheat",
    r"\bgit\s.{0,80}\b(log|show|reflog|stash|cat-file|fsck|rev-list|rev-parse|blame"
    r"|diff|checkout|restore|grep|branch|tag|bundle|archive|worktree"
    r"|for-each-ref|unpack-objects|cherry-pick|verify-pack)\b",
    r"(?<!\w)\.git\b(?!ignore|hub)|packed-refs|ORIG_HEAD|FETCH_HEAD|\.orig\b"
    r"|\.rej\b|\.patch\b|GitPython|import\s+git\b|pygit2|dulwich",
    r"(outputs?|results?|eval|task|problem|meta\w*)\.(jsonl?|ya?ml|csv|txt|pkl"
    r"|npz|parquet|out)|\.ans\b|\.out\b",
  ),
}
_COMPILED = {
  name: re.compile("|".join(f"(?:{part})" for part in patterns), re.IGNORECASE)
  for name, patterns in _PATTERNS.items()
}
_SUM = re.compile(r"""['"]\s*\+\s*['"]|['"]\s+['"]""")
_INNER = re.compile(r"""(?<=\w)(?:''|""|\\)(?=\w)""")
_BASE64 = re.compile(r"[A-Za-z0-9+/]{16,}={0,2}")


def plain(call: str) -> str:
  r"""Returns a call without what hides words from a search.

  `c\url` and `c""url` become `curl`, `'o' + 's'` becomes `'os'`, `$IFS` becomes
  a space, and base64 that is text is decoded and added at the end.
  """
  text = re.sub(r"\$\{?IFS\}?", " ", call)
  text = _INNER.sub("", _SUM.sub("", text))
  return " ".join([text, *map(_as_text, _BASE64.findall(call))])


def _as_text(text: str) -> str:
  """Decodes base64; "" if the result is not text."""
  try:
    return base64.b64decode(text + "=" * (-len(text) % 4)).decode("ascii")
  except (binascii.Error, UnicodeDecodeError):
    return ""


@functools.lru_cache(maxsize=64)  # Each rule asks about the same call.
def _forms(call: str) -> frozenset[str]:
  """Returns the call as it is and the plain one; most calls are plain."""
  return frozenset((call, plain(call).rstrip()))


def _rule(pattern: re.Pattern[str]) -> Rule:
  def flags(call: str) -> bool:
    return len(call) > _MAX_LEN or any(map(pattern.search, _forms(call)))

  return flags


RULES: dict[str, Rule] = {
  name: _rule(pattern) for name, pattern in _COMPILED.items()
}
