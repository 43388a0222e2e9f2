// What the page holds: columns, unpacked once.

const GROUP_FIELDS = ["step", "phase", "split", "promptId", "record", "prompt",
  "chosen", "first", "count", "score", "shown"];
const ROW_FIELDS = ["sample", "context", "reward", "correct", "ended", "cut",
  "components", "opening", "error", "calls", "flags", "text", "start", "size", "names"];

async function loadData() {
  const packed = JSON.parse(document.getElementById("data").textContent);
  const texts = await unzip(packed.texts);
  const content = JSON.parse(new TextDecoder().decode(texts));
  const numbers = await unzip(packed.numbers);
  content.runs.forEach((run, index) => prepare(run, index, numbers));
  return content;
}

async function unzip(base64) {
  const binary = atob(base64);
  const bytes = new Uint8Array(binary.length);
  for (let i = 0; i < bytes.length; i++) bytes[i] = binary.charCodeAt(i);
  const stream = new Blob([bytes]).stream()
    .pipeThrough(new DecompressionStream("gzip"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

function named(fields, values) {
  return Object.fromEntries(fields.map((field, i) => [field, values[i]]));
}

function prepare(run, index, numbers) {
  run.index = index;
  run.groups = run.groups.map((x) => named(GROUP_FIELDS, x));
  run.rows = run.rows.map((x) => named(ROW_FIELDS, x));
  run.columns = {};
  for (const array of run.arrays) {
    run.columns[array.name] = unpack(numbers, array);
  }
  run.ranges = {};
  run.groups.forEach((group, at) => {
    group.index = at;
    group.run = run;
    for (let i = 0; i < group.count; i++) {
      const row = run.rows[group.first + i];
      row.group = group;
      row.index = group.first + i;
    }
  });
  run.times = new Map(); // Key of a prompt -> its groups, in order.
  for (const group of run.groups) {
    const key = promptKey(group);
    if (!run.times.has(key)) run.times.set(key, []);
    run.times.get(key).push(group);
  }
}

// The bytes of 32-bit numbers are sorted by their place in the number.
function unpack(bytes, { kind, start, size }) {
  if (kind === "b") return bytes.subarray(start, start + size);
  const plain = new Uint8Array(4 * size);
  for (let place = 0; place < 4; place++) {
    const from = start + place * size;
    for (let i = 0; i < size; i++) plain[4 * i + place] = bytes[from + i];
  }
  return kind === "f" ? new Float32Array(plain.buffer)
    : new Int32Array(plain.buffer);
}

function promptOf(group) {
  return group.run.prompts[group.prompt];
}

function promptKey(group) {
  return group.record >= 0 ? `${group.split} ${group.record}`
    : `${group.split} ${promptOf(group)}`;
}

function rowsOf(group) {
  return group.run.rows.slice(group.first, group.first + group.count);
}

function hasTokens(row) {
  return row.start >= 0;
}

function tokenText(row, at) {
  const { vocabulary, columns } = row.group.run;
  return vocabulary[columns.tokens[row.start + at]][1];
}

function tokenId(row, at) {
  const { vocabulary, columns } = row.group.run;
  return vocabulary[columns.tokens[row.start + at]][0];
}

function tokenTexts(row) {
  return Array.from({ length: row.size }, (_, at) => tokenText(row, at));
}

// The completion as its verifier read it.
function textOf(row) {
  if (typeof row.text === "string") return row.text;
  let text = "";
  for (let at = 0; at < row.text; at++) text += tokenText(row, at);
  return text;
}

// Names of the numbers that a row has for its tokens.
function valueNames(row) {
  return row.group.run.values.filter((_, i) => (row.names >> i) & 1);
}

function hasValue(row, name) {
  const place = row.group.run.values.indexOf(name);
  return hasTokens(row) && place >= 0 && Boolean((row.names >> place) & 1);
}

function valueAt(row, name, at) {
  return row.group.run.columns[name][row.start + at];
}

function mean(values) {
  return values.reduce((sum, x) => sum + x, 0) / values.length;
}
