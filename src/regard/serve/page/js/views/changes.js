// What two scenes say, as the server compared them, in; before | after | Δ out.

import { element, figure, token } from "../dom.js";

export function changes({ said, tokens, distribution, row, note }, names = ["before", "after"]) {
  const other = tokens.filter((one) => !one.same).length;
  const side = (which) =>
    element(
      "p",
      { class: "said-side" },
      tokens.map((one) => {
        if (!one[which]) return null;
        return [token(one[which], { class: one.same ? "token" : "token otherwise" }), " "];
      }),
      tokens.length ? null : token(said[which === "before" ? 0 : 1] ?? ""),
    );
  const sum = other ? `${other} of ${tokens.length} differ` : "nothing is said otherwise";
  const parts = [
    element(
      "div",
      { class: "halves" },
      element("section", {}, element("h3", {}, names[0]), side("before")),
      element("section", {}, element("h3", {}, names[1]), side("after")),
    ),
    element("p", { class: "muted small" }, sum, note ? `; ${note}` : ""),
  ];
  if (distribution.length) parts.push(moved(distribution, row, names));
  return element("div", { class: "changes" }, parts);
}

function moved(distribution, where, names) {
  const most = Math.max(...distribution.map((one) => Math.abs(one.change)), 1e-12);
  const line = (one) => {
    const share = `${(44 * Math.abs(one.change)) / most}%`;
    const bar = element("span", { class: one.change < 0 ? "delta less" : "delta more", style: { width: share } });
    const number = (value) => element("td", { class: "right" }, figure(value));
    return element(
      "tr",
      {},
      element("th", { scope: "row" }, token(one.token)),
      number(one.before),
      number(one.after),
      number(one.change),
      element("td", { class: "deltas", "aria-hidden": "true" }, bar),
    );
  };
  const head = ["token", ...names, "Δ"].map((name, n) =>
    element("th", { class: n ? "right" : "", scope: "col" }, name),
  );
  const about =
    where === null || where === undefined
      ? "Largest changes"
      : ["Largest changes where ", token(String(where)), " stood"];
  return element(
    "section",
    {},
    element("h3", {}, about),
    element(
      "div",
      { class: "sideways", tabindex: "0", role: "region", "aria-label": "Largest changes" },
      element(
        "table",
        { class: "plain moved" },
        element("thead", {}, element("tr", {}, head, element("td", {}))),
        element("tbody", {}, distribution.slice(0, 12).map(line)),
      ),
    ),
  );
}
