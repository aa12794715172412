// Output diff: tokens and probabilities of two traces, before | after | Δ.

import { digits, figure, h, table, token } from "../dom.js";
import { shade } from "../paint.js";
import { store } from "../store.js";

export function changes({ output_text, tokens, distribution, row, note, weights = {}, states = {} }, names = ["before", "after"]) {
  const other = tokens.filter((one) => !one.same).length;
  const side = (which) =>
    h.p(
      { class: "output-side" },
      tokens.map((one) => {
        if (!one[which]) return null;
        return [token(one[which], { class: one.same ? "token" : "token otherwise" }), " "];
      }),
      tokens.length ? null : token(output_text[which === "before" ? 0 : 1] ?? ""),
    );
  const sum = other ? `${other} of ${tokens.length} differ` : "outputs are equal";
  const parts = [
    h.div({ class: "halves" }, h.section(h.h3(names[0]), side("before")), h.section(h.h3(names[1]), side("after"))),
    h.p({ class: "muted small" }, sum, note ? `; ${note}` : ""),
  ];
  if (distribution.length) parts.push(moved(distribution, row, names));
  if (Object.keys(weights).length) parts.push(inside("Weights: how much of a row moved, by head", "½ Σ |Δ| of a row, averaged: 0 is unchanged, 1 is elsewhere altogether", weights, "head", (site, head) => store.go({ site, head, view: "matrix" })));
  if (Object.keys(states).length) parts.push(inside("States: how far the residual stream moved, by position", "‖Δx‖ / ‖x‖ behind each layer", states, ""));
  return h.div({ class: "changes" }, parts);
}

// a line for each layer, a cell for each head or position; open(name, n): a click on a cell
function inside(title, unit, found, what, open = null) {
  const wide = Math.max(...Object.values(found).map((some) => some.length));
  const most = Math.max(...Object.values(found).flat(), 1e-9);
  const cell = (name) => (value, n) => {
    const attributes = { class: "effect", style: shade("weights", value / most), title: `${name}, ${what || "position"} ${n}: ${value}`, data: { change: String(value) } };
    const text = digits(value, 2, 2);
    return h.td(open ? h.button({ type: "button", ...attributes, on: { click: () => open(name, n) } }, h.span({ class: "hidden-text" }, `${name}, head ${n}: `), text) : h.div(attributes, text));
  };
  const rows = Object.entries(found).map(([name, some]) => [h.th({ scope: "row" }, name), ...some.map(cell(name))]);
  const head = Array.from({ length: wide }, (_, n) => `${what} ${n}`.trim());
  return h.section(
    h.h3(title),
    h.p({ class: "muted small" }, unit),
    h.div({ class: "sideways", tabindex: "0", role: "region", "aria-label": title }, table(["layer", ...head], rows, { class: "plain effects" })),
  );
}

function moved(distribution, where, names) {
  const most = Math.max(...distribution.map((one) => Math.abs(one.change)), 1e-12);
  const lines = distribution.slice(0, 12).map((one) => {
    const style = { width: `${(44 * Math.abs(one.change)) / most}%` };
    const bar = h.span({ class: one.change < 0 ? "delta less" : "delta more", style });
    const numbers = [one.before, one.after, one.change].map((value) => figure(value));
    return [
      h.th({ scope: "row" }, token(one.token)),
      ...numbers,
      h.td({ class: "deltas", "aria-hidden": "true" }, bar),
    ];
  });
  const about =
    where === null || where === undefined
      ? "Largest changes"
      : ["Largest probability changes at ", token(String(where))];
  return h.section(
    h.h3(about),
    h.div(
      { class: "sideways", tabindex: "0", role: "region", "aria-label": "Largest changes" },
      table(["token", ...names, "Δ"], lines, { class: "plain moved" }),
    ),
  );
}
