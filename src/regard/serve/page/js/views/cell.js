// A cell with its exact row, or a token with its weights, in; a card of numbers beside the picture out.

import { digits, element, figure, replace, token } from "../dom.js";
import { store } from "../store.js";
import { strongest } from "../view.js";

const STRONGEST = 8;

export function cellCard(card, { row, column, numbers, stage, names, check }) {
  const lines = Object.entries(numbers).flatMap(([name, values]) => [
    element("dt", { class: name === stage ? "now" : "" }, name),
    element("dd", { class: name === stage ? "now" : "", data: { stage: name } }, figure(values[column])),
  ]);
  const heading = [token(names.down[row]), element("span", { class: "muted" }, " looks at "), token(names.across[column])];
  const pair = element("button", { type: "button", on: { click: () => store.go({ query: row, key: column, view: "pair" }) } }, "Its q · k · v");
  replace(
    card,
    element("section", {}, element("h3", { class: "headline" }, heading), element("p", { class: "muted small" }, `query ${row}, key ${column}`)),
    element("section", {}, element("dl", { class: "stages" }, lines)),
    element("section", {}, element("h3", {}, "Strongest keys of this row"), leading(numbers.weights, names.across)),
    element("section", {}, checked(check)),
    element("section", {}, pair),
  );
}

function leading(weights, names) {
  const best = strongest(weights, STRONGEST, Number.MIN_VALUE);
  if (!best.length) return element("p", { class: "muted" }, "This query sees nothing.");
  const rows = best.map((n) => line(n, names[n], weights[n]));
  const titles = element("tr", {}, ["key", "token", "weight"].map((text, n) => element("th", { scope: "col", class: n === 2 ? "right" : "" }, text)));
  return element("table", { class: "plain" }, element("thead", {}, titles), element("tbody", {}, rows));
}

function line(place, name, weight) {
  return element(
    "tr",
    {},
    element("td", { class: "muted number" }, String(place)),
    element("td", {}, token(name)),
    element("td", { class: "right" }, figure(weight)),
  );
}

// one token and the [place, weight] of those it is tied to
export function tokenCard(card, name, what, found, others) {
  const rows = found.map(([place, weight]) => line(place, others[place], weight));
  replace(
    card,
    element("section", {}, element("h3", { class: "headline" }, token(name), element("span", { class: "muted" }, what))),
    element("section", {}, element("table", { class: "plain" }, element("tbody", {}, rows))),
  );
}

// the weights are worked out again from q and k: do they give what the layer gave?
function checked(check) {
  if (!check) return element("p", { class: "muted small" }, "|A·V − output| is being checked…");
  const holds = check.difference <= check.tolerance;
  return element(
    "p",
    { class: "small", title: "The weights, worked out again from q and k, times v, against what the layer itself gave" },
    element("span", { class: "muted" }, "|A·V − output| "),
    element("span", { class: "number" }, digits(check.difference, 2)),
    element("span", { class: "muted" }, holds ? ` ✓ below ${digits(check.tolerance, 2)}` : ` ✗ above ${digits(check.tolerance, 2)}`),
  );
}
