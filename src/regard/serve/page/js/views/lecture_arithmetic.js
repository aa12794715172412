// Arithmetic of a cell as text, with the cells it uses.

import { digits } from "../dom.js";

export const n = (value) => (value === null ? "−∞" : digits(value));
export const within = (value) => (value < 0 ? `(${n(value)})` : n(value)); // 2·(−1) reads better than 2·−1

const line = (left, result, uses = []) => ({ left, result: n(result), uses });

// "1·0 + 0·2 + 1·1 = 1", and what the parts that are not shown add
export function product(a, b, total, uses, rest = null) {
  const parts = a.map((value, m) => `${m ? within(value) : n(value)}·${within(b[m])}`);
  return line([...parts, ...more(rest)].join(" + "), total, uses);
}

const more = (rest) => (rest && rest.count > 0 ? [`${within(rest.value)} from ${rest.count} more ${rest.what}`] : []);

export const divided = (score, root, result, uses) => line(`${n(score)} / ${n(root)}`, result, uses);

export function hidden(score, visible, result, uses) {
  return visible
    ? line(`visible: ${n(score)} stays`, result, uses)
    : line(`masked: ${n(score)} →`, result, uses);
}

export function added(score, bias, visible, result, uses) {
  if (!visible) return line(`masked: ${n(score)} →`, result, uses);
  return bias
    ? line(`${n(score)} + ${within(bias)} position bias`, result, uses)
    : hidden(score, true, result, uses);
}

export function exponential(score, peak, result, uses) {
  if (peak === null) return line("every key is masked", result, uses);
  return line(score === null ? "hidden: exp(−∞)" : `exp(${n(score)} − ${within(peak)})`, result, uses);
}

export function share(exponentials, sum, j, result, uses, more = 0) {
  if (!sum) return line("every key is masked, so the weight is", result, uses);
  const all = exponentials.map(n).join(" + ") + (more > 0 ? ` + … ${more} more` : "");
  return line(`${n(exponentials[j])} / (${all}) = ${n(exponentials[j])} / ${n(sum)}`, result, uses);
}

// Bahdanau: v · tanh(W q + U k)
export function additive(v, wq, uk, result, uses, rest = null) {
  const parts = v.map((value, m) => `${m ? within(value) : n(value)}·tanh(${n(wq[m])} + ${within(uk[m])})`);
  return line([...parts, ...more(rest)].join(" + "), result, uses);
}

// Luong's concat: v · tanh(W [q; k])
export function joined(v, q, k, inner, result, uses) {
  const parts = v.map((value, m) => `${m ? within(value) : n(value)}·tanh(${n(inner[m])})`);
  return line(`W[q; k] of [${[...q, ...k].map(n).join(" ")}]: ${parts.join(" + ")}`, result, uses);
}

export const spoken = ({ left, result }) => `${left} = ${result}`;
export const row = (table, i) => ({ table, i });
export const column = (table, j) => ({ table, j });
export const cell = (table, i, j) => ({ table, i, j });
export const count = (size, name = "") => Array.from({ length: size }, (_, n) => `${name}${n + 1}`);

// a table: its rows' and columns' names, its numbers, and with `says` how each of them is made
export const matrix = (id, title, rows, columns, values, more = {}) => ({ id, title, rows, columns, values, ...more });

export const turned = (matrix) => matrix[0].map((_, j) => matrix.map((line) => line[j]));
