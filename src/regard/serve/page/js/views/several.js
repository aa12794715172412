// Several heads at once, each in its own colour: stripes of a cell, bars of a row, a legend and the numbers of a cell.

import * as api from "../api.js";
import { button, figure, h, replace, table, token } from "../dom.js";
import { decoded, headColours, opaque, rgb } from "../paint.js";
import { store } from "../store.js";
import { headName, strongest } from "../view.js";
import { attends } from "./cell.js";

const STRIPE = 2; // pixels: thinner ones cannot be told apart, so the head with the largest weight has the cell

// the weights of each head in a window: numbers where they are few, else as a picture of so many pixels
export function weightsOf(trace, heads, window, few, most) {
  return Promise.all(heads.map(async ({ site, head }) => {
    const place = [trace.id, site.name, head, window];
    const { data, shape } = await (few ? api.cells(...place) : api.map(...place, ...most));
    return { values: few ? data : decoded(data, site), shape };
  }));
}

// a stripe of a cell for each head, from left to right, the more of its colour the larger √weight; visible: 0 is masked
export function striped(all, wide, paper, visible) {
  const [rows, columns] = all[0].shape;
  const stripes = wide >= STRIPE * all.length ? all.length : 1;
  const canvas = new OffscreenCanvas(columns * stripes, rows);
  const image = new ImageData(columns * stripes, rows);
  const pixels = new Uint32Array(image.data.buffer);
  const [back, ...shades] = [paper, ...headColours()].map(rgb);
  const mix = (n, weight) => opaque(back.map((from, part) => Math.round(from + (shades[n][part] - from) * Math.sqrt(Math.min(Math.max(weight, 0), 1)))));
  for (let cell = 0; cell < rows * columns; cell++) {
    if (visible && visible[cell] === 0) {
      pixels.fill(opaque(back), cell * stripes, (cell + 1) * stripes);
      continue;
    }
    let best = 0;
    for (let n = 1; n < all.length; n++) if (all[n].values[cell] > all[best].values[cell]) best = n;
    for (let n = 0; n < stripes; n++) pixels[cell * stripes + n] = stripes > 1 ? mix(n, all[n].values[cell]) : mix(best, all[best].values[cell]);
  }
  canvas.getContext("2d").putImageData(image, 0, 0);
  return { sheet: canvas, stripes };
}

// one row of every head as bars under the plot, side by side
export function drawRows(context, plot, rows, ink, height) {
  const [, , left, right] = plot.window;
  const base = plot.top + plot.height + 10 + height;
  const most = rows.reduce((size, row) => row.subarray(left, right).reduce((one, weight) => Math.max(one, weight), size), 1e-9);
  const wide = plot.wide / rows.length;
  rows.forEach((row, n) => {
    context.fillStyle = headColours()[n];
    for (let key = left; key < right; key++) {
      const length = (row[key] / most) * height;
      context.fillRect(plot.left + (key - left) * plot.wide + n * wide, base - length, Math.max(wide - (wide > 4 ? 1 : 0), 0.5), length);
    }
  });
  context.fillStyle = ink.frame;
  context.fillRect(plot.left, base, plot.width, 1);
}

const swatch = (n) => h.span({ class: "swatch", "aria-hidden": "true", style: { background: headColours()[n] } });

const named = ({ site, head }, n) => h.th({ scope: "row" }, swatch(n), `${site.name} ${head}`);

// every head with its colour; a click makes it the one that other views show
export function headLegend(heads, state, note) {
  const item = ({ site, head }, n) => {
    const here = site.name === state.site && head === state.head;
    return button([swatch(n), headName({ site, head })], () => store.go({ site: site.name, head }), { class: "quiet small", "aria-current": here ? "true" : null, title: "Choose this head for the other views" });
  };
  return h.div({ class: "keys head-keys" }, heads.map(item), h.span({ class: "muted small" }, note));
}

// the exact weight of every head in one cell, and what each attends to most in its row
export function headsCard(card, { row, column, heads, rows, names }) {
  const line = (one, n) => [named(one, n), figure(rows[n][column], 4)];
  const most = (one, n) => strongest(rows[n], 1, Number.MIN_VALUE).map((key) => [named(one, n), token(names.across[key])]);
  replace(
    card,
    h.section(attends(names.down[row], names.across[column]), h.p({ class: "muted small" }, `query ${row}, key ${column}`)),
    h.section(table(["head", "weight"], heads.map(line), { class: "plain by-head" })),
    h.section(h.h3("Strongest key of this row"), table([], heads.flatMap(most), { class: "plain by-head" })),
    h.section(button("q, k, v", () => store.go({ query: row, key: column, view: "pair" }))),
  );
}

// one token, and [query, key, weight, which head] of those it is tied to; `at` says which of the two is the other token
export function tokenHeads(card, name, what, found, { heads, others, at }) {
  const short = ({ site, head }, n) => h.th({ scope: "row", title: site.name }, swatch(n), h.span({ class: "hidden-text" }, `${site.name}, `), `head ${head}`);
  const rows = found.map((one) => [short(heads[one[3]], one[3]), token(others[one[at]]), figure(one[2], 4)]);
  replace(
    card,
    h.section(h.h3({ class: "headline" }, token(name), h.span({ class: "muted" }, what))),
    h.section(table(["head", "token", "weight"], rows, { class: "plain by-head" })),
  );
}
