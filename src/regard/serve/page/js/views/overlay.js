// Image view: the attention of a word, patch or pooled query over the image, of one head or all.

import * as api from "../api.js";
import { digits, figure, h, replace, say, shortened, table, terms, token } from "../dom.js";
import { dark, inks } from "../paint.js";
import { choices } from "../side.js";
import { store } from "../store.js";
import { groups, latest, strongest, View } from "../view.js";
import { faded, lay, loaded } from "./glow.js";
import { clamp, field, row, walk } from "./parts.js";

class Overlay extends View {
  #canvas = h.canvas({ tabindex: "0", role: "application", "aria-roledescription": "picture" });
  #words = h.div({ id: "asks", class: "tokens", role: "listbox", tabindex: "0", "aria-label": "Queries" });
  #which = h.fieldset({ class: "steps" });
  #strength = h.input({ type: "range", min: 0, max: 100, value: 90, on: { input: () => this.draw() } });
  #lines = h.input({ type: "checkbox", checked: true, on: { change: () => this.draw() } });
  #card = h.div({ class: "card" });
  #all = h.div({ class: "film", "aria-hidden": "true" });
  #scale = h.p({ class: "row small muted" });
  #note = h.p({ class: "muted small" });
  #load = latest();
  #mean = false;
  cell = [0, 0];

  connectedCallback() {
    if (this.firstChild) return;
    const which = [
      [false, "this head"],
      [true, "mean of all heads"],
    ];
    choices(this.#which, h.legend({ class: "hidden-text" }, "Heads"), "heads-laid", false, which, (mean) => {
      this.#mean = mean;
      this.show(this.trace, store.state);
    });
    const tools = h.div(
      { class: "pickers" },
      field("Opacity", this.#strength),
      h.label({ class: "row" }, this.#lines, "patches"),
    );
    const main = h.div(this.#words, this.#canvas, this.#scale, this.#note, this.#all);
    this.append(h.div({ class: "view-head" }, this.#which, tools), h.div({ class: "beside" }, main, this.#card));
    const at = (event) => {
      const box = this.#canvas.getBoundingClientRect();
      const { rows, columns } = this.trace.picture;
      return [
        clamp(Math.floor(((event.clientY - box.top) / box.height) * rows), 0, rows - 1),
        clamp(Math.floor(((event.clientX - box.left) / box.width) * columns), 0, columns - 1),
      ];
    };
    this.#canvas.addEventListener("pointermove", (event) => this.laid && this.point(at(event)));
    this.#canvas.addEventListener("click", (event) => this.laid && this.choose(at(event)));
    this.#canvas.addEventListener("keydown", (event) => this.key(event));
    this.#canvas.addEventListener("focus", () => this.laid && this.point(this.cell));
    walk(this.#words, { at: () => this.asking, count: () => this.asks.length, go: (n) => this.ask_for(n) });
  }

  show(trace, state) {
    this.trace = trace;
    const patches = trace.picture.rows * trace.picture.columns; // a site that left some out, or merged them, has no overlay
    const seen = trace.sites.filter((site) => site.shown && site.keys === "patches" && site.n_k >= patches);
    const site =
      seen.find((one) => one.name === state.site) ??
      seen.findLast((one) => one.queries === "text") ??
      seen.at(-1) ??
      null;
    const head = site ? clamp(state.head, 0, site.heads - 1) : 0;
    this.site = site;
    this.patch = site ? site.n_k - trace.picture.rows * trace.picture.columns : 0; // places before the first patch
    this.asks = site ? groups(trace, site.queries, site.n_q) : [];
    this.asking = Math.max(
      0,
      this.asks.findIndex((one) => one.places.includes(clamp(state.query, 0, (site?.n_q ?? 1) - 1))),
    );
    this.head = head;
    const subject = [trace.id, site?.name, this.#mean ? "mean" : head];
    if (this.fresh("picture", subject, this.asking, this.clientWidth, dark())) this.#load(() => this.load(subject));
  }

  // of the words, patches or the pool, one
  ask_for(n) {
    store.set({ query: this.asks[n].places[0] });
  }

  async load([id, , which]) {
    const { trace, site } = this;
    if (!this.picture || this.picture.id !== id) {
      const image = await this.ask(loaded(new URL(trace.picture.url, document.baseURI).href));
      if (!image) return undefined;
      this.picture = { id, image, grey: faded(image) };
    }
    const self = site?.queries === "patches";
    const names = this.asks.map((one) => one.label);
    const first = self ? names.slice(0, this.patch) : names;
    this.#words.hidden = !site || first.length + (self ? 1 : 0) < 2;
    const title = (text) => replace(this.#note, text);
    if (!site) {
      this.laid = null;
      title("This model has no attention over patches: there is no overlay.");
      return this.draw();
    }
    const heads = which === "mean" ? Array.from({ length: site.heads }, (_, n) => n) : [which];
    const found = await this.ask(Promise.all(heads.map((head) => this.rows(id, site, head))));
    if (!found || trace !== this.trace) return undefined;
    this.laid = this.asks.map((_, n) => mean(found.map((rows) => rows[n])));
    if (self && this.asking >= this.patch) first.push(`patch ${names[this.asking]}`);
    row(this.#words, first, Math.min(this.asking, first.length - 1), (n) =>
      this.ask_for(n === first.length - 1 && self ? this.asking : n),
    );
    const who = which === "mean" ? `mean of ${site.heads} heads` : `head ${which}`;
    title(`${site.name}, ${who}.${self ? " Press Enter on a patch for its own attention." : ""}`);
    this.dataset.painted = [trace.id, site.name, which, this.asking].join(" ");
    this.draw();
    return this.film(site.queries === "text" ? this.asks : []);
  }

  // for each who asks, one row: the mean of its tokens
  async rows(id, site, head) {
    const few = site.n_q * site.n_k <= api.CELLS;
    const all = few ? (await api.cells(id, site.name, head, [0, site.n_q, 0, site.n_k])).data : null;
    const one = async (n) =>
      all ? all.subarray(n * site.n_k, (n + 1) * site.n_k) : (await api.row(id, site.name, head, n)).data;
    return Promise.all(
      this.asks.map(async ({ places }, n) =>
        few || n === this.asking ? mean(await Promise.all(places.map(one))) : null,
      ),
    );
  }

  patches(weights) {
    const { rows, columns } = this.trace.picture;
    const part = weights.slice(this.patch);
    return { weights: part, most: part.reduce((most, one) => Math.max(most, one), 0), rows, columns };
  }

  size(most) {
    const { width, height } = this.trace.picture.width
      ? this.trace.picture
      : { width: this.picture.image.naturalWidth, height: this.picture.image.naturalHeight };
    const scale = most / Math.max(width, height);
    return [Math.round(width * scale), Math.round(height * scale)];
  }

  draw() {
    if (!this.picture) return;
    const size = this.size(clamp(this.#canvas.parentElement.clientWidth, 200, 400));
    const none = { weights: [], most: 0, rows: 0, columns: 0 };
    const now = this.laid ? this.patches(this.laid[this.asking]) : none;
    const strength = this.laid ? Number(this.#strength.value) / 100 : 0;
    const context = lay(this.#canvas, this.picture, now, strength, size, this.#lines.checked);
    if (!this.laid) return replace(this.#card);
    const [wide, high] = [size[0] / now.columns, size[1] / now.rows];
    this.cell = [Math.min(this.cell[0], now.rows - 1), Math.min(this.cell[1], now.columns - 1)];
    for (const [style, thick] of [
      ["#ffffff", 4],
      [dark() ? "#0b1626" : inks().accent, 2],
    ]) {
      context.strokeStyle = style;
      context.lineWidth = thick;
      context.strokeRect(this.cell[1] * wide + 1, this.cell[0] * high + 1, wide - 2, high - 2);
    }
    replace(this.#scale, "weight 0", h.span({ class: "glow-bar", "aria-hidden": "true" }), figure(now.most, 3));
    return this.card(now);
  }

  film(asks) {
    const size = this.size(96);
    const one = ({ label }, n) => {
      const canvas = h.canvas();
      lay(canvas, this.picture, this.patches(this.laid[n]), 0.9, size, false);
      return h.figure(
        { class: n === this.asking ? "on" : "", on: { click: () => this.ask_for(n) } },
        canvas,
        h.figcaption(token(label)),
      );
    };
    replace(this.#all, this.laid.length > 1 && this.laid[0] && this.laid.at(-1) ? asks.slice(0, 24).map(one) : []);
  }

  card({ weights, columns }) {
    const at = this.cell[0] * columns + this.cell[1];
    const inside = weights.reduce((sum, one) => sum + one, 0);
    const place = (n) => `row ${Math.floor(n / columns)}, column ${n % columns}`;
    const lines = [
      ["query", token(this.asks[this.asking].label)],
      ["at", place(at)],
      ["weight", figure(weights[at]), { class: "now" }],
      ["all patches", figure(inside)],
    ];
    const best = strongest(weights, 6, 1e-9).map((n) => [place(n), figure(weights[n])]);
    replace(this.#card, terms(lines, { class: "stages" }), h.section(h.h3("Strongest"), table([], best)));
    const text = `“${shortened(this.asks[this.asking].label)}” attends to ${place(at)}: ${digits(weights[at])}`;
    this.#canvas.setAttribute("aria-label", text);
    if (document.activeElement === this.#canvas) say(text);
  }

  point(cell) {
    if (String(cell) === String(this.cell) && this.#canvas.hasAttribute("aria-label")) return;
    this.cell = cell;
    this.draw();
  }

  // a patch that asks itself is looked through
  choose(cell) {
    this.point(cell);
    if (this.site.queries === "patches")
      store.set({ query: this.patch + cell[0] * this.trace.picture.columns + cell[1] });
  }

  key(event) {
    const { rows, columns } = this.trace.picture;
    const by = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
    if (!this.laid || event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "Enter") this.choose(this.cell);
    if (!by) return;
    event.preventDefault();
    this.point([clamp(this.cell[0] + by[0], 0, rows - 1), clamp(this.cell[1] + by[1], 0, columns - 1)]);
  }
}

function mean(rows) {
  if (rows.length === 1 || !rows[0]) return rows[0];
  return rows[0].map((_, n) => rows.reduce((sum, one) => sum + one[n], 0) / rows.length);
}

customElements.define("regard-overlay", Overlay);
