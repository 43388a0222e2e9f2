// What a prompt shows, with the right box and those of one completion.

const MAX_BOXES = 20;
const PICTURE_SIDE = 192; // Pixels on the screen, of the longer side.
const BOX = /\[\s*(\d{1,5})\s*,\s*(\d{1,5})\s*,\s*(\d{1,5})\s*,\s*(\d{1,5})\s*\]/g;

function pictures(group, row) {
  const [images, right] = group.shown;
  if (!images.length) return [];
  const written = [...textOf(row).matchAll(BOX)].slice(0, MAX_BOXES)
    .map((found) => found.slice(1).map(Number));
  // Nothing says which of several images a box is of, and a name has no room.
  const boxes = images.length > 1 || !images[0].pixels ? [] : [
    ...(right.length ? [["right", right]] : []),
    ...written.map((box) => ["written", box])];
  const shown = images.map((image) => (image.pixels ? picture(image, boxes)
    : el("span", { class: "muted" }, visible(String(image.name), false))));
  const key = [...new Set(boxes.map(([kind]) => kind))].map((kind) =>
    el("span", { class: `box-key ${kind}`,
      text: kind === "right" ? "right box" : "box of this completion" }));
  return [el("h3", { text: images.length > 1 ? "images" : "image" }),
    el("div", { class: "pictures" }, ...shown, ...key)];
}

function picture(image, boxes) {
  const [columns, rows] = image.shape;
  const canvas = el("canvas", { role: "img",
    "aria-label": `image of ${image.size[0]} × ${image.size[1]} pixels` });
  [canvas.width, canvas.height] = [columns, rows];
  const pixels = canvas.getContext("2d").createImageData(columns, rows);
  const bytes = atob(image.pixels);
  for (let i = 0; i < columns * rows; i++) {
    for (let part = 0; part < 3; part++) {
      pixels.data[4 * i + part] = bytes.charCodeAt(3 * i + part);
    }
    pixels.data[4 * i + 3] = 255;
  }
  canvas.getContext("2d").putImageData(pixels, 0, 0);
  const frame = el("div", { class: "picture" }, canvas,
    ...boxes.map(([kind, box]) => outline(kind, box, image.size)));
  const scale = PICTURE_SIDE / Math.max(...image.size);
  frame.style.width = `${scale * image.size[0]}px`;
  frame.style.height = `${scale * image.size[1]}px`;
  return frame;
}

// A box as an outline; what of it lies outside of the image is cut off.
function outline(kind, [left, top, right, bottom], [width, height]) {
  const frame = el("span", { class: `box ${kind}`,
    title: `${kind}: ${left}, ${top}, ${right}, ${bottom}` });
  frame.style.left = `${100 * left / width}%`;
  frame.style.top = `${100 * top / height}%`;
  frame.style.width = `${100 * Math.max(right - left, 0) / width}%`;
  frame.style.height = `${100 * Math.max(bottom - top, 0) / height}%`;
  return frame;
}
