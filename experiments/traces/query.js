// Which groups and completions the reader asks for.

// Groups of a run that the state asks for, each with its matching rows.
function query(run, state) {
  const wanted = state.flags;
  const needle = state.search.toLowerCase();
  const since = state.since === "" ? null : Number(state.since);
  const isWorse = since === null ? null : regressed(run, since);
  const prompts = needle && run.prompts.map((x) => x.toLowerCase());
  const found = [];
  for (const group of run.groups) {
    if (state.split && group.split !== state.split) continue;
    if (state.rule !== "" && !group.chosen.includes(Number(state.rule))) continue;
    if (state.prompt !== null && promptKey(group) !== state.prompt) continue;
    if (isWorse && !isWorse[group.index]) continue;
    const inPrompt = needle && prompts[group.prompt].includes(needle);
    const rows = [];
    for (let at = group.first; at < group.first + group.count; at++) {
      const row = run.rows[at];
      if ((row.flags & wanted) !== wanted) continue;
      if (needle && !inPrompt && !haystack(row).includes(needle)) continue;
      rows.push(at);
    }
    if (rows.length) found.push({ group, rows });
  }
  return found;
}

function haystack(row) {
  if (row.haystack === undefined) {
    const calls = row.calls.flatMap((call) => Object.values(call));
    row.haystack = [row.opening, textOf(row), row.error, ...calls].join("\n").toLowerCase();
  }
  return row.haystack;
}

// Groups later than a step that score less than their prompt did up to it.
function regressed(run, since) {
  const before = new Map();
  return run.groups.map((group) => {
    if (group.score === null) return false;
    const key = promptKey(group);
    if (group.step <= since) {
      before.set(key, group.score);
      return false;
    }
    return before.has(key) && group.score < before.get(key);
  });
}

// The group of another run that a group is compared with: of the same prompt
// and near in steps, or else the nearest.
function counterpart(group, other) {
  const same = other.groups.filter((x) => promptOf(x) === promptOf(group)
    && x.split === group.split);
  let best = null;
  for (const x of same.length ? same : other.groups) {
    const distance = Math.abs(x.step - group.step);
    if (!best || distance < Math.abs(best.step - group.step)) best = x;
  }
  return best;
}
