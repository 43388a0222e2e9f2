// What the reader has chosen, the keys, and the start.

const app = {
  runs: [], filters: [], found: [],
  state: {
    run: 0, group: null, row: null, step: 0, flags: 0, search: "", since: "",
    split: "", rule: "", prompt: null, colour: "", pinned: null, other: false,
    base: null, metrics: [],
  },
};

const QUESTION = ["run", "flags", "search", "since", "split", "rule", "prompt"];

app.change = (patch) => {
  const { state } = app;
  if ("run" in patch && Number(patch.run) !== state.run) {
    // Rules and prompts are those of a run.
    Object.assign(patch, { run: Number(patch.run), rule: "", prompt: null });
  }
  const isNew = (name) => name in patch && patch[name] !== state[name];
  const asksAnew = QUESTION.some(isNew);
  const drawsAnew = isNew("metrics");
  Object.assign(state, patch);
  const key = document.activeElement?.dataset.key;
  if (asksAnew) ask();
  if (drawsAnew) drawCurves(app);
  draw();
  // What had the focus of the keyboard is drawn anew, and has it again.
  if (key && document.activeElement === document.body) {
    document.querySelector(`[data-key="${key}"]`)?.focus();
  }
};

// Finds the groups that the reader asks for; one of them is chosen.
function ask() {
  const { state } = app;
  app.found = query(app.runs[state.run], state);
  app.shownAt = null; // Other groups are above it: it is scrolled to.
  drawFilters(app);
  drawCount(app);
  const here = app.found.find((x) => x.group === state.group);
  if (here) {
    if (!here.rows.includes(state.row)) state.row = here.rows[0];
  } else if (app.found.length) {
    choose(nearest(state.step));
  } else if (state.group && state.group.run.index !== state.run) {
    Object.assign(state, { group: null, row: null });
  }
}

function choose(entry) {
  const { group, rows } = entry;
  Object.assign(app.state, { group, row: rows[0], step: group.step });
}

// The nearest in steps; of these one of training, whose tokens have numbers.
function nearest(step) {
  const far = ({ group }) => 2 * Math.abs(group.step - step)
    + (group.split === "train" ? 0 : 1);
  return app.found.reduce((best, x) => (far(x) < far(best) ? x : best));
}

app.select = (group, row) => app.change({
  group, row, step: group.step, run: group.run.index,
});

app.goToStep = (step) => {
  if (!app.found.length) return app.change({ step });
  const { group, rows } = nearest(step);
  const stays = app.state.group?.step === group.step;
  return app.change({ step, ...(stays ? {} : { group, row: rows[0] }) });
};

app.clear = () => {
  document.getElementById("search").value = "";
  document.getElementById("since").value = "";
  app.change({ flags: 0, search: "", since: "", split: "", rule: "", prompt: null });
};

app.pin = (group) => {
  const { pinned, row } = app.state;
  if (pinned?.group === group) return app.change({ pinned: null });
  const own = group.run.rows[row]?.group === group ? row : group.first;
  return app.change({ pinned: { group, row: own } });
};

app.follow = (group) => app.change({
  prompt: app.state.prompt === null ? promptKey(group) : null,
});

app.compare = (row) => app.change({ base: app.state.base === row ? null : row });

function draw() {
  const { state } = app;
  hideCard();
  const at = app.found.findIndex((x) => x.group === state.group);
  drawList(app);
  if (at >= 0 && app.shownAt !== state.group) reveal(at);
  app.shownAt = state.group;
  drawItems(app);
  moveCursor(app);
  drawPanes();
}

function drawPanes() {
  const { state, runs } = app;
  const place = document.getElementById("panes");
  if (!state.group) {
    place.replaceChildren(el("p", { class: "empty", text: runs[state.run].groups.length
      ? "Nothing matches. Press x to clear the filters."
      : "This run has written no groups of completions yet." }));
    return;
  }
  const name = (group) => (runs.length > 1 ? group.run.name : "");
  const panes = [drawPane(app, state.group, state.row, name(state.group))];
  if (state.other && runs.length > 1) {
    const other = counterpart(state.group, runs[1 - state.group.run.index]);
    if (other) panes.push(drawPane(app, other, other.first, name(other)));
  }
  if (state.pinned && state.pinned.group !== state.group) {
    const { group, row } = state.pinned;
    panes.unshift(drawPane(app, group, row, name(group)));
  }
  place.className = panes.length > 1 ? "several" : "";
  place.replaceChildren(...panes);
}

function moveGroup(by) {
  const at = app.found.findIndex((x) => x.group === app.state.group);
  const entry = app.found[at + by];
  if (entry) app.select(entry.group, entry.rows[0]);
}

function moveRow(by) {
  const { group, row } = app.state;
  if (!group) return;
  const to = row + by;
  if (to >= group.first && to < group.first + group.count) app.change({ row: to });
}

function moveTime(by) {
  const { group } = app.state;
  if (!group) return;
  const times = group.run.times.get(promptKey(group));
  const to = times[times.indexOf(group) + by];
  if (to) app.select(to, to.first);
}

function moveStep(by) {
  const steps = app.found.map((x) => x.group.step);
  const here = app.state.group?.step ?? app.state.step;
  const to = by > 0 ? steps.find((x) => x > here)
    : steps.findLast((x) => x < here);
  if (to !== undefined) app.goToStep(to);
}

function nextColour() {
  const names = ["", ...colourNames(app.runs[app.state.run])];
  const at = names.indexOf(app.state.colour);
  app.change({ colour: names[(at + 1) % names.length] });
}

function switchTheme() {
  const root = document.documentElement;
  const isDark = getComputedStyle(root).colorScheme === "dark"
    || (!root.dataset.theme && matchMedia("(prefers-color-scheme: dark)").matches);
  root.dataset.theme = isDark ? "light" : "dark";
  keepTheme(root.dataset.theme);
}

// A file of a disk may not be allowed to keep anything.
function keepTheme(theme) {
  try {
    if (theme) localStorage.setItem("traces-theme", theme);
    return localStorage.getItem("traces-theme");
  } catch {
    return null;
  }
}

const withGroup = (act) => () => app.state.group && act(app.state.group);
const KEYS = [
  ["j", "next group", () => moveGroup(1)],
  ["k", "group before", () => moveGroup(-1)],
  ["n", "next completion of the group", () => moveRow(1)],
  ["m", "completion before", () => moveRow(-1)],
  ["l", "next step with groups", () => moveStep(1)],
  ["h", "step before", () => moveStep(-1)],
  ["]", "the next time that this prompt came", () => moveTime(1)],
  ["[", "the time before", () => moveTime(-1)],
  ["p", "only this prompt, through training", withGroup((x) => app.follow(x))],
  ["c", "next colour of tokens", nextColour],
  ["e", "to the tokens; then arrow keys", () =>
    document.querySelector(".token[tabindex='0']")?.focus()],
  ["d", "compare other completions with this one", withGroup((x) =>
    app.compare(x.run.rows[app.state.row]))],
  ["b", "keep this group beside the next ones", withGroup((x) => app.pin(x))],
  ["o", "the other run beside this one", () =>
    app.runs.length > 1 && app.change({ other: !app.state.other })],
  ["/", "search", () => document.getElementById("search").focus()],
  ["x", "clear filters and search", () => app.clear()],
  ["t", "dark or light", switchTheme],
  ["?", "these keys", () => document.getElementById("keys").showModal()],
];

function onKey(event) {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (document.getElementById("keys").open) return;
  const isField = event.target.matches?.("input, select, textarea");
  if (event.key === "Escape" && isField) event.target.blur();
  if (isField && event.target.type !== "range") return;
  const filter = Number(event.key) - 1;
  if (app.filters[filter]) {
    app.change({ flags: app.state.flags ^ (1 << filter) });
  } else {
    const found = KEYS.find(([key]) => key === event.key);
    if (!found) return;
    found[2]();
  }
  event.preventDefault();
}

function drawKeys() {
  const dialog = document.getElementById("keys");
  const lines = [...KEYS.map(([key, what]) => [key, what]),
    [`1–${app.filters.length}`, "filters, in their order"],
    ["Esc", "leave a field or this list"]];
  dialog.replaceChildren(el("h2", { text: "Keys" }),
    el("dl", {}, ...lines.flatMap(([key, what]) => [
      el("dt", {}, el("kbd", { text: key })), el("dd", { text: what })])),
    el("button", { type: "button", text: "close",
      on: { click: () => dialog.close() } }));
}

function drawHeader() {
  const names = app.runs.map((run) => visibleString(run.name));
  document.getElementById("title").textContent = names.join(" and ");
  const about = app.runs.map((run) => {
    const last = run.metrics.steps.at(-1) ?? 0;
    return `${visibleString(run.algorithm)}, ${last.toLocaleString("en")} steps`;
  });
  document.getElementById("about").textContent = about.join("; ");
}

function listen() {
  const slider = document.getElementById("step");
  slider.addEventListener("input", () => app.goToStep(Number(slider.value)));
  const search = document.getElementById("search");
  let timer = 0;
  search.addEventListener("input", () => {
    clearTimeout(timer);
    timer = setTimeout(() => app.change({ search: search.value }), 150);
  });
  const since = document.getElementById("since");
  since.addEventListener("input", () => app.change({ since: since.value }));
  document.getElementById("theme").addEventListener("click", switchTheme);
  document.getElementById("help").addEventListener("click", () =>
    document.getElementById("keys").showModal());
  document.addEventListener("keydown", onKey);
  let width = window.innerWidth;
  window.addEventListener("resize", () => {
    if (width !== window.innerWidth) drawCurves(app); // Not for a phone's bars.
    width = window.innerWidth;
    drawItems(app);
  });
}

async function start() {
  const theme = keepTheme();
  if (theme) document.documentElement.dataset.theme = theme;
  const content = await loadData();
  app.runs = content.runs;
  app.filters = content.filters;
  const names = colourNames(app.runs[0]).filter((name) => varies(app, name));
  Object.assign(app.state, { metrics: usualMetrics(app.runs),
    colour: names[0] || "", step: stepRange(app.runs)[1] });
  drawHeader();
  drawKeys();
  listen();
  ask();
  drawCurves(app);
  draw();
  document.documentElement.dataset.ready = "yes";
}

start().catch((error) => {
  document.getElementById("about").textContent = `The page is damaged: ${error}`;
});
