// Last chapter of the lecture view: Bahdanau's and Luong's scores.

import * as say from "./lecture_arithmetic.js";

const { row, column, cell, count, matrix, turned } = say;

const CALLED = {
  bahdanau: ["Bahdanau", "v_a · tanh(W_a q + U_a k)"],
  dot: ["Luong, dot", "q · k"],
  general: ["Luong, general", "q W k"],
  concat: ["Luong, concat", "v_a · tanh(W[q; k])"],
};

export function others(data) {
  const { given, others: found } = data;
  const [{ q, k, v }] = data.heads;
  const queries = count(q.length, "query ");
  const keys = count(k.length, "key ");
  const width = count(q[0].length);
  const hidden = count(given.wa.length);
  const arithmetic = {
    bahdanau: (i, j, to) => say.additive(given.va[0], found.bahdanau.wq[i], found.bahdanau.uk[j], to, []),
    dot: (i, j, to) => say.product(q[i], k[j], to, []),
    general: (i, j, to) => say.product(found.general.qw[i], k[j], to, []),
    concat: (i, j, to) => say.joined(given.va[0], q[i], k[j], found.concat.inner[i][j], to, []),
  };
  // the same query and key, by all four: the one that is pointed at first
  const scored = (name) => (i, j) => {
    const uses = [
      row("q-other", i),
      row("k-other", j),
      ...Object.keys(CALLED).map((other) => cell(`${other}-scores`, i, j)),
    ];
    const lines = Object.keys(CALLED).map((other) => ({
      name: CALLED[other][0],
      mine: other === name,
      ...arithmetic[other](i, j, found[other].scores[i][j]),
    }));
    return { ...arithmetic[name](i, j, found[name].scores[i][j]), uses, lines };
  };
  const panel = (name) => {
    const { scores, weights, context, exponentials, sums } = found[name];
    const id = (what) => `${name}-${what}`;
    const weighed = (i, j) => say.share(exponentials[i], sums[i][0], j, weights[i][j], [row(id("scores"), i)]);
    const mixed = (i, j) =>
      say.product(weights[i], turned(v)[j], context[i][j], [row(id("weights"), i), column("v-other", j)]);
    return {
      heading: CALLED[name][0],
      formula: CALLED[name][1],
      tables: [
        matrix(id("scores"), "scores", queries, keys, scores, { says: scored(name) }),
        matrix(id("weights"), "weights", queries, keys, weights, { kind: "weights", says: weighed }),
        matrix(id("context"), "context = weights v", queries, width, context, { says: mixed }),
      ],
    };
  };
  const input = (id, title, rows, columns) => matrix(id, title, rows, columns, given[id], { input: id });
  // as in the second chapter
  const projected = (name, rows, values) =>
    matrix(`${name}-other`, name, rows, width, values, {
      says: (i, j) => say.product(given.x[i], turned(given[`w${name}`])[j], values[i][j], []),
    });
  const both = [...width.map((n) => `q_${n}`), ...width.map((n) => `k_${n}`)];
  const copied = (i, j) => {
    const [name, at] = j < width.length ? ["W", j] : ["U", j - width.length];
    const uses = [cell(name === "W" ? "wa" : "ua", i, at)];
    return { left: `${name}a, ${i + 1}, ${at + 1}`, result: say.n(found.concat.w[i][j]), uses };
  };
  return {
    blocks: [
      { kind: "line", parts: [projected("q", queries, q), projected("k", keys, k), projected("v", keys, v)] },
      { kind: "panels", panels: Object.keys(CALLED).map(panel) },
      {
        kind: "line",
        folded: "Their matrices",
        parts: [
          input("wa", "W_a", hidden, width),
          input("ua", "U_a", hidden, width),
          input("va", "v_a", ["v_a"], hidden),
          input("wg", "W", width, width),
          matrix("concat-w", "W = [W_a U_a]", hidden, both, found.concat.w, { says: copied }),
        ],
      },
    ],
    walk: Object.keys(CALLED).map((name) => `${name}-scores`),
  };
}
