// Metrics over steps. The first one is drawn large, above the slider.

const USUAL_METRICS = ["reward/mean", "accuracy", "eval/accuracy",
  "entropy/mean", "length/mean"];
const MARGIN = { left: 46, right: 10, top: 6, bottom: 16 };

// Metrics that are drawn until the reader chooses others.
function usualMetrics(runs) {
  const names = metricNames(runs);
  const known = USUAL_METRICS.filter((name) => names.includes(name));
  return known.length ? known : names.slice(0, 3);
}

function metricNames(runs) {
  return [...new Set(runs.flatMap((run) => Object.keys(run.metrics.series)))]
    .sort();
}

function stepRange(runs) {
  const ends = runs.flatMap((run) => [run.metrics.steps[0],
    run.metrics.steps.at(-1), run.groups[0]?.step, run.groups.at(-1)?.step])
    .filter((x) => x !== undefined);
  return ends.length ? [Math.min(...ends), Math.max(...ends)] : [0, 0];
}

function drawCurves(app) {
  const { state, runs } = app;
  const panels = document.getElementById("panels");
  const more = document.getElementById("more-panels");
  const [first, ...rest] = state.metrics;
  app.cursors = [];
  panels.replaceChildren(...(first ? [panel(app, first, 130)] : []));
  more.replaceChildren(...rest.map((name) => panel(app, name, 64)), adder(app));
  drawAlarms(app);
  for (const cursor of app.cursors) cursor.draw();
  const [low, high] = stepRange(runs);
  const slider = document.getElementById("step");
  slider.min = low;
  slider.max = high;
  moveCursor(app);
}

function adder(app) {
  const { state } = app;
  const names = metricNames(app.runs).filter((x) => !state.metrics.includes(x));
  const select = el("select", {
    "aria-label": "add a metric",
    on: { change: () => app.change({ metrics: [...state.metrics, select.value] }) },
  }, el("option", { text: "add a metric …", value: "" }),
  ...names.map((name) => el("option", { text: visibleString(name), value: name })));
  return el("div", { class: "adder" }, select);
}

function panel(app, name, height) {
  const values = app.runs.map((run) => el("span", {
    class: `series-${run.index}`,
  }));
  const drop = el("button", {
    type: "button", class: "plain", text: "×", title: "leave out",
    on: {
      click: () => app.change({
        metrics: app.state.metrics.filter((x) => x !== name),
      }),
    },
  });
  const svg = svgEl("svg", { height, role: "img" });
  const figure = el("figure", {}, el("figcaption", {},
    el("b", { text: visibleString(name) }), ...values, drop), svg);
  const draw = () => plot(app, name, svg, height);
  app.cursors.push({ name, values, svg, draw });
  pickSteps(app, svg);
  return figure;
}

function svgEl(tag, attributes = {}) {
  const root = document.getElementById("svg-root");
  const node = document.createElementNS(root.namespaceURI, tag);
  for (const [key, value] of Object.entries(attributes)) {
    node.setAttribute(key, value);
  }
  return node;
}

// Clicks and drags in a plot choose a step.
function pickSteps(app, svg) {
  const pick = (event) => {
    const box = svg.getBoundingClientRect();
    const inner = box.width - MARGIN.left - MARGIN.right;
    const part = (event.clientX - box.left - MARGIN.left) / inner;
    const [low, high] = stepRange(app.runs);
    const step = low + Math.min(Math.max(part, 0), 1) * (high - low);
    app.goToStep(Math.round(step));
  };
  svg.addEventListener("pointerdown", pick);
  svg.addEventListener("pointermove", (event) => {
    if (event.buttons) pick(event);
  });
}

function plot(app, name, svg, height) {
  const width = svg.parentNode.clientWidth || 600;
  svg.setAttribute("width", width);
  svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  svg.setAttribute("aria-label", `${name} over steps`);
  const lines = app.runs.map((run) => points(run, name));
  const all = lines.flat().map(([, y]) => y);
  const isMain = height > 100;
  const bottom = isMain ? MARGIN.bottom : 4;
  let [low, high] = limits(all);
  const [first, last] = stepRange(app.runs);
  const x = (step) => MARGIN.left + (step - first) / (last - first || 1)
    * (width - MARGIN.left - MARGIN.right);
  const y = (value) => height - bottom - (value - low) / (high - low)
    * (height - bottom - MARGIN.top);
  svg.replaceChildren();
  for (const tick of all.length ? ticks(low, high, isMain ? 4 : 3) : []) {
    svg.append(svgEl("line", { class: "grid", x1: MARGIN.left,
      x2: width - MARGIN.right, y1: y(tick), y2: y(tick) }));
    label(svg, MARGIN.left - 6, y(tick) + 4, brief(tick), "end");
  }
  if (isMain) {
    for (const tick of ticks(first, last, Math.max(2, width / 120))) {
      const isLast = x(tick) > width - 24;
      label(svg, isLast ? width - 2 : x(tick), height - 3, String(tick),
        isLast ? "end" : "middle");
    }
    phases(app.runs[0], svg, x, height - bottom);
    tracedSteps(app, svg, x, height - bottom);
  }
  lines.forEach((line, run) => curve(svg, line, x, y, run));
  for (const run of app.runs) {
    for (const [step, rule] of isMain ? run.alarms : []) {
      const at = x(step);
      const mark = svgEl("path", { class: "alarm",
        d: `M${at - 5},${MARGIN.top - 5}h10l-5,9z` });
      const title = svgEl("title");
      title.textContent = visibleString(`step ${step}: ${rule}`);
      mark.append(title);
      svg.append(svgEl("line", { class: "alarm", x1: at, x2: at,
        y1: MARGIN.top, y2: height - bottom }), mark);
    }
  }
  const line = svgEl("line", { class: "cursor", y1: 0, y2: height - bottom });
  svg.append(line);
  svg.moveTo = (step) => {
    line.setAttribute("x1", x(step));
    line.setAttribute("x2", x(step));
  };
}

// Where a phase begins, and its name.
function phases(run, svg, x, bottom) {
  const { steps, phases: names } = run.metrics;
  names.forEach((name, i) => {
    if (name === names[i - 1] || (i === 0 && name === names.at(-1))) return;
    const at = x(steps[i]);
    svg.append(svgEl("line", { class: "phase", x1: at, x2: at, y1: MARGIN.top,
      y2: bottom }));
    label(svg, at + 4, MARGIN.top + 9, visibleString(name), "start");
  });
}

// Small ticks where groups were traced.
function tracedSteps(app, svg, x, bottom) {
  const steps = new Set(app.runs.flatMap((run) => run.groups.map((g) => g.step)));
  const shown = new Set([...steps].map((step) => Math.round(x(step))));
  const path = [...shown].map((at) => `M${at},${bottom}v-4`).join("");
  svg.append(svgEl("path", { class: "traced", d: path }));
}

function label(svg, x, y, text, anchor) {
  const node = svgEl("text", { x, y, "text-anchor": anchor });
  node.textContent = text;
  svg.append(node);
}

function points(run, name) {
  const series = run.metrics.series[name] || [];
  return series.map((value, i) => [run.metrics.steps[i], value])
    .filter(([, value]) => value !== null);
}

function limits(values) {
  let [low, high] = [Infinity, -Infinity];
  for (const value of values) {
    low = Math.min(low, value);
    high = Math.max(high, value);
  }
  if (low > high) return [0, 1];
  const pad = (high - low) * 0.04 || Math.abs(low) * 0.1 || 0.5;
  return [low - pad, high + pad];
}

function ticks(low, high, number) {
  const raw = (high - low) / number || 1;
  const power = 10 ** Math.floor(Math.log10(raw));
  const unit = power * ([1, 2, 5, 10].find((x) => x * power >= raw) || 10);
  const found = [];
  for (let i = Math.ceil(low / unit); i * unit <= high; i++) {
    found.push(Number((i * unit).toPrecision(12)));
  }
  return found;
}

// A thin line of all values, and a running mean of a thirtieth of them.
function curve(svg, line, x, y, run) {
  const path = (list) => list.map(([step, value], i) =>
    `${i ? "L" : "M"}${x(step).toFixed(1)},${y(value).toFixed(1)}`).join("");
  if (line.length < 60) {
    svg.append(svgEl("path", { class: `line series-${run}`, d: path(line) }));
    for (const [step, value] of line) {
      svg.append(svgEl("circle", { class: `dot series-${run}`, cx: x(step),
        cy: y(value), r: 2.2 }));
    }
    return;
  }
  svg.append(svgEl("path", { class: `raw series-${run}`, d: path(line) }));
  const half = Math.ceil(line.length / 60);
  const sums = [0];
  for (const [, value] of line) sums.push(sums.at(-1) + value);
  const smooth = line.map(([step], i) => {
    const from = Math.max(0, i - half);
    const to = Math.min(line.length, i + half + 1);
    return [step, (sums[to] - sums[from]) / (to - from)];
  });
  svg.append(svgEl("path", { class: `line series-${run}`, d: path(smooth) }));
}

function moveCursor(app) {
  const { step } = app.state;
  for (const { name, values, svg } of app.cursors || []) {
    svg.moveTo?.(step);
    app.runs.forEach((run, i) => {
      values[i].textContent = brief(valueAtStep(run, name, step));
    });
  }
  document.getElementById("step").value = step;
  document.getElementById("step-shown").textContent = `step ${step}`;
}

// The value at a step, or the last one before it.
function valueAtStep(run, name, step) {
  const { steps, series } = run.metrics;
  let found = null;
  (series[name] || []).forEach((value, i) => {
    if (steps[i] <= step && value !== null) found = value;
  });
  return found;
}

function drawAlarms(app) {
  const name = (run) => (app.runs.length < 2 ? "" : el("span", {
    class: `series-${run.index}`, text: `${visibleString(run.name)}: `,
  }));
  const chips = app.runs.flatMap((run) => [
    ...run.alarms.map(([step, rule, text]) => el("button", {
      type: "button", class: "alarm-chip", title: "go there",
      on: { click: () => app.goToStep(step) },
    }, name(run), el("b", { text: `▲ ${step} ` }), visibleString(rule),
    el("span", { class: "muted", text: ` ${visibleString(text)}` }))),
    ...run.doubts.map((text) => el("p", { class: "doubt" }, name(run),
      `doubt: ${visibleString(text)}`)),
  ]);
  document.getElementById("alarms").replaceChildren(...chips);
}
