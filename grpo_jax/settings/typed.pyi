"""Every setting of a config, for editors and mypy.

`scripts/typed_configs.py` has written this file, from the dataclasses of
settings and their docstrings. Do not edit it.
"""

from collections.abc import Callable, ItemsView, Iterator, KeysView, Mapping
from contextlib import AbstractContextManager
from typing import Any, Self

class Group:
  """A group of settings; `config["name"]` is one whose name is not known."""

  @property
  def is_locked(self) -> bool: ...
  def __getitem__(self, name: str) -> Any: ...
  def __setitem__(self, name: str, value: Any) -> None: ...
  def __contains__(self, name: str) -> bool: ...
  def __iter__(self) -> Iterator[str]: ...
  def __len__(self) -> int: ...
  def get(self, name: str, default: Any = None) -> Any: ...
  def items(self) -> ItemsView[str, Any]: ...
  def keys(self) -> KeysView[str]: ...
  def update(self, *settings: Mapping[str, Any], **named: Any) -> None: ...
  def lock(self) -> Self: ...
  def unlock(self) -> Self: ...
  def unlocked(self) -> AbstractContextManager[None]: ...
  def copy_and_resolve_references(self) -> Self: ...
  def to_dict(self) -> dict[str, Any]: ...
  def to_json(self) -> str: ...

class Free(Group):
  """A group whose settings have names of your own."""

  def __getattr__(self, name: str) -> Any: ...
  def __setattr__(self, name: str, value: Any) -> None: ...

class Optimizer(Group):
  name: str
  """ "adamw"; "adafactor" (factored second moments, no first moments: the
  least memory); or "muon" (orthogonalised momentum for the matrices of the
  layers, AdamW for the rest). A learning rate makes steps of about the same
  size with each of them."""
  learning_rate: float
  """Peak learning rate."""
  schedule: str
  """ "constant", "linear" or "cosine" decay after the warm-up, over all
  gradient steps of the phase."""
  warmup_steps: int
  """Gradient steps of linear warm-up."""
  final_fraction: float
  """Learning rate at the end, as a fraction of the peak."""
  b1: float
  """AdamW's parameter of this name."""
  b2: float
  """AdamW's parameter of this name."""
  eps: float
  """AdamW's parameter of this name."""
  weight_decay: float
  """Decoupled weight decay, only on matrices, not on embeddings, norms and
  biases."""
  clip_norm: float
  """Largest global gradient norm."""
  stochastic_rounding: bool
  """Whether the sum of a bfloat16 parameter and its update is rounded up or
  down at random, so that small updates are not lost. Parameters in float32,
  such as those of adapters, are not affected."""

class Critic(Group):
  trunk: str
  """ "own": a copy of the policy, made when the first of these phases begins;
  or "shared": the policy's hidden states as constants."""
  freeze: tuple[str, ...]
  """Names in the paths of parameters of an own trunk that are not trained,
  such as "attention" or "embed"."""
  num_updates: int
  """Gradient steps for each step of the policy; 0 keeps the critic as it
  is."""
  optimizer: Optimizer
  """The critic's optimizer; its schedule begins anew in each phase."""

class RewardModel(Group):
  source: str
  """An existing reward model: the workdir of a run that has trained one, or
  the folder or hub name of a Hugging Face checkpoint with a scalar head (a
  model for sequence classification with one label; for token classification
  if step_ends is set). It keeps its own size, and reads the policy's tokens.
  A phase that trains the reward model continues from it. Empty: a copy of the
  policy, made when the first phase that trains it begins."""
  ranked_by: str
  """Another reward model whose scores rank completions instead of rewards, in
  phases of the kind "preference"; named as source is, and not trained. Empty:
  rewards rank them."""
  step_ends: tuple[str, ...]
  """Ends of texts of tokens that end a step, such as (";",) or ("\\n",), for
  a process reward model, which scores each step. Phases of the kind "process"
  train it. Empty: the model scores whole completions."""
  of_steps: str
  """Function from scores of steps, each the probability that the step is
  right, to the score of the completion: "min", "product" or "sum"."""
  freeze: tuple[str, ...]
  """Names in the paths of parameters of its trunk that are not trained."""
  num_updates: int
  """Gradient steps on each minibatch."""
  margin: float
  """Margin by which the better score should be ahead, in the loss of
  pairs."""
  center_coef: float
  """Weight of the term of that loss that keeps scores centred."""
  history_share: float
  """Share of a step's prompts that come from earlier phases, with their
  completions of that time. 0.1 of 40 prompts are 4, once there are as many;
  0: none."""
  history_size: int
  """Number of prompts that are kept for that, with their completions: a
  uniform sample of all prompts of such phases."""
  optimizer: Optimizer
  """The reward model's optimizer; its schedule begins anew in each phase."""

class Service(Group):
  url: str
  """Address of the interface, such as "https://host/v1"; empty: the judge is
  a model of the run, in its program."""
  key_variable: str
  """Environment variable with the key, which is not in any config, log or
  checkpoint; empty: no key is sent."""
  timeout_s: float
  """Seconds for the verdict on a row, over all its tries. All rows of a step
  have config.rewards.step_timeout_s."""
  max_tries: int
  """Most calls for a row: a call with a temporary failure is tried again
  after a pause that doubles."""
  max_calls: int
  """Most calls of each process of a run, repeated calls included. Further
  rows are unscored. A resumed run counts on from its checkpoint."""
  max_in_flight: int
  """Most calls at the same time."""
  options: Free
  """Further fields of a request, such as {"seed": 1}; None removes a field,
  "temperature" (0) or "max_tokens"."""

class Judge(Group):
  rubric: str
  """Text for the judge, with "{prompt}" and "{completion}", and other fields
  of the records, such as "{answer}". For a service also "{fence}", a word
  that no completion can contain."""
  model: str
  """The judge's model. Empty: the policy itself, as it is in each step. Or
  the folder of a run, or the folder or hub name of a Hugging Face checkpoint
  with the same tokenizer, which is frozen. For a service the model's name
  there."""
  verdicts: Free
  """Words and their values. The last word of the answer counts."""
  marker: str
  """Text, such as "Verdict:", after whose last occurrence the first word
  counts. Empty: the last word of the answer counts."""
  template: str
  """Text around the rubric for a model of the run, with "{rubric}"; or "chat"
  for the tokenizer's chat template. A service has a template of its own."""
  max_prompt_len: int | None
  """Slots for everything that the judge reads except the completion, tokens;
  completions of longer records are unscored. None: the number that a task
  needs, or config.data.max_prompt_len and the words of the rubric."""
  max_new_tokens: int
  """Most tokens of its answer."""
  batch_size: int | None
  """Rows that a model of the run reads at once, over all devices; None: as
  many as a step has prompts."""
  service: Service
  """A judge over HTTP."""

class Data(Group):
  images: tuple[str, ...]
  """Fields of the rows that have the images of a prompt: each an image, a
  list of images, or null (docs/images.md). Empty: prompts are text alone."""
  image_folder: str
  """Folder of images that are given by paths, which must not leave it; empty:
  the folder of `train_path`."""
  image_processor: str
  """Folder of a checkpoint whose processor cuts images into patches; empty:
  that of `model.checkpoint`."""
  image_options: Free
  """Settings that replace those of the processor's file: "min_pixels" and
  "max_pixels", or "longest_edge", "tile" and "splits"."""
  max_images: int | None
  """Most images of a prompt; a tile counts as one."""
  max_patches: int | None
  """Most patches of a prompt. Prompts with more patches, or with broken
  images, are left out and counted."""
  image_workers: int
  """Number of processes that decode images."""
  source: str
  """ "task" (synthetic, `tasks/`), "tfds", "jsonl", "datasets" (the package
  of Hugging Face: Parquet, CSV, Arrow, or a name on its hub), "text" (prompts
  alone), "reasoning_gym", "environment" (first observations of `environment`,
  or the data set of one of the package verifiers), or "mixture" of several of
  the others."""
  name: Any
  """Task name, or the import path of a task ("my_pkg.tasks:make"), or TFDS
  dataset name ("gsm8k"). Of the source "datasets" without `train_path` a name
  on the hub, "owner/name:subset@revision", of which ":subset" and "@revision"
  may be missing."""
  task_options: Free
  """Options of the task (`tasks/<name>.py`)."""
  train_path: str
  """File of training prompts, JSON lines or text; local or gs://. Of the
  source "datasets" a local file or folder."""
  eval_path: str
  """The same for held-out prompts; empty: the training file."""
  format: str
  """Format of the rows of a file or a dataset. "gsm8k": question and worked
  answer. "math": problem and solution with a box. "pairs": prompt, chosen and
  rejected. "trl", "verl", "open_instruct": the layouts of these libraries.
  "my_pkg.rows:convert": a function of yours that takes a row and returns a
  dictionary with the fields of a record. Empty: the fields prompt, answer,
  completion and extras; or, if a TFDS dataset has such a name, its format."""
  train_split: str
  """Splits of a TFDS dataset or of the source "datasets", such as
  "train[:1000]". Of that source a file is a single split, so only the slice
  counts there."""
  eval_split: str
  """Splits of a TFDS dataset or of the source "datasets", such as
  "train[:1000]". Of that source a file is a single split, so only the slice
  counts there."""
  fields: Free
  """Names of the rows' fields for a record without a format: `prompt`,
  `answer`, `completion`, `tools` and `chat_options`, and `extras`, a group of
  such names."""
  streaming: bool
  """Leave a JSON-lines file on the disk and read a line when it is its turn,
  which takes no memory; a file `.index` is made beside it. With the source
  "datasets", which is always on the disk, rows are not read once before the
  first step."""
  separator: str
  """Text between the prompts of a text file: "\\n", or "\\n\\n" for
  paragraphs."""
  datasets: tuple[Mapping[str, Any], ...]
  """Datasets of reasoning-gym: each a group with a `name`, and optionally
  `weight`, `settings`, and `level` or `levels` of difficulty
  (`data/gym.py`)."""
  mixture: tuple[Mapping[str, Any], ...]
  """Parts of a mixture: each a group with settings of its own, such as
  `source` ("task" by default), `name`, `task_options` or `train_path`; its
  `weight` (1 by default), with which its prompts are drawn for training; and
  the name of its `domain` (by default that of the task or the file).
  Evaluations take a prompt of each part in turn. Parts are tasks, or text for
  one tokenizer; other settings, such as `template`, are those of the
  mixture."""
  domain_key: str
  """Field of the rows, or of their `extras`, whose text or whole number is
  the name of a prompt's domain. Metrics, evaluations and lengths are reported
  by domain, and rewards, teachers and weights of the KL can depend on it.
  Empty: the number `domain` in `extras`, if there is one; with the format
  "math" the subject."""
  domains: tuple[str, ...]
  """Names of the domains in the order of their numbers; empty: the names in
  the data, in alphabetical order; a number without a name is its own name."""
  tokenizer: str
  """Path of a `tokenizer.json` or of a checkpoint's folder, or "gsm8k" or
  "bytes" (every byte is a token) for those of the package; empty with a
  `model.checkpoint`: the checkpoint's. Unused by tasks, which are made of
  ids."""
  template: str
  """Text around a prompt, with "{prompt}"; or "chat" for the tokenizer's own
  chat template."""
  chat_options: Free
  """Inputs of the chat template beside the messages. If an environment has
  tools (docs/tools.md), their schemas are added as `tools`, unless `tools` is
  set here. `tools` and `chat_options` of a record come before these."""
  system: str
  """Text of a system message before prompts that have none, for the template
  "chat"; empty: none."""
  end_tokens: tuple[str, ...]
  """Tokens that end a completion; empty: those of the tokenizer."""
  max_prompt_len: int | None
  """Prompt slots S; longer prompts are left out and counted. None: the number
  that the task needs."""
  drop_tag_probability: float
  """Probability, in [0, 1], with which the supervised teacher of worked
  answers ("gsm8k") drops one of its format tags."""
  rejected_share: float
  """Share of rows of a file of pairs, in [0, 1], whose rejected text a
  supervised phase imitates instead of the chosen text."""
  quarantine: str
  """JSON file with records to leave out of training, as `grpo-lint` writes
  it; empty: none."""
  num_threads: int
  """Threads that read and tokenize batches ahead; 0: a batch is made when it
  is requested. Never changes the batches."""
  environment: Any
  """Import path "package.module:function" of a factory of sessions of an
  environment on the host (`types.HostEnvironment`): episodes of several
  turns, whose scores are the components of the reward. It replaces the
  verifier or environment of a task. "verifiers:TASKSET" is an environment of
  that package (docs/serving.md). Empty: none."""

class Compaction(Group):
  context_len: int | None
  """C, most tokens of a context, with its beginning. None: contexts are never
  replaced."""
  reserve: int | None
  """Number of tokens; the policy writes a summary if a context has fewer
  left. None: just enough for an action, the instruction and a summary."""
  every: int
  """Turns after which a summary is written anyway; 0: never."""
  keep_turns: int
  """Number of last turns, each an observation and an action, with which the
  next context begins; fewer if they do not fit."""
  max_compactions: int
  """Most compactions of an episode."""
  max_summary_len: int
  """Most tokens of a summary, with its end."""
  max_prompt_len: int | None
  """Slots of the beginning of a context. None: as many as the first prompt, a
  summary and the kept turns may take, within C."""
  instruction: tuple[str, ...]
  """Text that the policy reads before it writes a summary; or three texts
  (before, text, after), like the observations of a chat. With one text and
  the data's template "chat" it is a message of the user, written by the
  tokenizer's chat template."""
  ends: tuple[str, ...]
  """Texts of tokens that end a summary, beside the end tokens; empty: those
  that end an action."""
  resume: tuple[str, ...]
  """Texts before and after a summary in the next context. The token that
  ended the summary is not part of it, so for a chat the second text has the
  end of a message. Empty: no texts; or, if the chat template writes the
  instruction, the texts that make the summary the assistant's reply to the
  first prompt."""
  trains_summary: bool
  """Whether the tokens of summaries are trained."""
  keeps_summary: bool
  """Whether contexts begin with the summary; else they begin with the prompt
  and the last turns alone."""

class Environment(Group):
  max_turns: int | None
  """Most actions of an episode."""
  max_action_len: int | None
  """Tokens after which an action ends."""
  max_observation_len: int | None
  """Tokens to which an observation is cut."""
  action_ends: tuple[str, ...]
  """Texts of tokens that end an action, beside the end tokens."""
  options: Free
  """Arguments of the factory beside the prompt, the extras and the seed, by
  name; plain data."""
  concurrency: int
  """Sessions that each of `rewards.num_workers` processes runs at the same
  time. More sessions hide the time for which tools wait; fewer leave each
  session the cores that it needs to answer in time."""
  compaction: Compaction
  """Compaction of contexts by summaries that the policy writes."""

class Interceptor(Group):
  rules: tuple[str, ...]
  """Names of sets of `rewards/agents/interceptor.py`: "shell", "files",
  "network", "tests", "golds"; or your own rules, (call) -> bool, as
  "package.module:function". A call that a rule flags is judged. Empty: there
  is no interceptor."""
  call: str
  """Regular expression of a call in an action, such as
  "(?s)<tool_call>(.*?)</tool_call>": the match of its group is checked.
  Empty: the whole action is checked."""
  judge: str
  """Judge of flagged calls. Empty: all of them are bad. "service": a model
  over HTTP decides, by config.judge, whose rubric gets the call as
  {completion} and the last 4096 characters before it as {prompt}; a verdict
  worth 0.5 or more means bad. Otherwise a function (call, context) -> bool,
  as "package.module:function"."""
  dummy: tuple[str, ...]
  """Text that the policy reads after a blocked call; or three texts (before,
  text, after), like the observations of a chat."""
  abort: bool
  """Whether a block ends the episode instead."""
  penalty: float
  """λ >= 0, subtracted from the reward of a blocked call."""

class Served(Group):
  calls: str
  """Format in which the policy writes calls of tools, a name of
  `rewards/agents/call_formats.py`; empty: calls are text."""
  python: str
  """Python interpreter that has the package, of another virtual environment
  if versions conflict; empty: the interpreter of the run."""
  num_rows: int | None
  """Most requests that are answered at a time; None: the number of
  completions in a step."""
  pause_s: float
  """Seconds between successive requests within which they are answered
  together."""

class TowerSettings(Group):
  kind: str
  """Family of the tower, "siglip", "qwen2_vl", "qwen2_5_vl" or "qwen3_vl";
  empty: prompts have no images."""
  width: int
  """Width of the residual stream."""
  num_layers: int
  """Number of blocks."""
  num_heads: int
  """Heads of attention; they divide the width."""
  mlp_width: int
  """Width inside the MLP."""
  patch_size: int
  """Rows and columns of pixels of a patch."""
  channels: int
  """Numbers of a pixel."""
  merge: int
  """Rows and columns of patches that become one token of the language
  model."""
  side: int
  """Rows and columns of the table of learned positions."""
  norm_eps: float
  """Added to variances, or mean squares, before the root."""
  frames: int
  """Frames of a patch; a tower that also reads videos treats an image as so
  many equal frames (2 in Qwen's)."""
  window: int
  """Rows and columns of tokens of a window; patches see only their own
  window, except in `full_layers` (Qwen2.5-VL). 0 for no windows."""
  full_layers: tuple[int, ...]
  """Layers without windows, counted from 0."""
  deep_layers: tuple[int, ...]
  """Layers whose outputs also become features, one for each of the first
  layers of the language model (Qwen3-VL)."""
  trained: bool
  """Whether the tower is trained; else it is frozen. Beneath adapters it is
  never trained itself."""
  image_token: int | None
  """Id of the placeholder token, in whose places the features of images are
  read; with a checkpoint it comes from config.json."""

class Model(Group):
  width: int
  """Width of the residual stream."""
  num_layers: int
  """Number of blocks."""
  num_heads: int
  """Query heads."""
  num_kv_heads: int
  """Key and value heads; divides `num_heads`."""
  mlp_width: int
  """Width inside the MLP; in a mixture, of the layers without experts."""
  head_dim: int | None
  """Width of a head, even; None for `width / num_heads`."""
  learned_positions: int
  """Rows of a table of positions, which are added to embeddings (GPT-2); no
  sequence may be longer. 0 for no table."""
  rope_theta: float
  """Base of the rotary wavelengths."""
  norm_eps: float
  """Added to mean squares before the root."""
  qk_norm: str
  """RMSNorm on queries and keys: "head" over each head (Qwen3), "projection"
  over all heads of a token (OLMo-2), or "none"."""
  qkv_bias: bool
  """Biases on queries, keys and values (Qwen2)."""
  out_bias: bool
  """A bias on the output of attention (gpt-oss)."""
  attention_sinks: bool
  """A score of each head that belongs to no key and takes a share of the
  weights (gpt-oss)."""
  latent_width: int
  """Width of the latent vector of a token, from which keys and values of all
  heads are made (DeepSeek's MLA; see `blocks.py`); 0 for keys and values
  without a latent vector."""
  query_latent_width: int
  """The same for queries; 0 for queries made directly."""
  value_dim: int | None
  """Width of a value with `latent_width`; None for `head_dim`."""
  tied_embeddings: bool
  """Whether the head is the transposed embedding table."""
  pre_norm: bool
  """Norms before, and after, attention and MLP. Gemma has both, OLMo-2 only
  those after."""
  post_norm: bool
  """Norms before, and after, attention and MLP. Gemma has both, OLMo-2 only
  those after."""
  norm_plus_one: bool
  """Norms multiply by 1 + scale (Gemma)."""
  embedding_scale: float
  """Factor of embeddings, rounded to `dtype` (√width in Gemma)."""
  residual_scale: float
  """Factor of what attention and MLP add to the residual stream (Granite)."""
  logit_scale: float
  """Factor of logits, before their cap (Granite)."""
  norm: str
  """Kind of the norms: RMSNorm with scales, "rms", or without, "plain"
  (nanochat); or "layer", LayerNorm with scales and biases (GPT-2)."""
  embedding_norm: bool
  """A "plain" norm of embeddings (nanochat)."""
  activation: str
  """Activation of the gate: "silu", or "gelu" in its tanh form (Gemma),
  "relu2", max(gate, 0)² (nanochat), or "clamped" (gpt-oss): gate · σ(a ·
  gate) · (up + 1), where gate and up are clamped to a limit; or "bounded",
  "silu" with gate and up clamped likewise (DeepSeek-V4)."""
  gate: bool
  """Whether an MLP is down(activation(gate(x)) · up(x)), and not
  down(activation(up(x))) (nanochat)."""
  mlp_bias: bool
  """Biases in the MLP (GPT-2)."""
  swiglu_limit: float
  """Bound of gate and up of "clamped" and "bounded"."""
  swiglu_slope: float
  """Slope a of the gate x·sigmoid(a·x) of "clamped"."""
  attention_scale: float | None
  """Factor of the scores; None for head_dim^−½."""
  attention_softcap: float | None
  """c · tanh(x / c) on scores, and on logits (Gemma 2); None for no cap."""
  final_softcap: float | None
  """c · tanh(x / c) on scores, and on logits (Gemma 2); None for no cap."""
  sliding_window: int | None
  """Tokens that a sliding layer sees, itself included; None for no sliding
  layers."""
  sliding_layers: tuple[bool, ...]
  """Whether each layer slides; empty: all do."""
  local_rope_theta: float | None
  """Base for sliding layers, without scaling (Gemma 3, OLMo 3); None for
  `rope_theta`, scaled, in all."""
  rope_scaling: str
  """ "none", "linear" (positions over the factor), "llama3" or "yarn" (long
  wavelengths only), or "longrope" (each by its own factor)."""
  rope_factor: float
  """The factor of the scaling."""
  rope_low_freq: float
  """Bounds of Llama 3 and YaRN, in wavelengths per original context, and that
  context, tokens."""
  rope_high_freq: float
  """Bounds of Llama 3 and YaRN, in wavelengths per original context, and that
  context, tokens."""
  rope_original_len: int
  """Bounds of Llama 3 and YaRN, in wavelengths per original context, and that
  context, tokens."""
  rope_truncate: bool
  """Whether YaRN's bounds are rounded to whole channels."""
  rope_amplitude: float
  """Factor of cosines and sines (YaRN, LongRoPE)."""
  rope_short_factors: tuple[float, ...]
  """LongRoPE's factors, one for each wavelength, in the original context and
  beyond it."""
  rope_long_factors: tuple[float, ...]
  """LongRoPE's factors, one for each wavelength, in the original context and
  beyond it."""
  long_context: bool
  """Whether the long factors are used, for sequences of any length. A run
  decides once, so that a token's log-prob does not depend on how long its
  sequence becomes."""
  query_scaling: float
  """β of the factor 1 + β ln(1 + ⌊position / rope_original_len⌋) of queries
  (Ministral 3); 0 for none."""
  rotary_width: int | None
  """Channels of a head that positions turn, the first ones, or with
  `latent_width` the last ones; None for all, and with `learned_positions` 0
  for none."""
  rotary_layers: tuple[bool, ...]
  """Whether positions turn queries and keys of each layer (SmolLM3 has layers
  without); empty: of all."""
  rotary_interleaved: bool
  """Whether neighbouring channels are a pair (GLM-4, DeepSeek), and not those
  half of the width apart."""
  rope_sections: tuple[int, ...]
  """Numbers of pairs of channels that are turned by the time, the row and the
  column of a token of an image (Qwen's M-RoPE); all three of a text token are
  its position. Empty: one position turns all pairs."""
  rope_sections_mixed: bool
  """Whether rows and columns take every third pair in turn (Qwen3-VL), and
  not one range after the other (Qwen2.5-VL)."""
  num_experts: int
  """Experts that replace the MLP of each layer; 0 for none."""
  experts_per_token: int
  """Number of experts that a token takes."""
  expert_width: int
  """Width inside an expert's SwiGLU."""
  num_dense_layers: int
  """Number of the first layers of a mixture that have an MLP instead of
  experts (DeepSeek)."""
  shared_width: int
  """Width of an MLP beside the experts, which every token takes; 0 for
  none."""
  expert_biases: bool
  """Whether routers and experts have biases (gpt-oss)."""
  router_scores: str
  """Function of a router's logits: "softmax" over all experts, or of each
  "sigmoid" (DeepSeek-V3) or the root of its softplus, "sqrtsoftplus"
  (DeepSeek-V4)."""
  router_groups: int
  """Number of groups of neighbouring experts, and the number of groups from
  which a token takes its experts. The best groups are those with the largest
  sums of their two largest scores."""
  groups_per_token: int
  """Number of groups of neighbouring experts, and the number of groups from
  which a token takes its experts. The best groups are those with the largest
  sums of their two largest scores."""
  router_scale: float
  """Factor of the weights."""
  norm_topk: bool
  """Whether the weights of a token's experts add up to 1 (Qwen3-MoE), or are
  their shares of the distribution over all (OLMoE)."""
  router_bias: bool
  """Whether frozen biases, which start at 0, are added to the routers'
  probabilities for the choice of experts (DeepSeek-V3)."""
  attention: str
  """Form of attention in whole sequences, "plain", "splash" (TPU) or "cudnn"
  (GPU); "auto" for the one that the backend is best at."""
  decode_attention: str
  """Form of attention in a decode step: "plain", or "paged" (TPU; see
  `paged.py`)."""
  experts: str
  """Form in which experts are computed, "dense", "blocked", "ragged" or
  "megablox" (TPU); "auto" for the one that the backend is best at."""
  remat: str
  """Activations of a block that the backward pass recomputes instead of
  keeping them: "none"; "dots" (all but products with weights and kernels of
  attention), which is as fast and takes half the memory; or "full"."""
  split_positions: bool
  """Whether the devices along `tensor` share the positions of the residual
  stream between two blocks, for long completions; else each device holds all
  positions. Sequences that do not divide stay whole."""
  prefill_chunk: int
  """Tokens of a prompt that are run at a time before sampling, for long
  prompts; 0: all at once. The activations inside a layer then exist for so
  many tokens; keys and values are kept for all. Each chunk is compiled. Not
  with attention "cudnn" or images."""
  cache_dtype: str
  """Format of keys and values while sampling: "model" (in `dtype`),
  "bfloat16", or "int8" with a scale for each token and head. The update never
  reads the cache, so its ratios do not change; the sampler's log-probs are
  those of a model that reads rounded keys and values."""
  dtype: str
  """Dtype of activations and matmul operands. Norm statistics, softmax and
  logits are at least float32."""
  param_dtype: str
  """The dtype of the parameters."""
  tower: TowerSettings
  """The vision tower, which reads images of prompts."""
  checkpoint: str
  """Folder or hub name of a Hugging Face checkpoint to start from, or a GGUF
  file. It then decides the architecture. Only these other fields may be set:
  `dtype`, `param_dtype`, `attention`, `decode_attention`, `experts`, `remat`,
  `split_positions`, `prefill_chunk`, `cache_dtype`, `long_context` and
  `tower.trained`. Empty: from scratch."""
  revision: str
  """Commit, tag or branch of a checkpoint on the hub; with a commit a run
  always starts from the same files. Empty: the newest."""
  adapter_checkpoint: str
  """Folder with adapters to start from, as PEFT and `grpo-export --adapters`
  write it, for this `checkpoint`. Rank, α and modules are those of the file,
  and need not be set. Empty: fresh adapters."""
  lora_rank: int
  """Rank of the adapters, which alone are trained; 0 for no adapters."""
  lora_alpha: float
  """α of the adapters, whose term is multiplied by lora_alpha / lora_rank."""
  lora_modules: tuple[str, ...]
  """Projections with an adapter, by the names of `lora.LoRAConfig`; empty:
  all projections of the layers, except those of experts."""
  quantization: str
  """Format of the kernels beneath the adapters: "none", "int8", "nf4" or
  "nf4_double"."""

class Sampling(Group):
  max_new_tokens: int | None
  """Most tokens T of a completion; None: the number that the task needs."""
  temperature: float
  """Temperature of training rollouts, > 0."""
  domain_limits: Free
  """Most tokens of completions in some domains of prompts, by name: {"add":
  8}. Other domains have max_new_tokens."""
  top_k: int | None
  """Number of the likeliest tokens that are kept; None: all."""
  top_p: float | None
  """Nucleus sampling: the smallest set of tokens with this probability is
  kept; None: all."""
  min_p: float | None
  """Tokens with at least this share of the probability of the likeliest token
  are kept; None: all."""
  lanes: int | None
  """Number of completions that are decoded at once; None: all. With fewer, a
  completion begins when another has ended, which saves time if lengths
  differ, and the cache is smaller. For example, 256 completions of geometric
  lengths, 38 tokens on average and 177 at most, take 3.7 s at once and 1.2 s
  in 32 lanes (2 layers, width 128, on a CPU)."""
  num_cache_sizes: int
  """Most sizes of the cache of keys and values, which grows with the
  completions; each size is half of the next, and is compiled anew. 1 compiles
  faster, but all decode steps read a cache of full length."""
  weights_dtype: str
  """Format to which kernels are rounded for training rollouts ("int8",
  "float8_e4m3fn"; "model": not rounded). Updates and evaluations read the
  kernels as they are; see docs/quantised_sampling.md."""
  uncorrected: bool
  """Whether completions of rounded kernels, or of earlier parameters
  (config.rl.staleness, recycle_surplus, replay_size), may be trained on
  without a correction (config.algorithm.importance_mode, rejection)."""
  mix_rate: float
  """Probability with which the policy reads a blend of similar tokens instead
  of a token that it has written; every pass of the update reads the same
  blends. 0 for none, as in all evaluations; see docs/mixing.md."""
  mix_top_k: int
  """Tokens of a blend, at least 2: an anchor and its neighbours."""
  mix_anchor: str
  """ "argmax", the likeliest token of the step, or "sampled", the token that
  was written."""
  mix_neighbours: str
  """ "nearest", tokens whose embeddings have the largest cosine with that of
  the anchor; or "random", for comparison."""
  mix_min_entropy: float
  """Entropy of a token's distribution, nats, above which tokens are mixed;
  with mix_rate=1 entropy alone decides. 0: anywhere."""
  mix_until: str
  """Text of a token. From it on, the tokens of a completion are not mixed;
  without it the whole completion may be. Empty: whole completions may be
  mixed."""

class Rewards(Group):
  functions: tuple[str | Callable[..., Any], ...]
  """For tasks, components of the task's verifier ("accuracy", …), computed
  inside the program. With an environment on the host, scores of its sessions,
  and "return". Otherwise functions of text: a built-in name
  (`rewards/registry.py`: "math_accuracy", "think_answer_format", …) or an
  import path ("my_pkg.rewards:brevity"). In each case also names of
  `rewards/derived.py` ("cosine_length", "rank", …), which are computed from
  the other components and the tokens; "reward_model": a model that was
  trained on pairs of completions (`config.reward_model`); and "judge": a
  model that reads a rubric and writes a verdict (`config.judge`)."""
  weights: tuple[float, ...]
  """One weight per function; with weight 0 a function is logged and not
  rewarded."""
  schedules: Free
  """Weights that change. For example, {"think_answer_format": ((0, 1.0),
  (100, 0.0))} goes from 1 to 0 in the first hundred steps of a phase. A
  weight is linear between two steps, and constant outside of them.
  Evaluations always use `weights`."""
  options: Free
  """Arguments of functions by name: {"cosine_length": {"max_len": 64}}."""
  domains: Free
  """Domains of prompts to which a reward applies, by name or number:
  {"math_accuracy": ("algebra", "geometry")}. It does not apply to other
  domains, also where another reward is made of it."""
  in_graph: bool
  """Whether text is scored inside the compiled program, by the functions of
  `rewards/in_graph`. They compare numbers, without algebra."""
  answer_after: str
  """Marker, such as "####", after which the rest of the line is the answer of
  a completion that has neither `<answer>` nor a box. Empty: such a completion
  has no answer."""
  steps: str
  """The function that scores steps of reasoning, for algorithms that read
  such scores: a name of `registry.STEPS` ("arithmetic_steps"), or an import
  path. Empty: the scores of the task, if it has any."""
  sandbox: str
  """Isolation of the programs of the reward "code": "bwrap", or "process",
  which isolates less and warns."""
  correct: str
  """The function whose value ≥ 1 marks a right answer (metrics only); empty:
  the first."""
  consistent: str
  """The function whose value ≥ 1/2 means that the answer follows from the
  reasoning before it. The metrics quadrants/… count this for right and for
  wrong answers. Empty: there are no such metrics."""
  row_timeout_s: float
  """Longest time for one try of a row on the host, seconds; with an
  environment on the host, for one action."""
  step_timeout_s: float
  """Longest time for all rows of a step, or of a batch of an evaluation,
  seconds."""
  num_workers: int
  """Number of processes of verifiers, or of sessions; each works on one row
  at a time."""
  max_unscored: float
  """Largest share of unscored rows, in [0, 1]. If it is exceeded in three
  successive steps, the run is saved and ends with an error; if it is exceeded
  in an evaluation, the run has failed, whatever its accuracy. A policy with a
  share u of unscored rows has an accuracy of at most 1 − u."""
  variables: tuple[str, ...]
  """Names of environment variables that these processes get in addition to
  those of `processes.VARIABLES`, such as an address or a key of a service."""
  worker_memory_gib: float
  """Most memory of a process of verifiers beyond its memory after the import
  of its functions, GiB. A process with more is replaced, and its current row
  is tried once more. 0: there is no limit."""

class Eval(Group):
  num_prompts: int
  """Number of held-out prompts, with one completion each."""
  batch_size: int
  """Prompts per evaluation batch."""
  temperature: float
  """Temperature of the completions; 0 is greedy."""
  every: int
  """Steps of the "rl" phase between evaluations; 0: only before and after the
  phase."""

class Checkpoint(Group):
  every: int
  """Steps between checkpoints; 0: only at the end of a phase."""
  keep: int
  """Number of the latest checkpoints that are kept."""

class Log(Group):
  trackers: tuple[str, ...]
  """Programs that show curves, of `TRACKERS`; "wandb" and "trackio" are
  extras."""
  project: str
  """Project of the run at W&B and Trackio."""
  name: str
  """Name of the run there; empty: the name of its folder."""
  group: str
  """Group of related runs; a sweep sets it to its own name."""
  tags: tuple[str, ...]
  """The tags of the run."""
  samples_every: int
  """Steps between sampled texts in samples.jsonl; 0: none."""
  num_samples: int
  """Rows of sampled texts each time."""
  traces_every: int
  """Steps between groups of completions, token by token, in traces.jsonl.gz;
  0: none. The first and the last step of a phase, and evaluations, are traced
  too."""
  trace_groups: int
  """Most groups each time, beside those of `trace_prompts`; and most prompts
  of each evaluation."""
  trace_prompts: tuple[str, ...]
  """Prompts that are traced whenever they come: numbers of their records, or
  texts that they contain."""
  traces_max_mib: int
  """Most MiB of that file. Each time gets an equal part of the rest; groups
  that do not fit are left out, and rows are cut."""
  curves: bool
  """Whether curves.png is drawn at the end, which takes one to two
  seconds."""

class Health(Group):
  halt: tuple[str, ...]
  """Rules, by name or number ("perfect_score", "H12"), that stop the run
  after saving. Too many rows without a score always stop it, and so does a
  step short of live groups in a phase with when_short="error"."""
  off: tuple[str, ...]
  """Rules that give no alarm."""

class Guards(Group):
  lint: str
  """Reaction, before training, to too few different prompts or to one prompt
  that is most of them: "warn", "refuse", or "off" for no check. If guards are
  `on`, "warn" is "refuse"."""
  on: bool
  """Whether the guards below are on. Each is switched off by 0."""
  min_distinct_prompts: int | None
  """Fewest different prompts of a step; with fewer the run halts. None: half
  of `num_prompts`, and at least 4."""
  influence_cap: float
  """Largest share of a prompt in Σ |advantage| · tokens over a window of
  steps; a larger share is scaled down."""
  influence_window: int
  """Steps of that window."""
  repeat_cap: int
  """Most times that a prompt is trained on in the steps of a second window;
  further completions are left out."""
  repeat_window: int
  """Steps of that window."""
  canary_every: int
  """Steps between checks of the canaries. Every checkpoint is checked too,
  and saved only if it passes, so that a run which halts is where its last
  checkpoint is."""
  canary_prompts: int
  """Held-out prompts of each canary."""
  canaries: tuple[str, ...]
  """Scores that must not fall: components of the reward, or "correct". A
  minus before the name means that less is better. @FILE after it names
  prompts (JSON lines) that replace held-out prompts. For example: ("correct",
  "-biased", "format@probes")."""
  canary_fall: float
  """Fall below the mean of earlier passes that is always allowed, even if
  `canary_sigmas` allows less."""
  canary_sigmas: float
  """Number of standard deviations of that difference by which a canary may
  fall."""
  canary_max_kl: float
  """KL to the reference, in nats per completion of a canary's prompt, above
  which the run halts; not checked in phases without a reference."""

class Hosts(Group):
  timeout_s: float
  """Seconds without a sign of life after which a process is given up."""
  stall_s: float
  """Seconds after which a live process that is behind the others, or a run
  without any progress, is given up; set it above the longest compilation,
  evaluation or save."""

class Mesh(Group):
  data: int | None
  """Number of copies of the parameters; None: as many as devices allow. With
  several TPU slices, a multiple of their number; the gradient of every
  micro-batch is summed across them, so there a large `micro_batch_size` saves
  time."""
  fsdp: int
  """Devices over which parameters, gradients and moments are split."""
  tensor: int
  """Devices over which heads, MLP width and vocabulary are split; it must
  divide them, and the key/value heads."""
  expert: int
  """Devices over which experts are split; it must divide their number."""

class Phase(Group):
  kind: str
  """Kind of the phase: its source of completions and its trained models; see
  `kinds.py`."""
  steps: int
  """Number of batches."""
  num_prompts: int
  """Prompts per batch."""
  domains: tuple[str, ...]
  """Names of the domains whose prompts are drawn, in the proportions of the
  data; empty: all."""
  max_prompt_len: int | None
  """Longest prompt of this phase, in tokens; longer prompts are left out and
  counted. None: as in config.data."""
  micro_batch_size: int | None
  """Rows per forward/backward pass, of all devices together. It is rounded up
  so that each device has equally many rows, and whole groups if the algorithm
  couples the rows of a group. None: a good size for the backend. Changes time
  and memory, never the gradient."""
  num_lengths: int
  """Number of completion lengths for which the update is compiled, from T
  down to T / 8 by equal factors, none below 16 slots. Rows of similar length
  are batched together, so that short completions cost less. Each length is
  compiled separately; 1 for T only. In a single micro-batch the longest row
  decides."""
  logits_chunk_mib: int | None
  """Size of the float32 logits of a chunk on a device, MiB; None: a good size
  for the backend. Changes time and memory only."""
  reset_policy: bool
  """Whether the phase starts with the first policy of the run, as in a second
  warm start from the base."""

class Reference(Phase):
  set_reference: bool
  """Whether the phase starts with the current policy as the reference
  policy."""
  reference_workdirs: tuple[str, ...]
  """Reference policies from outside, as teachers: the workdir of a run, whose
  last checkpoint is read, or the folder or hub name of a Hugging Face
  checkpoint, of any size and family with the same tokenizer. If there are
  several, each prompt has the teacher of its domain, in the order of the
  domains; or all are mixed."""
  reference_mixture: tuple[float, ...]
  """Weights of several teachers, ≥ 0, which are mixed for all prompts: the
  logits of the mixture are the weighted mean of theirs. Empty: each prompt
  has the teacher of its domain."""
  reference_storage: str
  """Format of the models of reference_workdirs: "own", each in its own dtype
  (a checkpoint in config.model.param_dtype); "bfloat16"; or "int8", the
  kernels of their layers in 8 bits, and the rest in bfloat16."""

class Update(Phase):
  num_epochs: int
  """Passes over each batch."""
  num_minibatches: int
  """Gradient steps per pass, on whole groups in random order; on single rows
  if the number of groups is not a multiple of it."""
  reset_optimizer: bool
  """Whether the phase starts with a fresh optimizer state."""

class PolicyUpdate(Update):
  ema_decay: float | None
  """Decay, per step, of the average of the parameters, which evaluations,
  exports and other runs read. It ends with the phase: the next one goes on
  from the parameters themselves. None keeps no average."""
  optimizer: Optimizer
  """The optimizer of this phase."""

class Comparison(Update):
  pass

class Pairs(Comparison, PolicyUpdate, Reference):
  pass

class Schedule(Group):
  name: str
  """ "epochs": every prompt once before any comes again, in random order.
  Other schedules draw from a pool by the share of right completions of each
  prompt so far: "uniform" (all equally likely), "frontier" (most often
  prompts that are solved half of the time), "easy_to_hard", "hard_to_easy",
  "interleave" (half of the weight by each of these two), "target" (the
  num_prompts that are nearest to being solved half of the time), or "spo" (by
  the deviation of right and wrong; it forgets as the policy moves:
  arXiv:2509.13232). "ads" draws clusters of similar prompts, and from each
  cluster a window that moves to harder or easier prompts
  (arXiv:2606.22305)."""
  pool: int | None
  """Number of the first records of the data from which prompts are drawn;
  None: all. A task makes endless problems, and needs a number."""
  uniform_share: float
  """Share of the probability that is spread evenly over all prompts of the
  pool, so that none is forgotten."""
  decay: float
  """Factor of the counts of a prompt's earlier completions each time that it
  is drawn; 1: they count as much as new ones."""
  start_share: float
  """Share of the pool from which the first step draws ("easy_to_hard",
  "hard_to_easy", "interleave")."""
  pace_steps: int
  """Steps after which these schedules draw from the whole pool."""
  clusters: str
  """File of clusters of the data, written by experiments.embed ("ads").
  "{seed}" in it is replaced by the seed of the run."""
  drawn_clusters: int
  """Clusters of a step, C ("ads"). drawn_clusters × window is num_prompts."""
  window: int
  """Prompts of a cluster that a step draws, B ("ads")."""
  rate: float
  """Rate at which the probability of a cluster follows the share of right
  completions, α ("ads")."""
  tolerance: float
  """Largest difference of a prompt's share of right completions from ½ at
  which the window stays ("ads")."""
  samples: str
  """File of completions of the training prompts, with verdicts, written by
  grpo-generate, from which counts begin ("spo"); empty: counts begin with one
  half right and one half wrong. "{seed}" in it is replaced by the seed."""
  memory_low: float
  """Smallest factor of the counts of a prompt's earlier completions when it
  is drawn, however far the policy has moved, ρ_low ("spo"); it must be below
  0.96, the largest factor."""

class Sampled(Phase):
  group_size: int
  """Completions per prompt."""
  temperature: float | None
  """Temperature of sampled completions; None: that of config.sampling."""
  schedule: Schedule
  """The choice of prompts."""
  opponents: tuple[str, ...]
  """Players of the other seats of an environment with several seats: "start",
  the policy at the start of the phase; "self", the current policy; or another
  run's workdir, or a checkpoint with the same tokenizer. With K opponents,
  prompt n has opponent n mod K. They are not trained, and the policy reads
  their tokens. Empty: "self"."""

class Keep(Group):
  most: int
  """Most completions of a prompt."""
  order: str
  """Order of the choice: "shortest" first, or "random"."""
  distinct: str
  """ "answer" or "text": one completion of each answer or text is kept;
  "none": all. If a prompt has one right answer, "answer" keeps one
  completion."""
  least: tuple[str, ...]
  """Smallest values of components of the reward that a completion needs, such
  as ("language=0.9",)."""

class Rejection(Sampled):
  keep: Keep
  """The choice of completions that are kept."""

class Rewarded(Sampled, Update):
  reward_weights: tuple[float, ...]
  """Weights of config.rewards.functions that replace config.rewards.weights
  and schedules; empty: these. Evaluations always use config.rewards."""
  max_rounds: int
  """Most rounds of dynamic sampling. A step samples for up to so many batches
  of prompts, until num_prompts groups have different rewards. Those are
  trained, and further groups of the last round are dropped unless
  recycle_surplus keeps them; if there are fewer, see when_short. 1: one
  batch. A step takes max_rounds × num_prompts prompts from the data, sampled
  or not, so that the position in the data is a function of the step, and a
  run resumes exactly."""
  when_short: str
  """Rule for a step with fewer such groups than num_prompts. "fewer": it
  trains on them. "error": it trains nothing, and the run is saved and ends
  (verl). "duplicate": if they are more than half of num_prompts, they are
  repeated in their order until the batch is full; else the step trains
  nothing (GLM-5, arXiv:2602.15763)."""
  staleness: int
  """Most updates by which the parameters of a rollout are behind those that
  it trains. 0 is exact: the device waits for the host's verifiers. With k,
  the rollouts of the next k batches are sampled before one batch is trained,
  so that the device samples while the host verifies; with an environment on
  the host, the update runs while sessions wait. If verifiers are in the
  program it saves nothing, and is for studies only. Needs an algorithm that
  corrects for the updates in between (config.algorithm.importance_mode,
  …)."""
  partial_len: int | None
  """Most tokens of each completion that a step decodes; the next step
  continues with its own parameters. A group is trained when all of its
  completions have ended, and waits for at most `staleness` updates: in the
  last of these steps it is decoded to its end. The next prompts take its
  place. With an environment episodes are cut, and tokens of observations
  count; on the host a new session then answers the same actions again. None:
  completions are sampled whole."""

class Value(Rewarded, Reference):
  pass

class Correction(Group):
  p_cue: float
  """Probability that the cue is appended to a wrong completion; then the
  policy continues it."""
  p_answer: float
  """Probability that the sentence with the right answer is appended."""
  p_reference: float
  """Probability that a whole right completion replaces the wrong one."""
  cue: str
  """Text of the cue."""
  sentence: str
  """Text of the sentence, in which "{answer}" is replaced by the answer. An
  end token follows."""
  max_new_tokens: int
  """Most tokens that the policy writes after a cue. If draft, cue and these
  tokens exceed the budget of completions, a completion stays as it is, and is
  counted."""
  max_prompt_len: int
  """Longest prompt, in tokens, whose completions are corrected."""
  train_injected: bool
  """Whether injected tokens are trained, as in the paper."""

class Rl(Rewarded, PolicyUpdate, Reference):
  recycle_surplus: bool
  """Whether the rounds of a step begin with the surplus groups of the step
  before. They were sampled one update earlier, so the algorithm must correct
  for that (config.algorithm.importance_mode, …)."""
  replay_size: int
  """Number of groups that are kept for replay, which replace groups whose
  rewards are all equal. Of all groups of the phase, those with the highest
  priority are kept: the sum of absolute advantages times the deviation of the
  rewards. Kept groups are drawn in proportion to it. They may have any age,
  so the algorithm must correct for that. 0: none."""
  correction: Correction
  """The correction of wrong completions."""
  transforms: tuple[str, ...]
  """Functions that change a scored batch before its advantages, by their
  import paths; see `step/transforms.py`."""
  transform_options: Free
  """Arguments of these functions by name, the part of a path after ":". For
  example, {"short": {"limit": 200.0}}."""

class Supervised(PolicyUpdate):
  demonstrations: tuple[str, ...]
  """Sources of completions: names of earlier phases of the kind "rejection",
  or files that these or grpo-generate have written; "own" is the run's own
  data. Empty: the run's own data alone."""
  num_records: int | None
  """Number of the first records of the run's own data that are imitated;
  None: all."""

class AnyPhase(Supervised, Rl, Value, Rewarded, Rejection, Pairs, Comparison):
  pass

class Algorithm(Group):
  name: str
  """Name of the algorithm."""
  kl_coef: float
  """Weight of the KL to the frozen reference, per nat."""
  kl_kind: str
  """Estimator: "k1", "k2", "k3", "abs", "k1_plus" and "k3_plus" (value of
  one, gradient of k2), "k3_unbiased" (weighted by the ratio) or "full" (over
  the whole vocabulary)."""
  jsd_beta: float
  """Divergence of "full" and of the algorithm opd_full: 1 is KL(policy ‖
  reference), 0 is KL(reference ‖ policy), between them the generalised
  Jensen-Shannon divergence (GKD, arXiv:2306.13649)."""
  kl_in_reward: bool
  """Subtract kl_coef · k1 from the reward of each token instead of adding the
  KL to the loss; refused unless `reads_rewards`."""
  kl_domain_weights: tuple[float, ...]
  """Factor of kl_coef for each prompt domain; empty: 1."""
  kl_target: float
  """Adapt kl_coef to hold this KL, nats per token; 0 keeps it."""
  kl_horizon: float
  """Completions over which kl_coef adapts to kl_target."""
  opd_coef: float
  """λ of the advantage A − λ (log π − log π_teacher) of each sampled token,
  per nat; the teacher is the reference of the phase."""
  opd_anchor: str
  """Policy whose log π opd_coef compares with the teacher's: the policy at
  the "start" of the update, or the "current" policy in each gradient step
  (cross-stage distillation, GLM-5, arXiv:2602.15763)."""
  opd_clamp: float
  """Largest |log π − log π_teacher| at a token, nats."""
  opd_early: float
  """γ of the factor 1 + γ (1 − share of the row's differences before the
  token), with which early tokens count more (TRL); 0: factor 1."""
  opd_domain_weights: tuple[float, ...]
  """Factor of the teacher's signal for each prompt domain, also in 'opd_full'
  and 'opd_topk'; empty: 1."""
  entropy_coef: float
  """Weight of the entropy bonus, per nat, token mean."""
  entropy_target: float
  """Adapt entropy_coef towards this entropy, nats per token, and apply it
  only below; 0 keeps it."""
  entropy_coef_step: float
  """Change of entropy_coef per step to reach entropy_target."""
  top_entropy_fraction: float
  """Share of the tokens, those with the highest entropy of the batch, whose
  policy loss counts; 1 is all."""
  advantage_scale: str
  """Divide advantages by the deviation of the rewards of the "group" or of
  the "batch", or "none"; refused where `scale_free`."""
  advantage_eps: float
  """Number added to the deviation that divides advantages."""
  singleton: str
  """Advantage of the only scored completion of a group: "zero", because there
  is no comparison, or "raw", its reward (verl)."""
  count_empty: bool
  """True if completions without a trained token count in a mean over
  completions, as in TRL; not with dynamic_sampling or rejection."""
  token_mean_scope: str
  """Scope of a policy loss that is a mean over tokens: over all tokens of the
  "batch"; or the mean over groups of the mean over the tokens of a "group"
  (DAPO, arXiv:2503.14476, Eq. 8). The count is that of trained tokens in the
  whole batch, whatever its minibatches."""
  overlong_cache: float
  """Share of the budget, at its end, over which the reward falls by up to 1
  (DAPO's soft punishment); 0 switches it off. Refused unless
  `reads_rewards`."""
  overlong_filter: bool
  """Leave completions that hit the budget out of the loss (DAPO, Section
  3.4). They stay in the statistics of advantages, but pairs of preferences
  are chosen among the others."""
  dynamic_sampling: bool
  """Leave groups whose rewards are all equal out of the loss and of its
  denominators (DAPO, Section 3.2). With config.rl.max_rounds above 1 others
  are drawn in their place."""
  min_reward_std: float
  """With dynamic sampling, the deviation, with n − 1 in the denominator, that
  unequal rewards of a group must exceed for it to be trained; 0: any
  difference is enough. slime has 1e-6, below which rewards differ by
  round-off."""
  max_live_groups: int
  """With dynamic sampling, the most live groups of an over-sampled batch to
  train on, the first ones; 0 keeps all of them."""
  importance_mode: str
  """Correct the gap between the sampler's and the trainer's log-probs by
  weights that are "truncate"d at importance_max, or "mask"ed to 0 outside
  [importance_min, importance_max]; or "none"."""
  importance_level: str
  """Unit of the weights: a "token", or the whole "sequence"."""
  importance_max: float
  """Bounds of the weights."""
  importance_min: float
  """Bounds of the weights."""
  importance_normalize: bool
  """Divide the weights by their mean over the batch."""
  rejection: str
  """Leave tokens or sequences on which sampler and trainer disagree out of
  the loss and its denominators: "none", or the statistic and the estimator:
  "token_k1", "seq_sum_k1", "seq_mean_k1", "seq_max_k2", … with k1 to k3."""
  rejection_low: float
  """Bounds: for k1, of the ratio of sampler to trainer (of its product or
  geometric mean over a sequence), a lower one of 0 for none; otherwise only
  the upper bound, of the estimate."""
  rejection_high: float
  """Bounds: for k1, of the ratio of sampler to trainer (of its product or
  geometric mean over a sequence), a lower one of 0 for none; otherwise only
  the upper bound, of the estimate."""
  off_policy_threshold: float
  """Fall of the mean log-prob since sampling, in nats, above which the policy
  loss of a completion with a negative advantage is left out; 0 switches it
  off. Kept completions are not weighed."""
  keep_sampling_mask: bool
  """Take all log-probs over the tokens that the sampler's filters kept, so
  that sampling and training have the same support."""
  keep_routing: bool
  """Send each token through the experts of its sampling (DeepSeek-V3.2,
  arXiv:2512.02556), except in the reference. With sparse attention a token
  also sees the tokens that it saw then. A rollout then holds 4 · index_topk
  bytes for each token and layer: with all layers of DeepSeek-V3.2 0.5 MB a
  token."""
  balance_coef: float
  """Weight of the load-balance loss of a model with experts, which is 1 for
  an even load (`ops/routing.py`)."""
  router_bias_step: float
  """Change of the routers' biases per step, up for an expert with less than
  the mean load and down for one with more (DeepSeek-V3, arXiv:2412.19437,
  Section 2.1.2); 0 keeps them."""
  indexer_coef: float
  """Weight of the loss that trains the indexers of sparse attention, per nat,
  token mean over layers (`models/indexer.py`); 0 keeps them as they are."""
  positive_nll_coef: float
  """Weight of the likelihood of right answers, per nat, token mean."""
  clip_low: float
  """The ratio is clipped to [1 − low, 1 + high]."""
  clip_high: float
  """The ratio is clipped to [1 − low, 1 + high]."""
  dual_clip: float
  """With a negative advantage the loss is at most this times |A| (Ye et al.,
  arXiv:1912.09729); > 1, or 0 for none."""
  ratio_cap: float
  """Upper bound of the ratio before anything else (INTELLECT-2,
  arXiv:2505.07291); > 1 + clip_high, or 0 for none."""
  log_ratio_clamp: float
  """Largest |log ratio|, nats, so that exp cannot overflow."""
  ratio_min: float
  """Bounds to which the ratio of a token is clipped before it becomes the
  weight: ρ of the equation. 0 for no lower bound."""
  ratio_max: float
  """Bounds to which the ratio of a token is clipped before it becomes the
  weight: ρ of the equation. 0 for no lower bound."""
  tau_positive: float
  """τ of the equation, the sharpness of the gate around ratio 1, for tokens
  with a positive advantage and for the others."""
  tau_negative: float
  """τ of the equation, the sharpness of the gate around ratio 1, for tokens
  with a positive advantage and for the others."""
  k_positive: float
  """k and λ of φ for advantages ≥ 0."""
  lambda_positive: float
  """k and λ of φ for advantages ≥ 0."""
  k_negative: float
  """k and λ of φ for negative advantages."""
  lambda_negative: float
  """k and λ of φ for negative advantages."""
  length_corrected: bool
  """True if advantages are those of R_i / |y_i|, where |y_i| counts the
  tokens of the policy."""
  rho: float
  """ρ of the equation: change of h for a length one deviation from the
  mean."""
  learn_lambda: bool
  """True if λ is trained; otherwise it stays 0."""
  cov_low: float
  """Bounds of the covariance of tokens that may be dropped."""
  cov_high: float
  """Bounds of the covariance of tokens that may be dropped."""
  cov_fraction: float
  """Share of the trained tokens that are dropped."""
  cov_kl_coef: float
  """κ of the equation, per nat of |log r|."""
  mode: str
  """Credit of a token: "mix", "rudder" or "return"."""
  mix_weight: float
  """w of GRPO's advantage in "mix", in [0, 1]."""
  opener: str
  """Text of the tokenizer that is appended to ask for an answer. In a
  completion, segments do not end behind its first token."""
  closer: str
  """Text that ends an answer; its tokens are part of the probability."""
  delimiters: tuple[str, ...]
  """Texts that end a segment if a token's text ends with one of them; a
  delimiter of letters must be the whole token, except for spaces."""
  entropy_quantile: float
  """Quantile of a completion's entropies above which a token begins a
  segment; 1 for delimiters alone."""
  min_gap: int
  """Fewest tokens of a segment that ends before such a token."""
  max_segments: int
  """K, the most segments of a completion; the last one has all remaining
  tokens."""
  factor_min: float
  """Bounds to which the factor of an advantage is clipped."""
  factor_max: float
  """Bounds to which the factor of an advantage is clipped."""
  alpha1: float
  """α_1 of the equation: reward of a token from the outcome alone."""
  alpha2: float
  """α_2: mean reward of a token from the entropy."""
  normalization: str
  """Tokens over which r̃ is standardised: "joint" (the group), "split" (right
  and wrong tokens separately) or "none"."""
  batch_eps: float
  """Added to the deviation of the sums over the batch."""
  num_kept: int
  """Completions of a group that are trained, at least 2; with "adaptive",
  those of a hard group."""
  metric: str
  """Metric of the choice: "length", "efficiency", "adaptive" or
  "max_variance"."""
  efficiency_shift: bool
  """True if "efficiency" measures rewards from the least reward of the group.
  Otherwise, if rewards are negative, long completions have the most reward
  per token."""
  adaptive_warmup: int
  """Groups that "adaptive" sees before it keeps fewer than `num_kept`."""
  denom: str
  """Completions whose tokens the mean of the loss counts, and to which KL and
  entropy apply: "all", or "kept"."""
  kl_old_coef: float
  """Weight of the KL to the policy at the start of the update, per nat."""
  beta: float
  """β of the equation: weight of d, per nat."""
  kind: str
  """ "sigmoid" (DPO), "hinge", "ipo" or "robust"."""
  label_smoothing: float
  """Share of pairs that the rewards order wrongly, below 0.5."""
  f_divergence: str
  """ "reverse_kl" (DPO), "forward_kl" or "js_divergence"."""
  length_normalized: bool
  """True if log-ratios are means over tokens, as they always are for "ipo". β
  is then per nat and token: Tülu 3 has 5."""
  dpo_coef: float
  """α, the weight of DPO's loss. Its other settings are those of DPO."""
  baseline_decay: float
  """Decay of the average of the mean reward, per step, in [0, 1); 0: no
  baseline."""
  gamma: float
  """Discount per trained token, in [0, 1]."""
  normalize_over: str
  """Units of equal weight in the mean and the deviation of the advantages:
  "tokens", or "sequences"."""
  normalizer: float
  """F of the equation, which divides advantages; > 0."""
  zero_tail: bool
  """True if the baseline is 0 where one row of a group continues alone."""
  lam: float
  """λ of the policy's advantages, in [0, 1]."""
  lam_critic: float
  """λ of the critic's targets, in [0, 1]; 1 is the return itself, whatever
  the critic says (decoupled GAE, VC-PPO, arXiv:2503.01491)."""
  length_adaptive_alpha: float
  """α of λ_i = 1 − 1 / (α |y_i|) in the place of `lam` (VAPO,
  arXiv:2504.05118), within [0, 1]; 0 keeps `lam`."""
  length_adaptive_unit: str
  """Unit whose tokens |y_i| counts if a rollout was compacted into several
  contexts: the whole "trace", which is the rollout, so that all of its
  contexts have one λ; or each "context"."""
  boundary: str
  """Meaning of the end of a context in such a rollout: "outcome", "chain",
  "bootstrap", "compaction_rl" or "compaction_rl_bootstrap"
  (`returns.subtrace_advantages`)."""
  reward: str
  """Reward of a context at its last trained token in such a rollout:
  "terminal", the rollout's R where `boundary` pays it; or "split", R / K
  each, K the contexts of the rollout (slime)."""
  bootstrap_cut: bool
  """True to use the critic's value after the last token of a completion that
  the budget cut off, γ V, in advantages and targets alike; False: 0, as after
  an end. An episode that its environment ends, also by a limit of turns, has
  ended."""
  whiten: bool
  """Standardise advantages over all tokens of the batch that the policy wrote
  in scored rows."""
  value_clip: float
  """Distance from the old value beyond which a move of the value does not
  lower the critic's error; 0 for no clip."""
  weight: str
  """Unit of equal weight in the loss: a "token", a whole "context", or a
  "trace", which is a rollout with all its contexts."""
  omega: float
  """ω of the equation: weight of the advantage among actions of a state."""
  normalize: bool
  """True if F is the deviation; False: F is 1."""
  topk: int
  """K of the equation: tokens of the teacher that are kept apart; all if the
  vocabulary is smaller."""
  margin: float
  """Least difference of the chosen and the rejected score that the loss asks
  for."""
  center_coef: float
  """c of the equation: weight of the part that keeps scores centred."""

class Config(Group):
  seed: int
  """Seed of parameter initialisation, data order and sampling."""
  start_workdir: str
  """Workdir of a run whose last checkpoint has the first policy of this run
  (its average, if it keeps one), with the same architecture and vocabulary;
  empty: the policy of `model`, whose weights are not read otherwise. "{seed}"
  in it, and in the paths of phases, is the seed of the run (`config.py`)."""
  phases: tuple[str, ...]
  """Names of the phases in order."""
  critic: Critic
  """The critic of an algorithm that has one."""
  reward_model: RewardModel
  """A model that scores completions, or learns to score them."""
  judge: Judge
  """A model that reads completions and gives verdicts."""
  data: Data
  """As named."""
  environment: Environment
  """Turns of the environment, if data.environment is set."""
  interceptor: Interceptor
  """The interceptor of calls to such an environment."""
  served: Served
  """Process of an environment of the package verifiers."""
  model: Model
  """As named."""
  sampling: Sampling
  """As named."""
  rewards: Rewards
  """As named."""
  eval: Eval
  """As named."""
  checkpoint: Checkpoint
  """As named."""
  log: Log
  """As named."""
  health: Health
  """As named."""
  guards: Guards
  """Guards against data and rewards that would spoil the policy."""
  hosts: Hosts
  """As named."""
  mesh: Mesh
  """Split of the work over the devices."""
  profile_steps: tuple[int, ...]
  """(first, last) step of a trace for xprof, or (); a run that continues
  between them traces what is left."""
  required_accuracy: float | None
  """Held-out accuracy below which the command fails; None, or a run without a
  phase that is evaluated ("rl", "pairs"): no verdict."""
  unpublished: tuple[str, ...]
  """Settings, such as "algorithm.clip_low", that a published recipe does not
  state; their values are our choice."""
  allow_unpublished: bool
  """Whether a run may start with such settings."""
  algorithm: Algorithm
  """Objective of what is drawn."""
  sft: Supervised
  """A phase."""
  value: Value
  """A phase."""
  rl: Rl
  """A phase."""
