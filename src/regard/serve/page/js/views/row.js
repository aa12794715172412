// Row view: one query against all keys, from the terms of q·k to the weights, with everything that adds up.

import * as api from "../api.js";
import { button, digits, figure, h, replace, say, shortened, token } from "../dom.js";
import { colour, dark, fit } from "../paint.js";
import { store } from "../store.js";
import { isOff, labels, latest, siteOf, View } from "../view.js";
import { listField, places } from "./parts.js";

const STRIP = [128, 16]; // CSS pixels

class Row extends View {
  #pick = h.div({ class: "pickers" });
  #formula = h.p({ class: "small" });
  #table = h.div({ class: "sideways", tabindex: "0", role: "region", "aria-label": "Every key of this query" });
  #load = latest();

  connectedCallback() {
    if (this.firstChild) return;
    this.append(this.#pick, this.#formula, this.#table);
  }

  show(trace, state) {
    const site = siteOf(trace, state);
    const query = Math.min(state.query, site.n_q - 1);
    this.now = { trace, site, head: state.head, query, key: state.key };
    if (this.fresh("pick", trace.id, site.name, query)) this.pick();
    if (this.fresh("row", trace.id, site.name, state.head, query)) this.#load(() => this.load());
    else if (this.fresh("look", dark(), state.key)) this.draw();
  }

  pick() {
    const { trace, site, query } = this.now;
    const names = labels(trace, site.queries, site.n_q);
    const step = (by) => button(by < 0 ? "Previous" : "Next", () => store.set({ query: Math.min(Math.max(this.now.query + by, 0), site.n_q - 1) }));
    const had = this.#pick.contains(document.activeElement) ? [...this.#pick.querySelectorAll("button, select")].indexOf(document.activeElement) : -1;
    replace(this.#pick, listField("Query", places(names), query, (to) => store.set({ query: Number(to) })), step(-1), step(1));
    if (had >= 0) this.#pick.querySelectorAll("button, select")[had]?.focus();
  }

  async load() {
    const { trace, site, head, query } = this.now;
    const found = await this.ask(api.rowTerms(trace.id, site.name, head, query));
    if (!found || this.now.trace !== trace || this.now.query !== query || this.now.head !== head) return;
    this.found = found;
    this.fresh("look", dark(), this.now.key);
    this.draw();
    const best = found.keys.reduce((a, b) => (b.weight > a.weight ? b : a));
    const names = labels(trace, site.keys, site.n_k);
    say(`${found.keys.length} keys; the largest weight ${digits(best.weight, 3)} is on “${shortened(names[best.key])}”`, this);
    this.dataset.painted = [trace.id, site.name, head, query].join(" ");
  }

  draw() {
    const { found } = this;
    if (!found) return;
    const { trace, site, head, key } = this.now;
    const names = labels(trace, site.keys, site.n_k);
    const { scale, cap, temperature, largest, softmax, rotated, note } = found;
    const biased = found.keys.some((one) => Math.abs(one.bias) > 1e-7);
    const top = found.keys.reduce((most, one) => one.products.reduce((m, x) => Math.max(m, Math.abs(x)), most), 1e-9);
    const wide = found.keys.reduce((most, one) => Math.max(most, one.norm), 1e-9);
    const steps = [
      ["key", (one) => h.th({ scope: "row" }, h.button({ type: "button", class: "link", on: { click: () => store.go({ key: one.key, view: "pair" }) } }, token(names[one.key]), h.span({ class: "muted small" }, ` ${one.key}`)))],
      [note ? "terms" : "q∘k by dimension", (one) => h.td(strip(one.products, top))],
      ["Σ", (one) => figure(one.dot, 4)],
      [`× ${digits(scale, 3)}${cap ? ", capped" : ""}`, (one) => figure(one.score, 4)],
      biased && ["+ bias", (one) => figure(one.bias, 3)],
      softmax && [`exp(${temperature === 1 ? "" : `÷ ${digits(temperature, 3)} `}− ${largest === null ? "max" : digits(largest, 3)})`, (one) => (one.visible ? figure(one.exp, 4) : h.td({ class: "right muted" }, "masked"))],
      [softmax ? "÷ Σ = weight" : "weight", (one) => h.td({ class: "right now-weight" }, figure(one.weight, 4))],
      ["‖weight·v‖", (one) => h.td(h.span({ class: "norm" }, h.span({ class: "norm-bar", "aria-hidden": "true", style: { width: `${(100 * one.norm) / wide}%` } }), figure(one.norm, 3)))],
    ].filter(Boolean);
    const cell = (made) => (made.matches("td, th") ? made : h.td({ class: "right" }, made));
    const lines = found.keys.map((one) => h.tr({ class: one.key === key ? "here" : "" }, steps.map(([, f]) => cell(f(one)))));
    const { rest, sum } = found;
    const total = (name, numbers) =>
      h.tr({ class: "total" }, steps.map(([title], n) => (n === 0 ? h.th({ scope: "row" }, name) : h.td({ class: "right" }, numbers[title] ?? ""))));
    const [exps, weights] = [steps.find(([title]) => title.startsWith("exp("))?.[0], steps.at(-2)[0]];
    const others = rest.count ? total(`${rest.count} other keys`, { [exps]: figure(rest.exp, 4), [weights]: figure(rest.weight, 4) }) : null;
    const all = total("Σ", { [exps]: figure(sum.exp, 6), [weights]: figure(sum.weight, 6), "‖weight·v‖": h.span(figure(found.output_norm, 4), h.span({ class: "muted small" }, " ‖Σ weight·v‖, the output")) });
    replace(this.#table, h.table({ class: "plain row-terms" }, h.thead(h.tr(steps.map(([title], n) => h.th({ scope: "col", class: n > 1 ? "right" : "" }, title)))), h.tbody(lines, others, all)));
    const said = [note, rotated && "q and k are shown rotated, as the score sees them", isOff(trace, site, head) && "this head is switched off: its weights are 0"].filter(Boolean);
    replace(this.#formula, `${said.join("; ")}${said.length ? "." : ""}`);
  }
}

// one number a column, orange below 0 and blue above
function strip(values, most) {
  const canvas = h.canvas({ role: "img", "aria-label": `${values.length} terms` });
  const context = fit(canvas, ...STRIP);
  const wide = STRIP[0] / values.length;
  values.forEach((value, n) => {
    context.fillStyle = colour("signed", (value / most + 1) / 2);
    context.fillRect(n * wide, 0, Math.ceil(wide), STRIP[1]);
  });
  return canvas;
}

customElements.define("regard-row", Row);
