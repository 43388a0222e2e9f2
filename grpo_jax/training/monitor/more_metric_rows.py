"""Rows of the table of metrics that are not about the policy's own steps."""

SECTIONS: dict[str, tuple[tuple[str, ...], ...]] = {
  "Critic and reward model": (
    ("value/loss", "loss", "Loss of the critic", "falls"),
    (
      "value/explained_variance",
      "1",
      "Part of the variance of returns that the critic foretells",
      "> 0.3 after a while",
      "below 0: --config.value.steps, --config.critic.num_updates",
    ),
    (
      "value/calibration_error",
      "return",
      "Distance of values from mean returns of tokens with such values",
      "near 0",
    ),
    ("value/mean", "return", "Mean value of a trained token"),
    ("value/first", "return", "Mean value of a prompt", "near reward/mean"),
    (
      "value/first_error",
      "return",
      "Mean error of the value of a prompt",
      "near 0",
    ),
    (
      "value/first_correlation",
      "−1 to 1",
      "Correlation of the values of prompts with rewards",
      "> 0",
    ),
    (
      "value/gradient_norm",
      "gradient",
      "Norm of the gradient of the critic before it is clipped",
      "> 0",
      "0: H02",
    ),
    (
      "value/update_norm",
      "parameter",
      "Norm of the step that the critic's optimizer takes",
    ),
    (
      "value/param_norm",
      "parameter",
      "Norm of the critic's trained parameters",
      "steady",
    ),
    (
      "value/learning_rate",
      "1",
      "Learning rate of the critic's first gradient step",
      "as scheduled",
    ),
    (
      "reward_model/loss",
      "nats",
      "Loss of the reward model on pairs; a guess has log 2",
      "< 0.69",
      "exactly 0: no pairs (H20)",
    ),
    (
      "reward_model/accuracy",
      "share",
      "Pairs of completions of a prompt that it ranks right, half of a tie: as"
      " rewards do where it is trained, before the step; where it judges, as"
      " config.rewards.correct does. Steps, of a process reward model",
      "> 0.5",
      "falling while it judges: the policy has left what it was trained on; see"
      " docs/reward_models.md",
    ),
    (
      "reward_model/calibration_error",
      "share",
      "Of the same pairs or steps: expected error of the probability that its"
      " scores give them",
      "near 0",
      "large and accuracy high: scores are too large or too small, not wrong",
    ),
    (
      "reward_model/margin",
      "nats",
      "Mean score of the preferred completion of a pair, minus that of the"
      " other one",
      "> 0",
    ),
    (
      "reward_model/correlation",
      "−1 to 1",
      "Where it judges: correlation of its score with config.rewards.correct"
      " over the batch; null where one of them is constant",
      "> 0",
      "falling: the policy earns its score without being right",
    ),
    (
      "reward_model/gradient_norm",
      "gradient",
      "Norm of the gradient of the reward model before it is clipped",
      "> 0",
      "0: H02",
    ),
    (
      "reward_model/update_norm",
      "parameter",
      "Norm of the step that the reward model's optimizer takes",
    ),
    (
      "reward_model/param_norm",
      "parameter",
      "Norm of the reward model's trained parameters",
      "steady",
    ),
    (
      "reward_model/learning_rate",
      "1",
      "Learning rate of the reward model's first gradient step",
      "as scheduled",
    ),
    (
      "history/groups",
      "groups",
      "Groups of the step that are old (config.reward_model.history_share); the"
      " first phase has none",
      "the share of num_prompts",
    ),
    (
      "history/age",
      "steps",
      "Mean number of steps since the old groups were drawn, over all phases",
    ),
    (
      "history/kept",
      "groups",
      "Groups in the reservoir that old groups come from",
    ),
    (
      "history/seen",
      "groups",
      "Groups that were drawn so far, of which the reservoir is a uniform"
      " sample",
      "rises",
    ),
  ),
  "Prompts that are chosen": (
    (
      "data/unusable",
      "records",
      "With config.data.images: records left out in making the batch of the"
      " step, because their images cannot be shown; another record is in the"
      " place of each",
      "0",
      "the log has the reasons (docs/images.md)",
    ),
    (
      "schedule/success",
      "share",
      "Where config.rl.schedule chooses prompts: how likely a completion of a"
      " prompt of the pool is right, as far as is known, on average; with 'ads'"
      " of clusters",
      "rises",
    ),
    (
      "schedule/expected",
      "share",
      "Estimated probability that a completion is right, mean over the"
      " prompts that were drawn, before their completions came",
      "what the schedule aims at: 0.5 for 'frontier', 'target' and 'ads'",
    ),
    (
      "schedule/seen",
      "share",
      "Prompts of the pool that had a scored completion at least once ('ads':"
      " that were drawn at least once)",
      "rises to 1",
      "far below 1 after many steps: raise schedule.uniform_share",
    ),
    (
      "schedule/most_visits",
      "steps",
      "Steps in which the most frequent prompt had a scored completion ('ads':"
      " was drawn)",
      "within a few times step × num_prompts / pool",
      "far above: the policy may learn these by heart; raise"
      " schedule.uniform_share, or config.guards.on",
    ),
    (
      "schedule/depth",
      "share",
      "Where 'ads' draws windows of clusters: where they are on average, from"
      " 0, the easiest prompts of a cluster, to 1, the hardest",
      "rises within a period, and then begins anew",
    ),
    (
      "schedule/largest_share",
      "share",
      "With 'ads', the largest probability of a cluster",
      "a few times 1 / clusters",
    ),
    (
      "schedule/drift",
      "nats per token",
      "Where 'spo' asks the policy again: how far the log-probs of the last"
      " completion of a prompt have moved; 0 where there is none",
      "below 0.06: half is forgotten there",
    ),
    (
      "schedule/memory",
      "share",
      "What earlier completions of the prompts of a step still count",
      "between schedule.memory_low and 0.96",
    ),
  ),
  "Held-out prompts": (
    (
      "eval/accuracy",
      "share",
      "Held-out prompts with a right completion; unscored ones are not right",
      "rises",
      "falling while reward/mean rises: H14",
    ),
    (
      "eval/accuracy_scored",
      "share",
      "Share of right ones among the held-out completions that were scored",
      "as eval/accuracy",
    ),
    (
      "eval/reward",
      "reward",
      "Mean reward of the held-out completions that were scored",
      "rises",
    ),
    (
      "eval/reward/NAME",
      "its own",
      "Mean of a component of the reward over held-out completions",
    ),
    (
      "eval/reward_model/accuracy",
      "share",
      "As reward_model/accuracy, of held-out pairs or steps",
      "as in training",
      "lower than in training: it has learnt its pairs by heart",
    ),
    (
      "eval/reward_model/calibration_error",
      "share",
      "As reward_model/calibration_error, of held-out pairs or steps",
      "near 0",
    ),
    (
      "eval/reward_model/margin",
      "nats",
      "As reward_model/margin, of held-out pairs",
      "> 0",
    ),
    (
      "eval/reward_model/count",
      "1",
      "Held-out pairs or steps over which the figures of the reward model"
      " are means",
      "hundreds",
      "few: config.eval.num_prompts",
    ),
    (
      "eval/quadrants/consistent_right",
      "share",
      "As quadrants/consistent_right, of scored held-out completions",
      "rises",
    ),
    (
      "eval/quadrants/consistent_wrong",
      "share",
      "As quadrants/consistent_wrong, of scored held-out completions",
      "falls",
    ),
    (
      "eval/quadrants/inconsistent_right",
      "share",
      "As quadrants/inconsistent_right, of scored held-out completions",
      "falls",
    ),
    (
      "eval/quadrants/inconsistent_wrong",
      "share",
      "As quadrants/inconsistent_wrong, of scored held-out completions",
      "falls",
    ),
    (
      "eval/quadrants/inconsistent",
      "share",
      "As quadrants/inconsistent, of scored held-out completions",
      "falls",
    ),
    ("eval/length", "tokens", "Mean length of the completions", "steady"),
    (
      "eval/unscored",
      "rows",
      "Completions without a score",
      "0",
      "above config.rewards.max_unscored the run has failed",
    ),
    (
      "eval/macro_accuracy",
      "share",
      "Mean of the accuracies of the domains of prompts",
      "rises",
      "look at the domains one by one",
    ),
    (
      "eval/domain/NAME/accuracy",
      "share",
      "As eval/accuracy, of the prompts of one domain; so are its"
      " accuracy_scored, reward, length and unscored",
      "rises",
      "falling while others rise: they interfere with each other",
    ),
    (
      "eval/domain/NAME/accuracy_scored",
      "share",
      "As eval/accuracy_scored",
      "rises",
    ),
    ("eval/domain/NAME/reward", "reward", "As eval/reward", "rises"),
    ("eval/domain/NAME/length", "tokens", "As eval/length", "steady"),
    ("eval/domain/NAME/unscored", "rows", "As eval/unscored", "0"),
  ),
  "Domains of prompts": (
    (
      "domain/NAME/share",
      "share",
      "Completions of the step whose prompts are of this domain",
      "as the data are mixed",
    ),
    (
      "domain/NAME/accuracy",
      "share",
      "As accuracy, of one domain",
      "rises",
      "falling while others rise: they interfere with each other",
    ),
    ("domain/NAME/reward", "reward", "As reward/mean", "rises"),
    ("domain/NAME/length", "tokens", "As length/mean", "steady"),
    ("domain/NAME/length_correct", "tokens", "As length/correct"),
    ("domain/NAME/length_incorrect", "tokens", "As length/incorrect"),
    (
      "domain/NAME/truncated",
      "share",
      "As truncated",
      "near 0",
      "--config.sampling.domain_limits",
    ),
    ("domain/NAME/entropy", "nats", "As entropy/mean", "falls slowly"),
    (
      "domain/NAME/dead_groups",
      "share",
      "As dead_groups",
      "< 0.8",
      "this domain is too easy or too hard: its weight buys nothing",
    ),
    ("domain/NAME/unscored", "rows", "As unscored", "0"),
    ("domain/NAME/tokens", "tokens", "As tokens/generated"),
    (
      "domain/NAME/kl",
      "nats",
      "k3 of the policy that drew the tokens to its reference, or to the"
      " teacher of the domain",
      "bounded",
      "config.algorithm.kl_domain_weights",
    ),
  ),
  "Guards": (
    (
      "guards/distinct",
      "prompts",
      "Different prompts of a step",
      "as many as rl.num_prompts",
      "config.guards.min_distinct_prompts",
    ),
    (
      "guards/dropped",
      "prompts",
      "Prompts of a step that were left out: used too often",
      "0",
      "more data, or config.guards.repeat_cap",
    ),
    (
      "guards/max_share",
      "share",
      "Largest share of a prompt in the influence of the last steps",
      "below guards/cap",
      "audit.jsonl names the prompt",
    ),
    ("guards/cap", "share", "Share that a prompt may have", "constant"),
    ("guards/scaled", "prompts", "Prompts that were scaled down to it", "0"),
    (
      "guards/all_time_share",
      "share",
      "Largest share of a prompt in all steps so far",
      "falls",
    ),
    ("canary/NAME", "its own", "Score of a canary", "steady"),
    (
      "canary/kl",
      "nats",
      "Distance from the reference on its prompts, per completion",
      "below config.guards.canary_max_kl",
      "the run halts above it",
    ),
  ),
  "Turns of an environment on the host": (
    (
      "turn/TURN/calls",
      "actions",
      "Actions that were answered or failed in a turn of all episodes;"
      " TURN is 0 for the first, up to 7, and `later`",
      "at most the rows",
    ),
    (
      "turn/TURN/blocked",
      "actions",
      "Actions that the interceptor has blocked",
      "0",
    ),
    (
      "turn/TURN/failed",
      "actions",
      "Actions that have ended an episode as failed",
      "0",
      "unscored/KIND and the log say why",
    ),
    ("turn/TURN/tokens", "tokens", "Tokens that the policy wrote in the turn"),
    (
      "turn/TURN/observed",
      "tokens",
      "Tokens of the answers that the policy read",
    ),
  ),
  "Time, in timings.jsonl": (
    ("time/step_s", "seconds", "From one recorded step to the next", "steady"),
    (
      "time/compile_s",
      "seconds",
      "Tracing and compilation in the step",
      "0 after the first step of a phase",
      "later ones: shapes change",
    ),
    (
      "time/verifier_s",
      "seconds",
      "Verifiers on the host",
      "below time/step_s",
      "--config.rewards.num_workers, --config.rl.staleness",
    ),
    (
      "time/environment_s",
      "seconds",
      "The device had nothing to do, for an environment on the host; with"
      " config.rl.staleness the update of the step may fall into it",
      "below time/step_s",
      "--config.environment.concurrency, --config.rewards.num_workers",
    ),
    (
      "time/answer_s/TURN",
      "seconds",
      "Mean from the end of an action to the environment's answer; of several"
      " processes the largest",
      "steady",
      "a tool is slow, or too many run at once",
    ),
    (
      "tokens_per_second",
      "tokens / s",
      "Tokens that were drawn, or trained in a supervised phase",
      "steady",
    ),
  ),
  "Alarms": (
    (
      "alarm/RULE",
      "1",
      "1 in the step in which a rule of the table below warns, absent"
      " otherwise",
      "absent",
      "what the rule says",
    ),
  ),
}
