// Filters, and the list of groups that pass them. Only what is seen is in the
// page, since there may be tens of thousands.

const ITEM_HEIGHT = 48;
const MAX_MARKS = 24;

function drawFilters(app) {
  const { state, runs, filters } = app;
  const run = runs[state.run];
  const chips = filters.map(([, label, meaning], i) => el("button", {
    type: "button", class: "chip", text: label,
    title: `${meaning} (${i + 1})`, data: { key: `flag-${i}` },
    "aria-pressed": String(Boolean((state.flags >> i) & 1)),
    on: { click: () => app.change({ flags: state.flags ^ (1 << i) }) },
  }));
  const select = (name, title, options) => {
    const node = el("select", {
      "aria-label": title, data: { key: name },
      on: { change: () => app.change({ [name]: node.value }) },
    }, ...options.map(([value, text]) => el("option", {
      value, text, selected: String(state[name]) === String(value) && "",
    })));
    return node;
  };
  if (runs.length > 1) {
    chips.unshift(select("run", "run", runs.map((x) => [x.index,
      visibleString(x.name)])));
  }
  const choices = [
    select("split", "split", [["", "train and eval"], ["train", "train"],
      ["eval", "eval"]]),
    select("rule", "why it was traced", [["", "all rules"],
      ...run.rules.map((rule, i) => [i, visibleString(rule)])]),
  ];
  if (state.prompt !== null) {
    choices.push(el("button", {
      type: "button", class: "chip", "aria-pressed": "true",
      text: "only this prompt ×", on: { click: () => app.change({ prompt: null }) },
    }));
  }
  if (isFiltered(state)) {
    choices.push(el("button", { type: "button", class: "plain",
      text: "clear all", on: { click: () => app.clear() } }));
  }
  document.getElementById("chips").replaceChildren(...chips);
  document.getElementById("choices").replaceChildren(...choices);
}

function isFiltered(state) {
  return Boolean(state.flags || state.search || state.since !== ""
    || state.split || state.rule !== "" || state.prompt !== null);
}

function drawCount(app) {
  const { found, state } = app;
  const run = app.runs[state.run];
  const rows = found.reduce((sum, x) => sum + x.rows.length, 0);
  const number = (x, noun) => `${x.toLocaleString("en")} ${noun}${x === 1 ? "" : "s"}`;
  let text = `${number(found.length, "group")}, ${number(rows, "completion")}`;
  if (isFiltered(state)) text += ` of ${run.rows.length.toLocaleString("en")}`;
  const { groups, numbers } = run.leftOut;
  if (groups) text += `; ${number(groups, "group")} left out to save space`;
  if (numbers) {
    text += `; ${number(numbers, "group")} without numbers of tokens`
      + " (--megabytes allows more)";
  }
  document.getElementById("count").textContent = text;
}

function drawList(app) {
  const list = document.getElementById("list");
  if (!list.firstChild) {
    list.append(el("div", { class: "spacer" }));
    list.addEventListener("scroll", () => drawItems(app));
  }
  list.firstChild.style.height = `${app.found.length * ITEM_HEIGHT}px`;
  drawItems(app);
}

function drawItems(app) {
  const list = document.getElementById("list");
  const from = Math.max(0, Math.floor(list.scrollTop / ITEM_HEIGHT) - 4);
  const number = Math.ceil(list.clientHeight / ITEM_HEIGHT) + 8;
  const items = app.found.slice(from, from + number)
    .map((entry, i) => item(app, entry, from + i));
  list.firstChild.replaceChildren(...items);
  list.setAttribute("aria-activedescendant", "selected");
}

function item(app, { group, rows }, at) {
  const matching = new Set(rows);
  const all = rowsOf(group);
  const marks = all.slice(0, MAX_MARKS).map((row) => el("span", {
    class: `mark ${verdict(row)}${matching.has(row.index) ? "" : " faint"}`,
    title: verdict(row),
  }));
  const more = all.length > MAX_MARKS ? `+${all.length - MAX_MARKS}` : "";
  const isSelected = group === app.state.group;
  const rules = group.chosen.map((i) => group.run.rules[i]).join(", ");
  const node = el("div", {
    class: "item", role: "option", id: isSelected ? "selected" : undefined,
    "aria-selected": String(isSelected),
    on: { click: () => app.select(group, rows[0]) },
  },
  el("div", { class: "line-1" }, el("b", { text: group.step }),
    el("span", { class: "clip" },
      visible(cutText(promptOf(group).trim(), 120), false))),
  el("div", { class: "line-2" }, el("span", { class: "marks" }, ...marks, more),
    el("span", { class: "muted", text: meanReward(all) }),
    el("span", { class: "muted clip", text: [group.split === "eval" ? "eval" : "",
      visibleString(rules)].filter(Boolean).join(" · ") })));
  node.style.top = `${at * ITEM_HEIGHT}px`;
  return node;
}

function verdict(row) {
  if (row.reward === null) return "unscored";
  if (row.correct === null) return row.reward > 0 ? "right" : "wrong";
  return row.correct ? "right" : "wrong";
}

function meanReward(rows) {
  const known = rows.map((row) => row.reward).filter((x) => x !== null);
  return known.length ? `reward ${brief(mean(known))}` : "unscored";
}

// Scrolls so that a place of the list can be seen.
function reveal(at) {
  const list = document.getElementById("list");
  const top = at * ITEM_HEIGHT;
  if (top < list.scrollTop) list.scrollTop = top;
  const least = top + ITEM_HEIGHT - list.clientHeight;
  if (least > list.scrollTop) list.scrollTop = least + ITEM_HEIGHT;
}
