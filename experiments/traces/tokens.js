// The tokens of a completion: coloured by a number, with all numbers on a card.

// Name -> what it is called; those with a colour first, in this order.
const COLOURS = {
  ratio: "ratio", advantage: "advantage", entropy: "entropy, nats",
  value: "value", kl: "KL, nats", new_logp: "new log-prob, nats",
  old_logp: "old log-prob, nats", sampler_logp: "sampler log-prob, nats",
};
const MAX_TOKENS = 1500;

function colourNames(run) {
  return Object.keys(COLOURS).filter((name) => run.values.includes(name));
}

// A scale maps a number to [-1, 1]: 0 has no colour, 1 and -1 one each. It is
// the same for all runs of the page, and 2 % of the tokens are beyond its ends.
function scaleOf(app, name) {
  app.scales ||= {};
  app.scales[name] ||= makeScale(name, sampled(app, name));
  return app.scales[name];
}

function sampled(app, name) {
  const found = [];
  for (const run of app.runs) {
    const column = run.columns[name] || [];
    const stride = Math.max(1, Math.floor(column.length / 50000));
    for (let i = 0; i < column.length; i += stride) {
      if (Number.isFinite(column[i])) found.push(column[i]);
    }
  }
  return found;
}

// Whether a number differs between tokens; with one update a step, ratios do
// not.
function varies(app, name) {
  const values = sampled(app, name);
  return values.some((x) => x !== values[0]);
}

function makeScale(name, values) {
  const quantile = (list, part) => {
    const sorted = Float64Array.from(list).sort();
    return sorted[Math.floor(part * (sorted.length - 1))] ?? 0;
  };
  const clamp = (x) => Math.min(Math.max(x, -1), 1);
  if (name === "ratio") {
    const logs = values.filter((x) => x > 0).map((x) => Math.abs(Math.log(x)));
    const end = Math.max(quantile(logs, 0.98), 1e-6);
    return { of: (x) => clamp(Math.log(x) / end),
      ends: [Math.exp(-end), 1, Math.exp(end)] };
  }
  if (name.endsWith("_logp")) {
    const end = Math.min(quantile(values, 0.02), -1e-6);
    return { of: (x) => Math.max(0, clamp(x / end)), ends: [null, 0, end] };
  }
  if (values.some((x) => x < 0)) {
    const end = Math.max(quantile(values.map(Math.abs), 0.98), 1e-6);
    return { of: (x) => clamp(x / end), ends: [-end, 0, end] };
  }
  const end = Math.max(quantile(values, 0.98), 1e-6);
  return { of: (x) => clamp(x / end), ends: [null, 0, end] };
}

function legend(app, name) {
  const { ends: [low, middle, high] } = scaleOf(app, name);
  const parts = low === null
    ? [brief(middle), el("span", { class: "ramp one" }), brief(high)]
    : [brief(low), el("span", { class: "ramp cold" }), brief(middle),
      el("span", { class: "ramp one" }), brief(high)];
  return el("span", {
    class: "legend", title: "98 % of the tokens lie between the ends",
  }, ...parts);
}

function paint(span, scale, value) {
  const amount = scale.of(value);
  if (!(Math.abs(amount) > 0)) return;
  span.style.setProperty("--t", `${Math.round(Math.abs(amount) * 100)}%`);
  span.classList.add(amount > 0 ? "hot" : "cold");
}

// All tokens of a row; what the environment wrote is in boxes.
function tokensView(app, row) {
  const box = el("div", { class: "text tokens", role: "group",
    "aria-label": "tokens; arrow keys move between them" });
  let at = 0;
  const isTrained = anyToken(row, "trained", 1);
  let place = { node: box, observed: false, turn: null };
  const button = el("button", { class: "more", type: "button",
    on: { click: () => grow(10 * MAX_TOKENS) } });
  const grow = (number) => {
    const end = Math.min(row.size, at + number);
    let room = 8 * number; // Characters: a token may be a long one.
    const scale = hasValue(row, app.state.colour)
      ? scaleOf(app, app.state.colour) : null;
    for (; at < end && room > 0; at++) {
      room -= tokenText(row, at).length;
      place = placeOf(row, at, box, place);
      const span = tokenSpan(app, row, at, scale);
      if (isTrained && !valueAt(row, "trained", at)) {
        span.classList.add("untrained");
      }
      place.node.append(span);
    }
    if (at < row.size) {
      button.textContent = moreLabel(row.size - at, "tokens");
      box.append(button);
    } else {
      button.remove();
    }
  };
  grow(MAX_TOKENS);
  box.querySelector(".token")?.setAttribute("tabindex", "0");
  box.addEventListener("mouseover", (event) => card(app, row, event.target));
  box.addEventListener("focusin", (event) => card(app, row, event.target));
  box.addEventListener("mouseleave", () => hideCard());
  box.addEventListener("focusout", () => hideCard());
  box.addEventListener("keydown", (event) => walk(box, event));
  return box;
}

// Where a token goes: into the text, or into a box of the environment.
function placeOf(row, at, box, place) {
  const observed = hasValue(row, "observed")
    && Boolean(valueAt(row, "observed", at));
  const turn = hasValue(row, "turn") ? valueAt(row, "turn", at) : null;
  if (!observed) return { node: box, observed, turn };
  if (place.observed && place.turn === turn) return place;
  const label = turn === null ? "environment" : `environment, turn ${turn}`;
  const node = el("span", { class: "observed" },
    el("span", { class: "label", text: label }));
  box.append(node);
  return { node, observed, turn };
}

function tokenSpan(app, row, at, scale) {
  const span = el("span", { class: "token", tabindex: "-1", data: { at, key: `token-${at}` } });
  const text = tokenText(row, at);
  span.append(text ? visible(cutText(text, 2000)) : el("span", {
    class: "escape", text: "·",
  }));
  if (scale) paint(span, scale, valueAt(row, app.state.colour, at));
  if (hasValue(row, "clipped") && valueAt(row, "clipped", at)) {
    span.classList.add("clipped");
  }
  return span;
}

// Whether a token of a row has a value that is wanted.
function anyToken(row, name, wanted) {
  if (!hasValue(row, name)) return false;
  const column = row.group.run.columns[name];
  return column.subarray(row.start, row.start + row.size).includes(wanted);
}

// The numbers of a token, exact to float32.
function card(app, row, target) {
  const span = target.closest?.(".token");
  if (!span) return;
  const at = Number(span.dataset.at);
  const known = valueNames(row);
  const first = Object.keys(COLOURS).filter((name) => known.includes(name));
  const lines = [...new Set([...first, ...known])].map((name) => {
    const value = valueAt(row, name, at);
    const isFlag = ["clipped", "trained", "observed"].includes(name);
    if (isFlag) return [name, value ? "yes" : "no"];
    // Numbers of the policy are not known of what an environment wrote.
    return [COLOURS[name] || name, Number.isNaN(value) ? "–" : exact(value)];
  });
  const place = document.getElementById("card");
  place.replaceChildren(el("p", {}, el("b", {},
    visible(cutText(tokenText(row, at), 200), false)),
  el("span", { class: "muted", text: ` id ${tokenId(row, at)}, token ${at}` })),
  el("dl", {}, ...lines.flatMap(([name, value]) => [
    el("dt", { text: name }), el("dd", { text: value })])));
  place.hidden = false;
  const box = span.getBoundingClientRect();
  const { offsetWidth: width, offsetHeight: height } = place;
  const left = Math.min(box.left, document.documentElement.clientWidth - width - 8);
  const below = box.bottom + 6;
  const top = below + height > window.innerHeight ? box.top - height - 6 : below;
  place.style.left = `${Math.max(8, left)}px`;
  place.style.top = `${Math.max(8, top)}px`;
}

function hideCard() {
  document.getElementById("card").hidden = true;
}

// Arrow keys, Home and End move between tokens.
function walk(box, event) {
  const from = event.target.closest?.(".token");
  if (!from) return;
  const all = [...box.querySelectorAll(".token")];
  const at = all.indexOf(from);
  const to = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0,
    End: all.length - 1 }[event.key];
  if (to === undefined || !all[to]) return;
  event.preventDefault();
  event.stopPropagation();
  from.setAttribute("tabindex", "-1");
  all[to].setAttribute("tabindex", "0");
  all[to].focus();
}
