// Chapters of the worked example: tables, layout and the arithmetic of each cell.

import * as say from "./lecture_arithmetic.js";
import { others } from "./lecture_others.js";

const { row, column, cell, count, matrix, turned } = say;

// chapter by chapter: {blocks, walk (ids of the tables whose cells are the steps), controls}
export function stages(data) {
  const all = tables(data);
  const line = (...parts) => ({ kind: "line", parts });
  const cross = (left, ...pairs) => ({ kind: "cross", left, pairs });
  const root = `÷ ${data.given.scaled ? "√d" : "1"} =`;
  const [first, z] = [
    { ...all.weights, title: "weights, head 1" },
    { ...all.z, title: "head_1" },
  ];
  return [
    { blocks: [line(all.x)], walk: [] },
    {
      blocks: [cross(all.x, [all.wq, all.q], [all.wk, all.k], [all.wv, all.v])],
      walk: ["q", "k", "v"],
    },
    { blocks: [cross(all.q, [all.kt, all.scores])], walk: ["scores"] },
    {
      blocks: [
        line(all.scores, root, all.scaled),
        { ...line(all.plain, all.divided), heading: "What softmax makes of them" },
      ],
      walk: ["scaled"],
      controls: ["scale"],
    },
    {
      blocks: [
        line(all.scaled, "where", all.mask, "=", all.masked),
        { ...line(...ahead(data.look_ahead)), heading: "The second lecture's look-ahead mask" },
      ],
      walk: ["masked"],
      controls: ["mask"],
    },
    {
      blocks: [line(all.masked, "→", all.exponentials, "→", all.weights)],
      walk: ["exponentials", "weights"],
      controls: ["scale", "mask"],
    },
    {
      blocks: [
        cross(all.weights, [all.v, all.z]),
        {
          ...cross(all.plain, [{ ...all.v, id: "v-plain" }, all.lecture]),
          folded: "Undivided, as the second lecture prints it",
        },
      ],
      walk: ["z"],
      controls: ["scale", "mask"],
    },
    {
      blocks: [
        {
          kind: "beside",
          blocks: [cross(first, [{ ...all.v, title: "v, head 1" }, z]), cross(all.weights2, [all.v2, all.z2])],
        },
        {
          ...cross(all.again, [all.wq2, all.q2], [all.wk2, all.k2], [all.wv2, all.value2]),
          folded: "The second head's matrices",
        },
      ],
      walk: ["weights2", "z2"],
    },
    { blocks: [cross(all.joined, [all.wo, all.output])], walk: ["output"] },
    others(data),
  ];
}

function tables(data) {
  const { given } = data;
  const [first, second] = data.heads;
  const tokens = given.x.length;
  const width = count(given.wq[0].length);
  const model = count(given.x[0].length);
  const inputs = count(tokens, "input ");
  const queries = count(tokens, "query ");
  const keys = count(tokens, "key ");
  const input = (id, title, rows, columns) => matrix(id, title, rows, columns, given[id], { input: id });
  // a row of x times a column of a matrix
  const projected = (id, title, weight, values) =>
    matrix(id, title, inputs, width, values, {
      says: (i, j) =>
        say.product(given.x[i], turned(given[weight])[j], values[i][j], [
          row("x", i),
          row("x-again", i),
          column(weight, j),
        ]),
    });
  const weigh = (id, title, head, ids) =>
    matrix(id, title, queries, keys, head.weights, {
      kind: "weights",
      says: (i, j) => say.share(head.exponentials[i], head.sums[i][0], j, head.weights[i][j], [row(ids, i)]),
    });
  const mixed = (id, title, weights, v, values, ids) =>
    matrix(id, title, queries, width, values, {
      says: (i, j) => say.product(weights[i], turned(v)[j], values[i][j], [row(ids[0], i), column(ids[1], j)]),
    });
  const doubled = [...width.map((name) => `h_1 ${name}`), ...width.map((name) => `h_2 ${name}`)];
  return {
    x: input("x", "x", inputs, model),
    wq: input("wq", "W_q", model, width),
    wk: input("wk", "W_k", model, width),
    wv: input("wv", "W_v", model, width),
    q: projected("q", "q", "wq", first.q),
    k: projected("k", "k", "wk", first.k),
    v: projected("v", "v", "wv", first.v),
    kt: matrix("kt", "k^T", width, keys, turned(first.k), {
      says: (i, j) => say.product(given.x[j], turned(given.wk)[i], first.k[j][i], []),
    }),
    scores: matrix("scores", "scores", queries, keys, first.scores, {
      says: (i, j) => say.product(first.q[i], first.k[j], first.scores[i][j], [row("q", i), column("kt", j)]),
    }),
    scaled: matrix("scaled", "scaled", queries, keys, first.scaled, {
      says: (i, j) =>
        say.divided(first.scores[i][j], given.scaled ? data.root : 1, first.scaled[i][j], [cell("scores", i, j)]),
    }),
    mask: matrix("mask", "mask", queries, keys, given.mask, { kind: "mask" }),
    masked: matrix("masked", "masked", queries, keys, first.masked, {
      says: (i, j) =>
        say.hidden(first.scaled[i][j], given.mask[i][j], first.masked[i][j], [
          cell("scaled", i, j),
          cell("mask", i, j),
        ]),
    }),
    exponentials: matrix("exponentials", "exp(s − largest)", queries, keys, first.exponentials, {
      says: (i, j) =>
        say.exponential(first.masked[i][j], first.peak[i][0], first.exponentials[i][j], [cell("masked", i, j)]),
    }),
    weights: weigh("weights", "weights", first, "exponentials"),
    plain: weigh("plain", "weights, undivided", data.plain, ""),
    divided: weigh("divided", "weights, divided by √d", data.divided, ""),
    z: mixed("z", "z", first.weights, first.v, first.output, ["weights", "v"]),
    lecture: mixed("lecture", "z, undivided", data.plain.weights, first.v, data.plain.output, ["plain", "v-plain"]),
    again: matrix("x-again", "x", inputs, model, given.x, {
      says: (i, j) => ({ left: `x, input ${i + 1}, number ${j + 1}`, result: say.n(given.x[i][j]), uses: [] }),
    }),
    wq2: input("wq2", "W_q^2", model, width),
    wk2: input("wk2", "W_k^2", model, width),
    wv2: input("wv2", "W_v^2", model, width),
    q2: projected("q2", "q, head 2", "wq2", second.q),
    k2: projected("k2", "k, head 2", "wk2", second.k),
    value2: projected("value2", "v, head 2", "wv2", second.v),
    weights2: weigh("weights2", "weights, head 2", second, ""),
    v2: projected("v2", "v, head 2", "wv2", second.v),
    z2: mixed("z2", "head_2", second.weights, second.v, second.output, ["weights2", "v2"]),
    wo: input("wo", "W_o", doubled, model),
    joined: matrix("joined", "concat(head_1, head_2)", inputs, doubled, data.joined, {
      says: (i, j) => {
        const [number, at] = j < width.length ? [1, j + 1] : [2, j - width.length + 1];
        return { left: `number ${at} of head ${number}, input ${i + 1}`, result: say.n(data.joined[i][j]), uses: [] };
      },
    }),
    output: matrix("output", "output", inputs, model, data.output, {
      says: (i, j) =>
        say.product(data.joined[i], turned(given.wo)[j], data.output[i][j], [row("joined", i), column("wo", j)]),
    }),
  };
}

// "<start> I am fine", as the second lecture masks it
function ahead(found) {
  const { words, scores, masked, weights, exponentials, sums } = found;
  const hidden = (i, j) => say.hidden(scores[i][j], masked[i][j] !== null, masked[i][j], []);
  const share = (i, j) => say.share(exponentials[i], sums[i][0], j, weights[i][j], [row("ahead-masked", i)]);
  return [
    matrix("ahead-masked", "masked", words, words, masked, { says: hidden }),
    "→",
    matrix("ahead-weights", "weights", words, words, weights, { kind: "weights", says: share }),
  ];
}
