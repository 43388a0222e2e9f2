// A group: its prompt through training, its completions, one of them in full.

const MAX_ROWS = 100;
const MAX_TIMES = 200;

function drawPane(app, group, rowIndex, title) {
  const row = group.run.rows[rowIndex];
  return el("section", { class: "pane", "aria-label": title },
    heading(app, group, title),
    timeline(app, group),
    el("h3", { text: "prompt" }),
    longText(promptOf(group), "prompt"),
    ...pictures(group, row),
    rowsTable(app, group, row),
    completion(app, row),
    ...comparison(app, row));
}

function heading(app, group, title) {
  const rules = group.chosen.map((i) => group.run.rules[i]).join(", ");
  const where = group.record >= 0 ? `record ${group.record}` : "";
  const which = group.promptId >= 0 ? `prompt ${group.promptId}` : "";
  const about = [group.phase, group.split, where, which, rules]
    .filter(Boolean).join(" · ");
  const isPinned = app.state.pinned?.group === group;
  const tools = [
    el("button", {
      type: "button", text: isPinned ? "unpin" : "pin", "aria-pressed": String(isPinned),
      title: "keep it beside what is chosen next (b)", data: { key: "pin" },
      on: { click: () => app.pin(group) },
    }),
    el("button", {
      type: "button", text: "only this prompt", title: "through training (p)",
      data: { key: "follow" },
      on: { click: () => app.follow(group) },
    }),
  ];
  if (app.runs.length > 1) {
    tools.push(el("button", {
      type: "button", text: "other run", "aria-pressed": String(app.state.other),
      title: "the same prompt in the other run, beside it (o)",
      data: { key: "other" },
      on: { click: () => app.change({ other: !app.state.other }) },
    }));
  }
  return el("div", { class: "heading" },
    el("h2", {}, title ? `${visibleString(title)}: ` : "", `step ${group.step}`),
    el("span", { class: "muted", text: visibleString(about) }),
    el("span", { class: "tools" }, ...tools));
}

// Each time that the prompt came, with its score as a bar.
function timeline(app, group) {
  const times = group.run.times.get(promptKey(group));
  if (times.length < 2) return "";
  const scores = times.map((x) => x.score).filter((x) => x !== null);
  const low = Math.min(0, ...scores);
  const high = Math.max(1, ...scores);
  const here = times.indexOf(group);
  const from = Math.max(0, Math.min(here - MAX_TIMES / 2, times.length - MAX_TIMES));
  const bars = times.slice(from, from + MAX_TIMES).map((x) => {
    const bar = el("span", { class: "score" });
    bar.style.height = `${100 * ((x.score ?? low) - low) / (high - low)}%`;
    return el("button", {
      type: "button", class: "time", "aria-current": x === group && "true",
      title: `step ${x.step}, score ${brief(x.score)}`,
      data: { key: `group-${x.index}` },
      on: { click: () => app.select(x, x.first) },
    }, el("span", { class: "column" }, bar),
    el("span", { class: "step", text: x.step }));
  });
  return el("div", { class: "timeline" },
    el("span", { class: "muted", text: `this prompt, ${times.length} times ([ and ])` }),
    el("div", { class: "times" }, ...bars));
}

function rowsTable(app, group, selected) {
  const { run } = group;
  const names = run.components.filter((_, i) =>
    rowsOf(group).some((row) => row.components[i] !== null));
  const hasSizes = rowsOf(group).some((row) => row.size);
  const head = ["#", "", "reward", ...names, hasSizes ? "tokens" : "", "", "text"];
  const matching = new Set(app.found.find((x) => x.group === group)?.rows);
  const rows = rowsOf(group);
  const at = rows.indexOf(selected);
  const limit = Math.max(MAX_ROWS, at + 1);
  const body = el("tbody", {}, ...rows.slice(0, limit).map((row) =>
    tableRow(app, row, row === selected, matching, names)));
  const parts = [el("table", {}, el("thead", {}, el("tr", {},
    ...head.map((name) => el("th", { scope: "col" }, visible(name, false))))), body)];
  if (rows.length > limit) {
    parts.push(el("button", {
      type: "button", class: "more", text: moreLabel(rows.length - limit, "rows"),
      on: {
        click: (event) => {
          event.target.remove();
          body.append(...rows.slice(limit).map((row) =>
            tableRow(app, row, false, matching, names)));
        },
      },
    }));
  }
  return el("div", { class: "table" }, ...parts);
}

const VERDICTS = { right: "✓", wrong: "✗", unscored: "?" };

function tableRow(app, row, isSelected, matching, names) {
  const { run } = row.group;
  const badges = app.filters.filter((_, i) => (row.flags >> i) & 1)
    .map(([, label, meaning]) => el("span", { class: "badge", text: label,
      title: meaning }));
  const number = row.context ? `${row.sample}.${row.context}` : row.sample;
  const preview = cutText(textOf(row).trim(), 160);
  const choose = () => app.select(row.group, row.index);
  const dim = matching.size && !matching.has(row.index);
  return el("tr", {
    class: dim ? "faint" : "", "aria-selected": String(isSelected),
    on: { click: choose },
  },
  el("td", { class: "number" }, el("button", {
    type: "button", class: "plain", text: number, title: `sample ${number}`,
    data: { key: `row-${row.index}` },
  })),
  el("td", {}, el("span", { class: `verdict ${verdict(row)}`, title: verdict(row),
    text: VERDICTS[verdict(row)] })),
  el("td", { class: "number", text: brief(row.reward), title: exact(row.reward) }),
  ...names.map((name) => el("td", {}, bar(run, name, row))),
  el("td", { class: "number", text: row.size ? row.size + row.cut : "" }),
  el("td", { class: "badges" }, ...badges),
  el("td", { class: "preview" }, el("span", { class: "clip" },
    visible(preview, false))));
}

// A component as a bar from 0, on the scale of all its values in the run.
function bar(run, name, row) {
  const place = run.components.indexOf(name);
  run.bars ||= {};
  run.bars[name] ||= run.rows.reduce(([low, high], x) => [
    Math.min(low, x.components[place] ?? 0),
    Math.max(high, x.components[place] ?? 0)], [0, 0]);
  const value = row.components[place];
  const [low, high] = run.bars[name];
  const inner = el("span", { class: value < 0 ? "negative" : "positive" });
  const span = high - low || 1;
  inner.style.left = `${100 * (Math.min(value, 0) - low) / span}%`;
  inner.style.width = `${100 * Math.abs(value) / span}%`;
  return el("span", { class: "bar", title: `${visibleString(name)} ${exact(value)}` },
    el("span", { class: "rail" }, ...(value === null ? [] : [inner])),
    el("span", { class: "number", text: brief(value) }));
}

// One completion in full.
function completion(app, row) {
  const { state } = app;
  const names = colourNames(row.group.run);
  const parts = row.opening
    ? [el("h3", { text: "begins with" }), longText(row.opening, "prompt")] : [];
  if (hasTokens(row)) {
    const select = el("select", {
      "aria-label": "colour of tokens", data: { key: "colour" },
      on: { change: () => app.change({ colour: select.value }) },
    }, el("option", { value: "", text: "no colour" }), ...names.map((name) =>
      el("option", { value: name, text: COLOURS[name],
        selected: name === state.colour && "" })));
    parts.push(el("div", { class: "toolbar" }, "colour ", select,
      hasValue(row, state.colour) ? legend(app, state.colour) : "",
      key(row)), tokensView(app, row));
  } else {
    parts.push(longText(textOf(row), "tokens"));
    if (row.size) {
      parts.push(el("p", { class: "muted", text: "The numbers of its tokens are"
        + " left out to save space; --megabytes allows more." }));
    }
  }
  if (row.cut) {
    parts.push(el("p", { class: "muted",
      text: `${row.cut} tokens at its end are not in the log.` }));
  }
  if (row.error) {
    parts.push(el("h3", { text: "error" }), longText(row.error, "error"));
  }
  const number = row.context ? `${row.sample}, context ${row.context}` : row.sample;
  return el("div", { class: "completion" },
    el("div", { class: "heading" }, el("h3", { text: `sample ${number}` }),
      el("span", { class: "muted", text: about(row) }),
      el("button", {
        type: "button", text: state.base === row ? "compared from here" : "compare",
        "aria-pressed": String(state.base === row),
        title: "compare what is chosen next with this completion (d)",
        data: { key: "compare" },
        on: { click: () => app.compare(row) },
      })), ...parts, ...calls(row));
}

function about(row) {
  const parts = [`reward ${exact(row.reward)}`];
  if (row.correct !== null) parts.push(row.correct ? "correct" : "wrong");
  if (!row.ended) parts.push("cut off");
  return parts.join(", ");
}

// What the marks of tokens mean, as far as the row has them.
function key(row) {
  const parts = [];
  if (anyToken(row, "clipped", 1)) {
    parts.push(el("span", { class: "token clipped", text: "clipped" }));
  }
  if (!anyToken(row, "trained", 1) && hasValue(row, "trained")) {
    parts.push("none of it is trained");
  } else if (anyToken(row, "trained", 0)) {
    parts.push(el("span", { class: "token untrained", text: "not trained" }));
  }
  return el("span", { class: "legend" }, ...parts);
}

function calls(row) {
  if (!row.calls.length) return [];
  const items = row.calls.map((call) => {
    const { turn, blocked, ...texts } = call;
    const isBlocked = blocked === "true";
    return el("li", { class: isBlocked ? "call blocked" : "call" },
      el("b", { text: turn === undefined ? "call" : `turn ${turn}` }),
      isBlocked ? el("span", { class: "badge", text: "blocked" }) : "",
      ...Object.entries(texts).map(([name, text]) => el("div", { class: "part" },
        el("span", { class: "muted", text: visibleString(name) }),
        longText(text, "call-text", 1000))));
  });
  return [el("h3", { text: "calls of tools" }), el("ol", { class: "calls" }, ...items)];
}

// The chosen completion and the one that it is compared with.
function comparison(app, row) {
  const { base } = app.state;
  if (!base || base === row) return [];
  const byToken = hasTokens(base) && hasTokens(row);
  const pieces = (x) => (byToken ? tokenTexts(x)
    : textOf(x).split(/(\s+)/)).slice(0, 10000);
  const all = diff(pieces(base), pieces(row));
  const box = el("div", { class: "text diff" });
  for (const { kind, piece } of all.slice(0, 6000)) {
    const tag = { same: "span", out: "del", in: "ins" }[kind];
    box.append(el(tag, {}, visible(cutText(piece, 2000))));
  }
  const name = (x) => `step ${x.group.step}, sample ${x.sample}`;
  return [el("h3", {}, "difference: ", el("del", { text: name(base) }), " → ",
    el("ins", { text: name(row) }), byToken ? " by tokens" : " by words"), box];
}
