// Card of a cell or a token: its exact weights beside the plot.

import { button, digits, figure, h, replace, table, terms, token } from "../dom.js";
import { store } from "../store.js";
import { strongest } from "../view.js";

const STRONGEST = 8;

export function cellCard(card, { row, column, numbers, stage, names, check, off, set = null }) {
  const had = card.contains(document.activeElement) && document.activeElement.type === "range";
  const lines = Object.entries(numbers).map(([name, values]) => [name, figure(values[column]), { class: name === stage ? "now" : "", data: { stage: name } }]);
  const best = strongest(numbers.weights, STRONGEST, Number.MIN_VALUE);
  replace(
    card,
    h.section(attends(names.down[row], names.across[column]), h.p({ class: "muted small" }, `query ${row}, key ${column}`)),
    h.section(terms(lines, { class: "stages" }), set && weightSlider(numbers.weights[column], set)),
    h.section(
      h.h3("Strongest keys of this row"),
      best.length ? weighing(best.map((n) => [n, numbers.weights[n]]), names.across, ["key", "token", "weight"]) : h.p({ class: "muted" }, off ? "This head is ablated: all its weights are 0." : "Every key is masked for this query."),
    ),
    off ? null : h.section(checked(check)),
    h.section(button("q, k, v", () => store.go({ query: row, key: column, view: "pair" }))),
  );
  if (had) card.querySelector("input[type=range]")?.focus();
}

// the same by keyboard: the weight as it should be, the rest of its row keeping its proportions
function weightSlider(weight, set) {
  const shown = h.span(`set it to ${digits(weight, 2, 2)}`);
  const range = h.input({ type: "range", min: "0", max: "1", step: "0.01", value: String(weight) });
  range.addEventListener("input", () => replace(shown, `set it to ${digits(Number(range.value), 2, 2)}`));
  range.addEventListener("change", () => set(Number(range.value)));
  return h.label({ class: "field slider small" }, shown, range);
}

export function attends(query, key) {
  return h.h3({ class: "headline" }, token(query), h.span({ class: "muted" }, " attends to "), token(key));
}

// [place, weight] of some tokens
function weighing(found, names, titles = []) {
  const rows = found.map(([place, weight]) => [h.span({ class: "muted number" }, String(place)), token(names[place]), figure(weight)]);
  return table(titles, rows);
}

// one token and the [place, weight] of those it is tied to
export function tokenCard(card, name, what, found, others) {
  const title = h.h3({ class: "headline" }, token(name), h.span({ class: "muted" }, what));
  replace(card, h.section(title), h.section(weighing(found, others)));
}

// weights recomputed from q and k, against the layer's own output
function checked(check) {
  if (!check) return h.p({ class: "muted small" }, "|A·V − output| is being checked…");
  const verdict = check.difference <= check.tolerance ? " ✓ below " : " ✗ above ";
  return h.p(
    { class: "small", title: "Weights recomputed from q and k, times v, against the layer's own output" },
    h.span({ class: "muted" }, "|A·V − output| "),
    h.span({ class: "number" }, digits(check.difference, 2)),
    h.span({ class: "muted" }, verdict, digits(check.tolerance, 2)),
  );
}
