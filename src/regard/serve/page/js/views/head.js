// Loads the weights of a head for drawing, exact where the matrix is small.

import * as api from "../api.js";
import { coded, decoded, paletteOf, reach, shareIn, sheet } from "../paint.js";
import { axisName, hides, labels } from "../view.js";

const SIDE = 512; // pixels of a larger one

// the request of a trace, to be sent again with something else; a picture of one's own has a name in `text`
export function again(trace, state, other) {
  const { model, text, question, checkpoint, edits } = trace;
  const all = { model, text, question, checkpoint, edits, target: state.target, beam: state.beam, sampling: state.sampling, ...other };
  return Object.fromEntries(
    Object.entries(all).filter(([, value]) => value !== null && value !== undefined && value !== ""),
  );
}

// {rows, columns, names, values: exact or null, weights: for pictures, shape of those, visible: which of them, or null}
export async function headOf(trace, site, head) {
  const [rows, columns] = [site.n_q, site.n_k];
  const names = { down: labels(trace, site.queries, rows), across: labels(trace, site.keys, columns), titles: [site.queries, site.keys].map(axisName) };
  const window = [0, rows, 0, columns];
  const few = rows * columns <= api.CELLS;
  const place = [trace.id, site.name, head, window];
  const get = (stage) => (few ? api.cells(...place, stage) : api.map(...place, SIDE, SIDE, stage));
  const [{ data, shape }, seen] = await Promise.all([get("weights"), hides(trace, site) ? get("visible").catch(() => null) : null]);
  return { rows, columns, names, values: few ? data : null, weights: few ? data : decoded(data, site), shape, visible: seen?.data ?? null, palette: paletteOf(site) };
}

export function picture(matrix, area) {
  const { rows, columns, names, values, weights, shape, visible = null, palette = "weights" } = matrix;
  const { bytes } = coded(weights, palette);
  const value = (i, j) => values[i * columns + j];
  const share = shareIn(palette);
  const hidden = (i, j) => visible?.[i * columns + j] === 0;
  const cells = values && { value, hidden, share, palette };
  return { rows, columns, names, area, cells, sheet: sheet(bytes, ...shape, palette, null, visible) };
}

// b − a, cell by cell, about 0: {picture, range}
export function difference(a, b, area) {
  const { rows, columns, names, shape } = a;
  const change = a.weights.map((was, n) => b.weights[n] - was);
  const { bytes, range } = coded(change, "signed");
  const most = reach(range);
  const value = (i, j) => change[i * columns + j];
  const cells = a.values &&
    b.values && { value, hidden: () => false, share: shareIn("signed", most), palette: "signed" };
  return {
    range: [-most, most],
    picture: { rows, columns, names, area, cells, sheet: sheet(bytes, ...shape, "signed", range) },
  };
}
