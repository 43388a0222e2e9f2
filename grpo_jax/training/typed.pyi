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
  """ "adamw"; "adafactor" (factored second moments, no first ones: the least
  memory); or "muon" (orthogonalised momentum for the matrices of the layers,
  AdamW for the rest). A learning rate makes steps of about the same size with
  each."""
  learning_rate: float
  """Peak."""
  schedule: str
  """ "constant", "linear" or "cosine" decay after the warm-up, over all
  gradient steps of the phase."""
  warmup_steps: int
  """Gradient steps of linear warm-up."""
  final_fraction: float
  """Learning rate at the end, as a fraction of the peak."""
  b1: float
  """AdamW's."""
  b2: float
  """AdamW's."""
  eps: float
  """AdamW's."""
  weight_decay: float
  """Decoupled; only on matrices, not on embeddings, norms and biases."""
  clip_norm: float
  """Largest global gradient norm."""
  stochastic_rounding: bool
  """Round the sum of a bfloat16 parameter and its update up or down at
  random, so that small updates are not lost. Needs
  config.model.param_dtype="bfloat16"."""

class Critic(Group):
  trunk: str
  """ "own": a copy of the policy, made where the first of these phases
  begins; or "shared": the policy's hidden states as constants."""
  freeze: tuple[str, ...]
  """Names in the paths of parameters of an own trunk that are not trained,
  such as "attention" or "embed"."""
  num_updates: int
  """Gradient steps for each one of the policy; 0 keeps the critic as it
  is."""
  optimizer: Optimizer
  """Its own; the schedule begins anew in each phase."""

class RewardModel(Group):
  workdir: str
  """The run that has trained it, in a phase of the kind "preference"; empty:
  a phase of this run."""
  freeze: tuple[str, ...]
  """Names in the paths of parameters of its trunk, a copy of the policy, that
  are not trained."""
  num_updates: int
  """Gradient steps on each minibatch of pairs."""
  optimizer: Optimizer
  """Its own; the schedule begins anew in each phase."""

class Data(Group):
  source: str
  """ "task" (synthetic, `tasks/`), "tfds", "jsonl", "text" (prompts alone) or
  "reasoning_gym"."""
  name: Any
  """Task name, or the import path of a task ("my_pkg.tasks:make"), or TFDS
  dataset name ("gsm8k")."""
  task_options: Free
  """Options of the task (`tasks/<name>.py`)."""
  train_path: str
  """File of training prompts, JSON lines or text; local or gs://."""
  eval_path: str
  """The same of held-out prompts; empty: the training file."""
  format: str
  """How the rows of a JSON-lines file or a TFDS dataset read; empty: the
  fields prompt, answer, completion and extras, or, of a TFDS dataset with
  such a name, its own. "gsm8k": question and worked answer. "math": problem
  and solution with a box. "pairs": prompt, chosen and rejected."""
  train_split: str
  """Splits of a TFDS dataset, as "train[:1000]"."""
  eval_split: str
  """Splits of a TFDS dataset, as "train[:1000]"."""
  fields: Free
  """Without a format, which fields of the rows are a record's: names
  `prompt`, `answer`, `completion` and `domain` of theirs, and `extras`, a
  group of such names."""
  streaming: bool
  """Leave a JSON-lines file on the disk and read a line when it is its turn,
  which takes no memory; a file `.index` is made beside it."""
  separator: str
  """What stands between the prompts of a text: "\\n", or "\\n\\n" for
  paragraphs."""
  datasets: tuple[Mapping[str, Any], ...]
  """Of reasoning-gym: each a group with a `name`, and, if they are to be
  others than the defaults, `weight`, `settings`, and `level` or `levels` of
  difficulty (`data/gym.py`)."""
  tokenizer: str
  """Path of a `tokenizer.json` or of a checkpoint's folder, or "gsm8k" or
  "bytes" (every byte is a token) for those that come with the package; empty
  with a `model.checkpoint`: that one's. Unused by tasks, which are made of
  ids."""
  template: str
  """How a prompt is put to the model: a text with "{prompt}", or "chat" for
  the tokenizer's own chat template."""
  chat_options: Free
  """What the chat template reads beside the messages."""
  end_tokens: tuple[str, ...]
  """Tokens that end a completion; empty: those of the tokenizer."""
  max_prompt_len: int | None
  """Prompt slots S; longer prompts are left out and counted. None: what the
  task needs."""
  drop_tag_probability: float
  """How often the supervised teacher of worked answers ("gsm8k") drops one of
  its format tags, in [0, 1]."""
  rejected_share: float
  """Of a file of pairs, the share of rows in [0, 1] of which a supervised
  phase imitates the rejected text, and not the chosen one."""
  quarantine: str
  """JSON file with records to leave out of training, as `experiments.lint`
  writes it; empty: none."""
  environment: Any
  """Import path "package.module:function" of what makes the sessions of an
  environment on the host (`types.HostEnvironment`): episodes of several
  turns, whose scores are the components of the reward. With a task, it takes
  the place of the task's verifier or environment. Empty: none."""

class Environment(Group):
  max_turns: int | None
  """Most actions of an episode."""
  max_action_len: int | None
  """Tokens after which an action ends."""
  max_observation_len: int | None
  """Tokens to which an observation is cut."""
  action_ends: tuple[str, ...]
  """Texts of tokens that end an action, beside the end tokens."""

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
  """Width inside the SwiGLU; unused with experts."""
  head_dim: int | None
  """Width of a head, even; None for `width / num_heads`."""
  rope_theta: float
  """Base of the rotary wavelengths."""
  norm_eps: float
  """Added to mean squares before the root."""
  qk_norm: str
  """RMSNorm on queries and keys: "head" over each head (Qwen3), "projection"
  over all heads of a token (OLMo-2), or "none"."""
  qkv_bias: bool
  """Biases on queries, keys and values (Qwen2)."""
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
  scale_embeddings: bool
  """Multiply embeddings by √width (Gemma)."""
  activation: str
  """Of the gate: "silu", or "gelu" in its tanh form (Gemma)."""
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
  """Base for sliding layers, without scaling (Gemma 3); None for `rope_theta`
  in all."""
  rope_scaling: str
  """ "none", "linear" (positions over the factor) or "llama3" (long
  wavelengths only)."""
  rope_factor: float
  """Of the scaling."""
  rope_low_freq: float
  """Llama 3's bounds, in wavelengths per original context, and that context,
  tokens."""
  rope_high_freq: float
  """Llama 3's bounds, in wavelengths per original context, and that context,
  tokens."""
  rope_original_len: int
  """Llama 3's bounds, in wavelengths per original context, and that context,
  tokens."""
  num_experts: int
  """Experts in the place of each layer's MLP; 0 for none."""
  experts_per_token: int
  """How many of them a token takes."""
  expert_width: int
  """Width inside an expert's SwiGLU."""
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
  """What the backward pass recomputes of a block instead of keeping it:
  "none", "dots" (all but the products with weights) or "full"."""
  cache_dtype: str
  """How keys and values are held while sampling: "model" (in `dtype`),
  "bfloat16", or "int8" with a scale for each token and head. The update never
  reads them, so its ratios stay what they are; the sampler's log-probs are
  those of the model that reads rounded ones."""
  dtype: str
  """Of activations and matmul operands. Norm statistics, softmax and logits
  are at least float32."""
  param_dtype: str
  """Of the parameters."""
  checkpoint: str
  """Folder or hub name of a Hugging Face checkpoint to start from. Its
  config.json then decides the architecture: of the other fields only `dtype`,
  `param_dtype`, `attention`, `decode_attention`, `experts`, `remat` and
  `cache_dtype` may be set. Empty: from scratch."""
  revision: str
  """Commit, tag or branch of a checkpoint on the hub; with a commit a run
  starts from the same files on every day. Empty: the newest."""
  adapter_checkpoint: str
  """Folder with adapters to start from, as PEFT and `experiments.export
  --adapters` write it, for this `checkpoint`. Rank, α and modules are the
  file's, and need not be set. Empty: fresh adapters."""
  lora_rank: int
  """Of low-rank adapters, which alone are trained; 0 for none."""
  lora_alpha: float
  """Their term is multiplied by lora_alpha / lora_rank."""
  lora_modules: tuple[str, ...]
  """Projections with an adapter, of "query", "key", "value", "out", "gate",
  "up", "down"; empty: all that the layers have."""
  quantization: str
  """Of the kernels beneath the adapters: "none", "int8" or "nf4"."""

class Sampling(Group):
  max_new_tokens: int | None
  """Budget T per completion; None: what the task needs."""
  temperature: float
  """Of training rollouts, > 0."""
  top_k: int | None
  """Filters; None switches one off."""
  top_p: float | None
  """Filters; None switches one off."""
  min_p: float | None
  """Filters; None switches one off."""
  lanes: int | None
  """Completions that are decoded at once; None: all. With fewer, the next one
  begins where another has ended, which pays where their lengths differ, and
  the cache has room for as many only."""

class Rewards(Group):
  functions: tuple[str | Callable[..., Any], ...]
  """For tasks, components of the task's verifier ("accuracy", …), computed
  inside the program. With an environment on the host, scores of its sessions,
  and "return". Otherwise functions of text: a built-in name
  (`rewards/functions.py`: "math_accuracy", "think_answer_format", …) or an
  import path ("my_pkg.rewards:brevity"). In any of these cases also names of
  `rewards/derived.py` ("cosine_length", "rank", …), which are made of the
  others and of the tokens; and "reward_model": a model that was trained on
  pairs of completions (`config.reward_model`)."""
  weights: tuple[float, ...]
  """One weight per function; with 0 it is watched and not rewarded."""
  schedules: Free
  """Weights that change: {"think_answer_format": ((0, 1.0), (100, 0.0))} goes
  from 1 to 0 in the first hundred steps of a phase. Between two steps it is
  linear, and outside of them constant. Evaluations keep to `weights`."""
  options: Free
  """Arguments of functions by name: {"cosine_length": {"max_len": 64}}."""
  domains: Free
  """Which kinds of prompts a reward is for, as numbers of `extras["domain"]`:
  {"math_accuracy": (0, 2)}. To the others it does not apply."""
  in_graph: bool
  """Score text inside the compiled program, by the functions of
  `rewards/arrays`. They know numbers, and no algebra."""
  answer_after: str
  """Where a completion has neither `<answer>` nor a box, its answer is what
  follows this marker, to the end of the line: "####". Empty: it has no
  answer."""
  steps: str
  """What scores steps of reasoning, for algorithms that read them: a name of
  `functions.STEPS` ("arithmetic_steps"), or an import path. Empty: what a
  task has."""
  sandbox: str
  """How the programs of the reward "code" are kept apart: "bwrap", or
  "process", which holds less and says so."""
  correct: str
  """The function whose value ≥ 1 marks a right answer (metrics only); empty:
  the first."""
  row_timeout_s: float
  """Longest time for one try of a row on the host, seconds; with an
  environment there for one action."""
  step_timeout_s: float
  """Longest time for all rows of a step, seconds; of an evaluation, for those
  of a batch."""
  num_workers: int
  """Processes of verifiers, or of sessions: so many rows are worked on at a
  time."""
  max_unscored: float
  """Share of rows, in [0, 1], that may stay unscored. With more of them in
  three steps one after another the run is saved and ends with an error; with
  more in an evaluation the run has failed, whatever its accuracy. A policy
  with a share of u that nobody scored has an accuracy of at most 1 − u."""
  variables: tuple[str, ...]
  """Names of environment variables that they get besides those of
  `processes.VARIABLES`, such as an address or a key of a service."""

class Eval(Group):
  num_prompts: int
  """Held-out prompts, one completion each."""
  batch_size: int
  """Prompts per evaluation batch."""
  temperature: float
  """Of the completions; 0 is greedy."""
  every: int
  """Steps of the "rl" phase between evaluations; 0: only before and after the
  phase."""

class Checkpoint(Group):
  every: int
  """Steps between checkpoints; 0: only at the end of a phase."""
  keep: int
  """Latest checkpoints kept."""

class Log(Group):
  tensorboard: bool
  """Write TensorBoard events."""
  wandb_project: str
  """W&B project (extra `wandb`); empty: no W&B."""
  wandb_name: str
  """Of the run there; empty: the name of its folder."""
  wandb_group: str
  """Of runs that belong together; a sweep sets it to its own name."""
  wandb_tags: tuple[str, ...]
  """Of the run."""
  samples_every: int
  """Steps between sampled texts in samples.jsonl; 0: none."""
  num_samples: int
  """Rows each time."""
  traces_every: int
  """Steps between groups of completions in traces.jsonl.gz, token by token,
  of which each evaluation has some too; 0: none. The first and the last step
  of a phase are among them."""
  trace_groups: int
  """Groups each time at most, beside those of `trace_prompts`; and as many
  prompts of each evaluation."""
  trace_prompts: tuple[str, ...]
  """Prompts that are always among them when they come: numbers of their
  records, or texts that they contain."""
  traces_max_mib: int
  """Most MiB of that file. Each time gets an equal part of what is left;
  groups that do not fit are left out, and rows are cut."""

class Health(Group):
  halt: tuple[str, ...]
  """Rules, by name or number ("perfect_score", "H12"), that stop the run
  after saving. Too many rows without a score always do."""
  off: tuple[str, ...]
  """Rules that say nothing."""

class Guards(Group):
  lint: str
  """What becomes of too few prompts, or one that is most of them, before
  training: "warn", "refuse", or "off", which does not look. Where guards are
  `on`, a warning is a refusal."""
  on: bool
  """Switch all of what follows on. Each is switched off by 0."""
  min_distinct_prompts: int | None
  """Different prompts that a step must have, or the run halts; None: half of
  `num_prompts`, and at least 4."""
  influence_cap: float
  """Largest share that a prompt has of Σ |advantage| · tokens over a window
  of steps; what is above is scaled down."""
  influence_window: int
  """Steps of that window."""
  repeat_cap: int
  """How often a prompt is trained on in the steps of a second window; later
  ones are left out."""
  repeat_window: int
  """Steps of that window."""
  canary_every: int
  """Steps between looks at the canaries. Every checkpoint is looked at as
  well, and saved only if it passes, so that a run which halts is where its
  last checkpoint is."""
  canary_prompts: int
  """Held-out prompts of each canary."""
  canaries: tuple[str, ...]
  """What must not fall: components of the reward, or "correct". A minus says
  that less is better, and @FILE which prompts (JSON lines) are asked instead
  of held-out ones: ("correct", "-biased", "format@probes")."""
  canary_fall: float
  """By how much, below the mean of what has passed, a canary may fall if its
  standard deviation allows less."""
  canary_sigmas: float
  """By how many standard deviations of that difference."""
  canary_max_kl: float
  """KL to the reference in nats per completion of a canary's prompt that
  halts the run; not looked at in phases without a reference."""

class Hosts(Group):
  timeout_s: float
  """Seconds without a sign of life from the process."""
  stall_s: float
  """Seconds that it is alive and behind the others, or that none gets on:
  more than the longest compilation, evaluation or save takes."""

class Mesh(Group):
  data: int | None
  """Copies of the parameters; None: as many as there are devices for. With
  several TPU slices, a multiple of their number; the gradient of every
  micro-batch is summed across them, so there a large `micro_batch_size` saves
  time."""
  fsdp: int
  """Devices over which parameters, gradients and moments are split."""
  tensor: int
  """Devices over which heads, MLP width and vocabulary are split; divides
  them, and the key/value heads."""
  expert: int
  """Devices over which experts are split; divides their number."""

class Phase(Group):
  kind: str
  """Where its batches come from, and what they train: see `kinds.py`."""
  steps: int
  """Batches."""
  num_prompts: int
  """Prompts per batch."""
  group_size: int
  """Completions per prompt (1 in a supervised phase)."""
  max_rounds: int
  """With dynamic sampling, draw up to so many batches of prompts in a step,
  until num_prompts of them have completions with different rewards; those are
  trained, and what the last round has beyond them is dropped. If there are
  fewer, the others are left out of the loss as with 1, which draws one batch.
  A step takes max_rounds × num_prompts prompts from the data, drawn or not:
  where the data stands is then a function of the step, and a run resumes
  exactly."""
  max_prompt_len: int | None
  """Longer prompts are left out of this phase and counted, tokens; None: as
  in config.data."""
  num_epochs: int
  """Passes over each batch."""
  num_minibatches: int
  """Gradient steps per pass, on whole groups in random order; on single rows
  if the groups do not divide by it."""
  micro_batch_size: int | None
  """Rows per forward/backward pass; None: a good size for the backend.
  Changes time and memory, never the gradient."""
  num_lengths: int
  """Completion lengths that the update is compiled for, from T down to T / 8
  by equal factors, none below 16 slots: rows of about the same length go
  together, and completions that end early cost less. Each takes a compilation
  of its own; 1 for T only. In a single micro-batch the longest row decides
  for all."""
  logits_chunk_mib: int | None
  """What the float32 logits of a chunk may take on a device, MiB; None: a
  good size for the backend. Changes time and memory only."""
  reset_optimizer: bool
  """Start the phase with a fresh optimizer state."""
  set_reference: bool
  """Start the phase with the reference policy set to the current one."""
  reference_workdirs: tuple[str, ...]
  """Take the reference policy from the last checkpoint of this run instead: a
  teacher of the same architecture and vocabulary. With several, the number of
  a prompt's domain says which of them is its own."""
  ema_decay: float | None
  """Of the average of the parameters, per step; None keeps none."""
  staleness: int
  """Updates that the parameters of a rollout may be behind those that it
  trains. 0 is exact: the device waits for the host's verifiers. With k,
  rollouts of the next k batches are on their way while the host verifies one;
  needs verifiers on the host, and an algorithm that corrects what has changed
  in between (config.algorithm.importance_mode, …)."""
  optimizer: Optimizer
  """Of this phase."""

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
  """What "full" and distillation measure: 1 is KL(policy ‖ reference), 0 the
  other way round, between them the generalised Jensen-Shannon divergence
  (GKD, arXiv:2306.13649)."""
  kl_in_reward: bool
  """Subtract kl_coef · k1 from the reward of each token instead of adding the
  KL to the loss."""
  kl_domain_weights: tuple[float, ...]
  """Factor of kl_coef for each prompt domain; empty: 1."""
  kl_target: float
  """Adapt kl_coef to hold this KL, nats per token; 0 keeps it."""
  kl_horizon: float
  """Completions over which it adapts."""
  entropy_coef: float
  """Weight of the entropy bonus, per nat, token mean."""
  entropy_target: float
  """Adapt entropy_coef towards this entropy, nats per token, and apply it
  only below; 0 keeps it."""
  entropy_coef_step: float
  """By how much it adapts per step."""
  top_entropy_fraction: float
  """Share of the tokens, those with the highest entropy of the batch, whose
  policy loss counts; 1 is all."""
  advantage_scale: str
  """Divide advantages by the deviation of the rewards of the "group" or of
  the "batch", or "none"; refused where `scale_free`."""
  advantage_eps: float
  """Added to that deviation."""
  overlong_cache: float
  """Share of the budget over whose end the reward falls by up to 1 (DAPO's
  soft punishment); 0 switches it off."""
  overlong_filter: bool
  """Leave completions that hit the budget out of the loss (DAPO, Section
  3.4); they stay in the group's statistics."""
  dynamic_sampling: bool
  """Leave groups whose rewards are all equal out of the loss and of its
  denominators (DAPO, Section 3.2). With config.rl.max_rounds above 1 others
  are drawn in their place."""
  max_live_groups: int
  """With dynamic sampling, train only on the first so many live groups of an
  over-sampled batch; 0 keeps all of them."""
  importance_mode: str
  """Correct the gap between the sampler's and the trainer's log-probs by
  weights that are "truncate"d at importance_max, or "mask"ed to 0 outside
  [importance_min, importance_max]; or "none"."""
  importance_level: str
  """Of a "token" or of the whole "sequence"."""
  importance_max: float
  """Bounds of the weights."""
  importance_min: float
  """Bounds of the weights."""
  importance_normalize: bool
  """Divide the weights by their mean over the batch."""
  rejection: str
  """Leave out, also of the denominators, what the sampler and the trainer
  disagree about: "none", or the statistic and the estimator: "token_k1",
  "seq_sum_k1", "seq_mean_k1", "seq_max_k2", … with k1 to k3."""
  rejection_low: float
  """Bounds: for k1 of the ratio of sampler to trainer (of its product or
  geometric mean over a sequence); otherwise of the estimate, there only the
  upper one."""
  rejection_high: float
  """Bounds: for k1 of the ratio of sampler to trainer (of its product or
  geometric mean over a sequence); otherwise of the estimate, there only the
  upper one."""
  off_policy_threshold: float
  """Leave the policy loss of a completion with a negative advantage out when
  its mean log-prob fell by more than so many nats since it was sampled; 0
  switches it off."""
  keep_sampling_mask: bool
  """Take all log-probs over the tokens that the sampler's filters kept, so
  that sampling and training have the same support."""
  keep_routing: bool
  """Send each token through the experts that it took while it was sampled
  (DeepSeek-V3.2, arXiv:2512.02556); the reference is free."""
  balance_coef: float
  """Weight of the load-balance loss of a model with experts, which is 1 for
  an even load (`ops/routing.py`)."""
  router_bias_step: float
  """By how much the routers' biases change per step, up for an expert with
  less than the mean load and down for one with more (DeepSeek-V3,
  arXiv:2412.19437, Section 2.1.2); 0 keeps them."""
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
  """The ratio of a token is clipped to [min, max] before it is its weight: ρ
  of the equation; 0 for no lower bound."""
  ratio_max: float
  """The ratio of a token is clipped to [min, max] before it is its weight: ρ
  of the equation; 0 for no lower bound."""
  tau_positive: float
  """How soon the gate closes as the ratio leaves 1, for tokens with a
  positive advantage and for the others: τ of the equation."""
  tau_negative: float
  """How soon the gate closes as the ratio leaves 1, for tokens with a
  positive advantage and for the others: τ of the equation."""
  k_positive: float
  """k and λ of φ where the advantage is ≥ 0."""
  lambda_positive: float
  """k and λ of φ where the advantage is ≥ 0."""
  k_negative: float
  """k and λ of φ where it is negative."""
  lambda_negative: float
  """k and λ of φ where it is negative."""
  length_corrected: bool
  """Whether advantages are of R_i / |y_i|."""
  rho: float
  """ρ of the equation: how far a length one deviation from the mean moves
  h."""
  learn_lambda: bool
  """Whether λ is trained; otherwise it stays 0."""
  cov_low: float
  """Tokens whose covariance lies between these may be dropped."""
  cov_high: float
  """Tokens whose covariance lies between these may be dropped."""
  cov_fraction: float
  """Share of the trained tokens that are."""
  cov_kl_coef: float
  """κ of the equation, per nat of |log r|."""
  factor_min: float
  """The factor of an advantage is clipped to [min, max]."""
  factor_max: float
  """The factor of an advantage is clipped to [min, max]."""
  alpha1: float
  """α_1 of the equation: what the outcome alone gives to a token."""
  alpha2: float
  """α_2: what the entropy adds on average."""
  normalization: str
  """Over which tokens r̃ is standardised: "joint" (the group), "split" (right
  and wrong ones apart) or "none"."""
  batch_eps: float
  """Added to the deviation of the sums over the batch."""
  num_kept: int
  """Completions of a group that are learned from, at least 2."""
  metric: str
  """Kept are the best by "length" (the shortest) or by "efficiency" (the
  largest reward per token)."""
  dpo_coef: float
  """α of the equation: weight of DPO's loss."""
  beta: float
  """β of DPO: how much a difference of log-ratios counts, per nat."""
  kind: str
  """ "sigmoid" (DPO), "hinge", "ipo" or "robust"."""
  label_smoothing: float
  """Share of pairs that the rewards order wrongly, below 0.5."""
  f_divergence: str
  """ "reverse_kl" (DPO), "forward_kl" or "js_divergence"."""
  baseline_decay: float
  """Of the average of the mean reward, per step, in [0, 1); 0: no
  baseline."""
  gamma: float
  """Discount per trained token, in [0, 1]."""
  normalizer: float
  """F of the equation, which divides advantages; > 0."""
  zero_tail: bool
  """Whether the baseline is 0 where one row of a group alone goes on."""
  lam: float
  """λ of the policy's advantages, in [0, 1]."""
  lam_critic: float
  """λ of the critic's targets, in [0, 1]; 1 is the return itself, whatever
  the critic says (decoupled GAE, VC-PPO, arXiv:2503.01491)."""
  length_adaptive_alpha: float
  """α of λ_i = 1 − 1 / (α |y_i|) in the place of `lam` (VAPO,
  arXiv:2504.05118), within [0, 1]; 0 keeps `lam`."""
  boundary: str
  """What the end of a context means where a rollout was compacted into
  several: "outcome", "chain", "bootstrap" or "compaction_rl"
  (`returns.subtrace_advantages`)."""
  whiten: bool
  """Standardise advantages over all trained tokens of the batch."""
  value_clip: float
  """The critic's error is not made smaller by moving a value further than
  this from where it was; 0 for no clip."""
  weight: str
  """What weighs as much as any other in the loss: a "token", or a whole
  "context"."""
  omega: float
  """ω of the equation: weight of the advantage among actions of a state."""
  normalize: bool
  """Whether F is the deviation; otherwise it is 1."""
  teacher_clamp: float
  """Largest |A| of a token, nats."""
  topk: int
  """K of the equation: tokens of the teacher that are seen one by one; all if
  the vocabulary is smaller."""
  margin: float
  """By how much the chosen score should be above the other one."""
  center_coef: float
  """c of the equation: weight of the part that keeps scores centred."""

class Config(Group):
  seed: int
  """Of parameters, data order and every draw."""
  start_workdir: str
  """Start with the policy of the last checkpoint of this run (its average, if
  it keeps one), of the same architecture and vocabulary; empty: from `model`,
  whose weights are not read otherwise."""
  phases: tuple[str, ...]
  """Names of the phases in order."""
  critic: Critic
  """Of an algorithm that has one."""
  reward_model: RewardModel
  """Where a model scores completions, or learns to."""
  data: Data
  """As named."""
  environment: Environment
  """Turns, where data.environment is set."""
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
  """Against data and rewards that would spoil the policy."""
  hosts: Hosts
  """As named."""
  mesh: Mesh
  """How the devices share the work."""
  profile_steps: tuple[int, ...]
  """(first, last) step of a trace for xprof, or ()."""
  required_accuracy: float | None
  """Held-out accuracy below which the command fails; None: no verdict."""
  unpublished: tuple[str, ...]
  """Settings, as "algorithm.clip_low", that a published recipe does not
  state; what stands there is our choice."""
  allow_unpublished: bool
  """Whether a run may start with them."""
  algorithm: Algorithm
  """Objective of what is drawn."""
  sft: Phase
  """A phase."""
  value: Phase
  """A phase."""
  rl: Phase
  """A phase."""
