// Zoom and pan: wheel, drag, pinch and keys change the window of a matrix.

import { pointer } from "./dom.js";

const FEWEST = 4; // cells that stay in sight when zoomed in

export function whole(rows, columns) {
  return [0, rows, 0, columns];
}

export function sane(window, rows, columns) {
  if (!window) return whole(rows, columns);
  const side = (from, to, count) => {
    const size = Math.min(count, Math.max(Math.min(FEWEST, count), Math.round(to - from)));
    const start = Math.min(Math.max(0, Math.round(from)), count - size);
    return [start, start + size];
  };
  return [...side(window[0], window[1], rows), ...side(window[2], window[3], columns)];
}

export function isWhole(window, rows, columns) {
  return window[1] - window[0] >= rows && window[3] - window[2] >= columns;
}

// by a factor (above 1: closer), about a cell that keeps its place
export function zoomed(window, factor, [row, column], rows, columns) {
  const side = (from, to, at, count) => {
    const size = to - from;
    let next = Math.round(size / factor);
    if (next === size) next += factor > 1 ? -1 : 1;
    next = Math.min(count, Math.max(Math.min(FEWEST, count), next));
    const share = (at + 0.5 - from) / size;
    return [at + 0.5 - share * next, at + 0.5 + (1 - share) * next];
  };
  return sane([...side(window[0], window[1], row, rows), ...side(window[2], window[3], column, columns)], rows, columns);
}

export function panned(window, down, across, rows, columns) {
  const [height, width] = [window[1] - window[0], window[3] - window[2]];
  const top = Math.min(Math.max(0, Math.round(window[0] + down)), rows - height);
  const left = Math.min(Math.max(0, Math.round(window[2] + across)), columns - width);
  return [top, top + height, left, left + width];
}

// the window moved as little as needed to have a cell in it
export function following(window, row, column, rows, columns) {
  const need = (from, to, at) => (at < from ? at - from : at >= to ? at - to + 1 : 0);
  return panned(window, need(window[0], window[1], row), need(window[2], window[3], column), rows, columns);
}

// listens on a canvas; `here` gives {window, rows, columns, plot, cellAt(x, y)}, `move(window)` takes the new one,
// `tap(cell)` a click, `hover(cell | null)` the pointer
export function navigate(canvas, { here, move, tap, hover, open }) {
  const fingers = new Map();
  let start = null; // where a drag began
  let spread = 0;

  const at = (event) => pointer(canvas, event);
  const near = (x, y) => {
    const { plot, window } = here();
    const row = Math.min(Math.max(Math.floor((y - plot.top) / plot.high), 0), plot.rows - 1);
    const column = Math.min(Math.max(Math.floor((x - plot.left) / plot.wide), 0), plot.columns - 1);
    return [window[0] + row, window[2] + column];
  };

  canvas.addEventListener(
    "wheel",
    (event) => {
      const { window, rows, columns } = here();
      if (event.deltaY > 0 && isWhole(window, rows, columns)) return; // nothing to show more of: the page may scroll
      event.preventDefault();
      const factor = Math.exp(-Math.sign(event.deltaY) * Math.min(Math.abs(event.deltaY), 100) * 0.0025);
      move(zoomed(window, factor, near(...at(event)), rows, columns));
    },
    { passive: false },
  );
  canvas.addEventListener("pointerdown", (event) => {
    if (event.button !== 0) return;
    const [x, y] = at(event);
    fingers.set(event.pointerId, [x, y]);
    canvas.setPointerCapture(event.pointerId);
    start = { x, y, window: here().window, moved: false };
    spread = distance(fingers);
  });
  canvas.addEventListener("pointermove", (event) => {
    const [x, y] = at(event);
    if (!fingers.has(event.pointerId)) return hover(here().cellAt(x, y));
    fingers.set(event.pointerId, [x, y]);
    const { plot, window, rows, columns } = here();
    if (fingers.size === 2) {
      const wide = distance(fingers);
      if (Math.abs(wide - spread) < 12) return undefined;
      const [a, b] = [...fingers.values()];
      move(zoomed(window, wide / spread, near((a[0] + b[0]) / 2, (a[1] + b[1]) / 2), rows, columns));
      spread = wide;
      start.moved = true;
      return undefined;
    }
    if (Math.hypot(x - start.x, y - start.y) > 4) start.moved = true;
    if (start.moved) {
      move(panned(start.window, (start.y - y) / plot.high, (start.x - x) / plot.wide, rows, columns));
    }
    return undefined;
  });
  const release = (event) => {
    const known = fingers.delete(event.pointerId);
    const cell = here().cellAt(...at(event));
    if (known && event.type === "pointerup" && start && !start.moved && cell) tap(cell);
    if (fingers.size === 0) start = null;
  };
  canvas.addEventListener("pointerup", release);
  canvas.addEventListener("pointercancel", release);
  canvas.addEventListener("pointerleave", () => hover(null));
  canvas.addEventListener("dblclick", () => open());
}

function distance(fingers) {
  const [a, b] = [...fingers.values()];
  return b ? Math.hypot(a[0] - b[0], a[1] - b[1]) : 0;
}

// arrows move the cursor, with Shift the window; + - 0 zoom. Gives {cell?, window?} or null when the key means nothing
export function keyed(event, { window, rows, columns, cell }) {
  if (event.ctrlKey || event.metaKey || event.altKey) return null;
  const [row, column] = cell;
  const page = Math.max(1, Math.round((window[1] - window[0]) * 0.8));
  const steps = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1], PageUp: [-page, 0], PageDown: [page, 0] };
  const step = steps[event.key];
  if (step && event.shiftKey) {
    const far = [Math.ceil((window[1] - window[0]) / 8), Math.ceil((window[3] - window[2]) / 8)];
    return { window: panned(window, step[0] * far[0], step[1] * far[1], rows, columns) };
  }
  const to = step ? [row + step[0], column + step[1]] : { Home: [row, 0], End: [row, columns - 1] }[event.key];
  if (to) {
    const next = [Math.min(Math.max(to[0], 0), rows - 1), Math.min(Math.max(to[1], 0), columns - 1)];
    return { cell: next, window: following(window, ...next, rows, columns) };
  }
  if (event.key === "+" || event.key === "=") return { window: zoomed(window, 1.5, cell, rows, columns) };
  if (event.key === "-") return { window: zoomed(window, 1 / 1.5, cell, rows, columns) };
  if (event.key === "0") return { window: whole(rows, columns) };
  return null;
}
