// Text of a policy in the page: always as text, and always visible.

// What has no ink, moves other text, or piles up on it: control and format
// characters, marks of direction, spaces but the usual one, what fonts leave
// out, and the third and later marks on one letter.
const HIDDEN = new RegExp(
  "[\\p{C}\\p{Zl}\\p{Zp}\\p{Default_Ignorable_Code_Point}\\u2800]" +
  "|(?! )\\p{Zs}|(?<=\\p{M}{2})\\p{M}", "gu");

function escapeOf(character) {
  const code = character.codePointAt(0);
  if (character === "\n") return "↵";
  if (character === "\t") return "⇥";
  if (code < 0x100) return "\\x" + code.toString(16).padStart(2, "0");
  if (code < 0x10000) return "\\u" + code.toString(16).padStart(4, "0");
  return "\\u{" + code.toString(16) + "}";
}

// Text nodes and escapes; `breaks`: new lines are shown and also made.
function visible(text, breaks = true) {
  const parts = document.createDocumentFragment();
  let from = 0;
  for (const match of text.matchAll(HIDDEN)) {
    parts.append(text.slice(from, match.index));
    parts.append(el("span", { class: "escape", text: escapeOf(match[0]) }));
    if (match[0] === "\n" && breaks) parts.append("\n");
    from = match.index + match[0].length;
  }
  parts.append(text.slice(from));
  return parts;
}

// The same in one short string, where there is no room for marks.
function visibleString(text) {
  return cutText(text, 300).replace(HIDDEN, escapeOf);
}

function cutText(text, size) {
  if (text.length <= size) return text;
  const high = text.charCodeAt(size - 1);
  return text.slice(0, high >= 0xd800 && high < 0xdc00 ? size - 1 : size);
}

// A long text, of which more is shown on demand.
function longText(text, className, size = 4000) {
  const box = el("div", { class: `text ${className}` });
  let shown = cutText(text, size);
  box.append(visible(shown));
  const grow = () => {
    const more = cutText(text.slice(shown.length), 10 * size);
    button.before(visible(more));
    shown += more;
    button.textContent = moreLabel(text.length - shown.length, "characters");
    button.hidden = shown.length === text.length;
  };
  const button = el("button", {
    class: "more", type: "button", on: { click: grow },
    text: moreLabel(text.length - shown.length, "characters"),
  });
  if (shown.length < text.length) box.append(button);
  return box;
}

function moreLabel(number, what) {
  return `show more (${number.toLocaleString("en")} ${what} left)`;
}

// An element; no option makes markup of a string.
function el(tag, options = {}, ...children) {
  const { class: name, text, on, data, ...rest } = options;
  const node = document.createElement(tag);
  if (name) node.className = name;
  if (text !== undefined) node.textContent = text;
  for (const [event, handler] of Object.entries(on || {})) {
    node.addEventListener(event, handler);
  }
  Object.assign(node.dataset, data);
  for (const [key, value] of Object.entries(rest)) {
    if (value !== false && value !== undefined) node.setAttribute(key, value);
  }
  node.append(...children);
  return node;
}

// The shortest decimal that reads back as the same float32.
function exact(value) {
  if (value === null || value === undefined) return "–";
  if (Object.is(value, -0)) return "-0";
  if (!Number.isFinite(value) || Math.fround(value) !== value) {
    return String(value);
  }
  for (let digits = 1; digits < 9; digits++) {
    const text = value.toPrecision(digits);
    if (Math.fround(Number(text)) === value) return String(Number(text));
  }
  return String(Number(value.toPrecision(9)));
}

// A few digits, for tables.
function brief(value) {
  if (value === null || value === undefined) return "–";
  if (Number.isInteger(value) && Math.abs(value) < 1e6) return String(value);
  const size = Math.abs(value);
  if (size >= 1e5 || size < 1e-3) return value.toExponential(1);
  return String(Number(value.toPrecision(3)));
}

// Pieces of `after` and `before` in one list: "same", "out" and "in".
function diff(before, after) {
  let head = 0;
  const least = Math.min(before.length, after.length);
  while (head < least && before[head] === after[head]) head++;
  let tail = 0;
  while (tail < least - head
    && before[before.length - 1 - tail] === after[after.length - 1 - tail]) {
    tail++;
  }
  const same = (piece) => ({ kind: "same", piece });
  return [
    ...before.slice(0, head).map(same),
    ...diffMiddle(before.slice(head, before.length - tail),
      after.slice(head, after.length - tail)),
    ...before.slice(before.length - tail).map(same),
  ];
}

// By the longest common subsequence; of very long texts as a whole.
function diffMiddle(a, b) {
  const out = (piece) => ({ kind: "out", piece });
  const into = (piece) => ({ kind: "in", piece });
  if (a.length * b.length > 4e6) return [...a.map(out), ...b.map(into)];
  const width = b.length + 1;
  const common = new Uint16Array((a.length + 1) * width);
  for (let i = a.length - 1; i >= 0; i--) {
    for (let j = b.length - 1; j >= 0; j--) {
      common[i * width + j] = a[i] === b[j] ? common[(i + 1) * width + j + 1] + 1
        : Math.max(common[(i + 1) * width + j], common[i * width + j + 1]);
    }
  }
  const found = [];
  let [i, j] = [0, 0];
  while (i < a.length && j < b.length) {
    if (a[i] === b[j]) {
      found.push({ kind: "same", piece: a[i++] });
      j++;
    } else if (common[(i + 1) * width + j] >= common[i * width + j + 1]) {
      found.push(out(a[i++]));
    } else {
      found.push(into(b[j++]));
    }
  }
  return [...found, ...a.slice(i).map(out), ...b.slice(j).map(into)];
}
