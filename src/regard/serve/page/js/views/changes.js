// Output diff: tokens and probabilities of two traces, before | after | Δ.

import { figure, h, table, token } from "../dom.js";

export function changes({ output_text, tokens, distribution, row, note }, names = ["before", "after"]) {
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
  return h.div({ class: "changes" }, parts);
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
