// Chapters of the lecture view for one query of the loaded model.

import * as say from "./lecture_arithmetic.js";

const { row, column, cell, count, matrix, turned } = say;
const line = (...parts) => ({ kind: "line", parts });
const stack = (...parts) => ({ kind: "stack", parts }); // rows of one query: the same key stays in the same column

export function modelStages(data) {
  const { about } = data;
  const all = tables(data);
  const edited = data.softmax === null;
  const meeting = { kind: "cross", left: all.q, pairs: [[all.kt, all.dots]] };
  const compared = all.dots ? [meeting] : [line(all.q, all.k), stack(all.scores)];
  const scaled = data.inner.root ? stack(all.dots, `÷ √${about.width} =`, all.scores) : line(all.scores);
  return [
    ...(data.made ? projected(data) : unprojected(all)),
    {
      blocks: compared,
      formula: data.inner.additive && "v_a · tanh(W_a q + U_a k)",
      walk: [all.dots ? "dots" : "scores"],
      note: data.inner.root ? "" : `Score function: ${about.score}; q and k are shown as it transforms them.`,
    },
    { blocks: [scaled], walk: ["scores"], note: data.inner.root ? "" : `${about.score} has no scale.` },
    { blocks: [stack(all.scores, "→", all.masked)], walk: ["masked"], note: `Pattern: ${about.pattern}.` },
    {
      blocks: [
        edited ? stack(all.masked, "→", all.weights) : stack(all.masked, "→", all.exponentials, "→", all.weights),
      ],
      walk: edited ? ["weights"] : ["exponentials", "weights"],
      note: edited ? `These weights come from ${about.normaliser} or from an edit, not from a plain softmax.` : "",
    },
    { blocks: [{ kind: "cross", left: all.weights, pairs: [[all.v, all.z]] }], walk: ["z"] },
    {
      blocks: [line(all.heads)],
      walk: ["heads"],
      note: `The same query in ${about.heads > 12 ? "the first 12 of" : "all"} ${about.heads} heads.`,
    },
    {
      blocks: [stack(all.z, all.layer)],
      walk: ["layer"],
      note:
        "Recomputed from q, k and v, and as the layer itself gave it: they differ by at most " +
        `${say.n(data.difference)} (allowed: ${say.n(data.tolerance)}).`,
    },
  ].map((stage) => ({ ...stage, note: [stage.note, about.note].filter(Boolean).join(" ") }));
}

function unprojected(all) {
  const note = "This layer has no q, k, v projections that could be shown.";
  return [
    { blocks: [line(all.tokens)], walk: [], note },
    { blocks: [line(all.q, all.k, all.v)], walk: [] },
  ];
}

// x W + b = q, k and v, before their positions turn them
function projected({ about, made }) {
  const asks = [about.label];
  const x = (id, title, rows, part) => ({ id, title, rows, columns: count(made[part].x[0].length), values: made[part].x });
  const w = (part) => {
    const { w: values } = made[part];
    return { id: `w${part}`, title: `W_${part}`, rows: count(values.length), columns: count(values[0].length), values };
  };
  const result = (part, id, rows, size) => {
    const { x: left, w: top, bias, rest, result: values } = made[part];
    const says = (i, j) => {
      const others = { count: size - left[i].length, what: "dimensions", value: rest[i][j] };
      const sum = say.product(left[i], turned(top)[j], values[i][j], [row(id, i), column(`w${part}`, j)], others);
      return bias[j] ? { ...sum, left: `${sum.left} + ${say.within(bias[j])}, the bias` } : sum;
    };
    return { id: `x${part}`, title: part, rows, columns: count(values[0].length), values, says };
  };
  const [query, keys] = [x("x-query", "x, query", asks, "q"), x("x-keys", "x, keys", about.keys, "k")];
  const pair = (part, id, rows, size) => [w(part), result(part, id, rows, size)];
  const [queryWidth, keyWidth] = made.model;
  return [
    { blocks: [line(query, keys)], walk: [], note: `Layer input: ${queryWidth} numbers per token.` },
    {
      blocks: [
        { kind: "cross", left: query, pairs: [pair("q", "x-query", asks, queryWidth)] },
        { kind: "cross", left: keys, pairs: ["k", "v"].map((part) => pair(part, "x-keys", about.keys, keyWidth)) },
      ],
      walk: ["xq", "xk", "xv"],
      note: made.turned ? "Before the rotation (RoPE); from the next chapter on q and k are rotated." : "",
    },
  ];
}

function tables(data) {
  const { about, inner, softmax } = data;
  const asks = [about.label];
  const dims = count(inner.k[0].length);
  const values = count(data.v[0].length);
  const others = about.n_k - about.keys.length;
  const more = { count: inner.width - dims.length, what: "dimensions" };
  const traced = (value, name) => ({ left: `${name}, as the layer made it`, result: say.n(value), uses: [] });
  const dots = inner.dots && {
    says: (_i, j) =>
      say.product(inner.q[0], inner.k[j], inner.dots[0][j], [row("q", 0), column("kt", j)], {
        ...more,
        value: inner.rest[0][j],
      }),
  };
  const scoreSays = (i, j) => {
    if (inner.root) return say.divided(inner.dots[0][j], inner.root, data.scores[0][j], [cell("dots", 0, j)]);
    if (inner.dots) return dots.says(i, j);
    if (!inner.additive) return traced(data.scores[0][j], about.score);
    const { v, wq, uk, width } = inner.additive;
    const rest = { count: width - uk[j].length, what: "dimensions", value: inner.rest[0][j] };
    return say.additive(v[0], wq[0], uk[j], data.scores[0][j], [], rest);
  };
  const seen = (j) => data.masked[0][j] !== null;
  return {
    tokens: matrix("tokens", "keys of this query", ["token"], count(about.keys.length), [about.keys]),
    q: matrix("q", "q", asks, count(inner.q[0].length), inner.q, { says: (i, j) => traced(inner.q[i][j], "q") }),
    k: matrix("k", "k", about.keys, dims, inner.k, { says: (i, j) => traced(inner.k[i][j], "k") }),
    v: matrix("v", "v", about.keys, values, data.v, { says: (i, j) => traced(data.v[i][j], "v") }),
    kt: matrix("kt", "k^T", dims, about.keys, turned(inner.k), { says: (i, j) => traced(inner.k[j][i], "k") }),
    dots: dots && matrix("dots", "q k^T", asks, about.keys, inner.dots, dots),
    scores: matrix("scores", inner.root ? "scaled" : "scores", asks, about.keys, data.scores, { says: scoreSays }),
    masked: matrix("masked", "masked", asks, about.keys, data.masked, {
      says: (_i, j) => say.added(data.scores[0][j], data.bias[0][j], seen(j), data.masked[0][j], [cell("scores", 0, j)]),
    }),
    exponentials:
      softmax &&
      matrix("exponentials", "exp(s − largest)", asks, about.keys, softmax.exponentials, {
        says: (_i, j) =>
          say.exponential(data.masked[0][j], softmax.peak[0][0], softmax.exponentials[0][j], [cell("masked", 0, j)]),
      }),
    weights: matrix("weights", "weights", asks, about.keys, data.weights, {
      kind: "weights",
      says: (_i, j) =>
        softmax
          ? say.share(
              softmax.exponentials[0],
              softmax.sums[0][0],
              j,
              data.weights[0][j],
              [row("exponentials", 0)],
              others,
            )
          : traced(data.weights[0][j], about.normaliser),
    }),
    z: matrix("z", "z", asks, values, data.output, {
      says: (_i, j) =>
        say.product(data.weights[0], turned(data.v)[j], data.output[0][j], [row("weights", 0), column("v", j)], {
          count: others,
          what: "keys",
          value: data.output_rest[0][j],
        }),
    }),
    heads: matrix(
      "heads",
      "weights of every head",
      data.all_heads.map((_, n) => `head ${n}`),
      about.keys,
      data.all_heads,
      {
        kind: "weights",
        says: (i, j) => ({
          left: `the weight of “${about.keys[j]}” in head ${i}`,
          result: say.n(data.all_heads[i][j]),
          uses: [],
        }),
      },
    ),
    layer: matrix("layer", "the layer's own", asks, values, data.layer, {
      says: (_i, j) => ({
        left: `recomputed: ${say.n(data.output[0][j])}; as the layer gave it`,
        result: say.n(data.layer[0][j]),
        uses: [cell("z", 0, j)],
      }),
    }),
  };
}
