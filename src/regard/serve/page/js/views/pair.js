// Pair view: the arithmetic of one query and key: q·k term by term, scale, bias, weight, weight·v.

import * as api from "../api.js";
import { digits, figure, h, replace, say, table, token } from "../dom.js";
import { dark } from "../paint.js";
import { store } from "../store.js";
import { isOff, labels, latest, siteOf, View } from "../view.js";
import { bars } from "./bars.js";

class Pair extends View {
  #pickers = h.div({ class: "pickers" });
  #sum = h.div({ class: "sum" });
  #note = h.p({ class: "muted small" });
  #charts = h.div();
  #table = h.details();
  #load = latest();
  #at = 0; // the dimension that is pointed at

  connectedCallback() {
    if (this.firstChild) return;
    this.append(this.#pickers, this.#sum, this.#note, this.#charts, this.#table);
  }

  show(trace, state) {
    const site = siteOf(trace, state);
    const [query, key] = [Math.min(state.query, site.n_q - 1), Math.min(state.key, site.n_k - 1)];
    const subject = [trace.id, site.name, state.head, query, key];
    this.now = { trace, site, head: state.head, query, key, subject: subject.join() };
    if (this.fresh("names", trace.id, site.name)) {
      this.names = { query: labels(trace, site.queries, site.n_q), key: labels(trace, site.keys, site.n_k) };
      this.pickers();
    }
    if (this.fresh("pickers", subject)) this.update();
    if (this.fresh("subject", subject)) this.#load(() => this.load());
    else if (this.fresh("appearance", dark(), this.clientWidth, devicePixelRatio)) this.draw();
  }

  // --- which pair ---

  pickers() {
    const field = (name) => {
      const input = h.input({
        type: "number",
        min: "0",
        max: String(this.names[name].length - 1),
        on: { input: (event) => this.choose(name, event.target.valueAsNumber) },
      });
      const label = h.label({ class: "field" }, h.span(name), input);
      const shown = h.span({ class: "headline" });
      this[name] = { input, shown };
      return h.div({ class: "row" }, label, shown);
    };
    replace(this.#pickers, field("query"), field("key"));
  }

  choose(name, value) {
    if (!Number.isInteger(value)) return;
    store.set({ [name]: Math.min(Math.max(value, 0), this.names[name].length - 1) });
  }

  update() {
    for (const name of ["query", "key"]) {
      const { input, shown } = this[name];
      if (input.valueAsNumber !== this.now[name]) input.value = String(this.now[name]);
      replace(shown, token(this.names[name][this.now[name]]));
    }
  }

  async load() {
    const { trace, site, head, query, key, subject } = this.now;
    const found = await this.ask(api.pair(trace.id, site.name, head, query, key));
    if (!found || this.now.subject !== subject) return;
    this.found = found;
    this.fresh("appearance", dark(), this.clientWidth, devicePixelRatio);
    this.sum();
    this.draw();
    this.table();
    this.dataset.painted = subject;
    say(`dot ${digits(found.dot)}, adjusted score ${digits(found.adjusted)}, ${found.visible ? `weight ${digits(found.weight)}` : "hidden"}`, this);
  }

  // --- the sum in one line ---

  sum() {
    const { dot, scale, cap, bias, temperature = 1, adjusted, visible, weight, note } = this.found;
    const part = (value, name, end = "") =>
      h.span({ class: `part ${end}`, data: { part: name } }, figure(value), h.span(name));
    const op = (text) => h.span({ class: "op" }, text);
    const { trace, site, head } = this.now;
    const how = isOff(trace, site, head) ? "the head is ablated" : visible ? plain(site.normaliser) : "masked by the pattern";
    const seen = [op(`→ ${how} →`), part(weight, "weight", "end")];
    const middle = scale === null ? [] : [op("×"), part(scale, "scale")];
    const warm = temperature === 1 ? [] : [op("÷"), part(temperature, "temperature")];
    const capped = cap ? [op(`→ ${digits(cap)} · tanh(x / ${digits(cap)})`)] : [];
    const added = [op("+"), part(bias ?? 0, "bias")];
    replace(this.#sum, part(dot, note ? "score" : "Σ q·k"), middle, capped, added, op("="), part(adjusted, "adjusted"), warm, seen);
    replace(this.#note, note ?? "");
  }

  // --- bars ---

  draw() {
    if (!this.found) return;
    const { q, k, products, v, added, note } = this.found;
    const had = this.contains(document.activeElement) ? document.activeElement.dataset.chart : null;
    const charts = [
      ["q", "q, the query", q],
      ["k", "k, the key", k],
      ["products", note ? "terms of the score" : "q · k per dimension", products],
      ["v", "v, the value", v],
      ["added", "weight · v, contribution to the output", added, v], // on the axis of v: a small weight leaves little of it
    ];
    replace(this.#charts, charts.filter(([, , values]) => values?.length).map((one) => this.chart(...one)));
    if (had) this.#charts.querySelector(`[data-chart=${had}]`)?.focus();
  }

  chart(name, label, values, axis = values) {
    const most = axis.reduce((size, one) => Math.max(size, Math.abs(one)), 1e-12);
    const canvas = h.canvas({ tabindex: "0", role: "application", "aria-roledescription": "bars", data: { chart: name } });
    const reading = h.span({ class: "muted number" });
    const sum = values.reduce((total, one) => total + one, 0);
    const size = [name === "products" ? ["adds up to ", figure(sum)] : `${values.length} dimensions`, ", axis ±", figure(most, 3)];
    const caption = h.figcaption(h.span(label), h.span(reading, " ", h.span({ class: "muted" }, size)));
    const show = (at, aloud) => {
      this.#at = Math.min(Math.max(at, 0), values.length - 1);
      const text = this.sentence(name, this.#at);
      bars(canvas, values, most, Math.max(240, this.clientWidth), this.#at);
      canvas.setAttribute("aria-label", `${label}. ${text}`);
      replace(reading, text);
      if (aloud) say(text);
    };
    canvas.addEventListener("pointermove", (event) => show(Math.floor((event.offsetX / canvas.clientWidth) * values.length)));
    canvas.addEventListener("focus", () => show(this.#at, true));
    canvas.addEventListener("keydown", (event) => {
      const to = { ArrowLeft: this.#at - 1, ArrowRight: this.#at + 1, Home: 0, End: values.length - 1 }[event.key];
      if (to === undefined) return;
      event.preventDefault();
      show(to, true);
    });
    bars(canvas, values, most, Math.max(240, this.clientWidth), -1);
    canvas.setAttribute("aria-label", `${label}: ${values.length} numbers`);
    return h.figure({ class: "bars" }, caption, canvas);
  }

  sentence(name, at) {
    const { q, k, products, v, added, weight, note } = this.found;
    if (name === "products" && !note && k?.length === products.length) {
      return `${at}: ${digits(q[at])} × ${digits(k[at])} = ${digits(products[at])}`;
    }
    if (name === "added") return `${at}: ${digits(weight)} × ${digits(v[at])} = ${digits(added[at])}`;
    return `${at}: ${digits(this.found[name][at])}`;
  }

  // every number, for those who read or copy rather than point
  table() {
    const open = this.#table.open;
    const names = ["q", "k", "products", "v", "added"].filter((name) => this.found[name]?.length);
    const count = Math.max(...names.map((name) => this.found[name].length));
    const fill = () => {
      const number = (name, at) => (at < this.found[name].length ? figure(this.found[name][at]) : "");
      const rows = Array.from({ length: count }, (_, at) => [h.th({ scope: "row", class: "right" }, String(at)), ...names.map((name) => number(name, at))]);
      const inside = table(["dimension", ...names], rows);
      return h.div({ class: "scroll", tabindex: "0", role: "region", "aria-label": "All numbers of this pair" }, inside);
    };
    replace(this.#table, h.summary("All numbers"));
    this.#table.ontoggle = () => {
      if (this.#table.open && this.#table.children.length === 1) this.#table.append(fill());
    };
    if (open) this.#table.append(fill());
  }
}

function plain(name) {
  return (name || "softmax").replace(/\(\)$/, "").toLowerCase();
}

customElements.define("regard-pair", Pair);
