// Gates view: the weights of a gate as bars per channel or word, or as a map over the image.

import * as api from "../api.js";
import { button, clamp, digits, drawing, figure, h, replace, say, shortened, table, terms } from "../dom.js";
import { dark, inks } from "../paint.js";
import { choices } from "../side.js";
import { same, store } from "../store.js";
import { labels, latest, strongest, View } from "../view.js";
import { changes } from "./changes.js";
import { faded, lay, loaded } from "./glow.js";
import { again } from "./head.js";

const [HIGH, LEFT] = [220, 44];
const ORDERS = [
  ["order", "in order"],
  ["size", "largest first"],
];

class Gates extends View {
  #which = h.fieldset({ class: "steps" });
  #orders = h.fieldset({ class: "steps" });
  #bars = h.div({ class: "gate-bars", tabindex: "0", role: "application", "aria-roledescription": "bar chart" });
  #canvas = h.canvas({ tabindex: "0", role: "application", "aria-roledescription": "picture" });
  #place = h.div({ class: "gate-place" }, this.#canvas);
  #scale = h.p({ class: "row small muted" });
  #note = h.p({ class: "muted small" });
  #card = h.div({ class: "card" });
  #one = button("", () => this.toggle("off", { site: this.site.name, head: this.at }));
  #all = button("Set the gate to 0", () => this.toggle("shut", { site: this.site.name }));
  #out = h.div();
  #load = latest();
  #order = "order";
  at = 0; // the weight that is looked at

  connectedCallback() {
    if (this.firstChild) return;
    const edits = h.div({ class: "row gate-edits" }, this.#one, this.#all);
    const main = h.div(this.#bars, this.#place, this.#scale, this.#note, edits);
    this.append(
      h.div({ class: "view-head" }, this.#which, this.#orders),
      h.div({ class: "beside" }, main, this.#card),
      this.#out,
    );
    for (const node of [this.#bars, this.#canvas]) {
      node.addEventListener("pointermove", (event) => this.under(event));
      node.addEventListener("click", (event) => this.under(event));
      node.addEventListener("keydown", (event) => this.key(event));
      node.addEventListener("focus", () => this.now && this.tell());
    }
  }

  show(trace, state) {
    const gates = trace.sites.filter((site) => site.kind === "gate");
    const site = gates.find((one) => one.name === state.gate) ?? gates[0];
    [this.trace, this.site] = [trace, site];
    const names = gates.map((one) => [one.name, one.name, one.why]);
    if (this.fresh("which", names, site.name))
      choices(this.#which, h.legend({ class: "hidden-text" }, "Gate"), "gate", site.name, names, (gate) => store.go({ gate }));
    if (this.fresh("orders", this.#order))
      choices(this.#orders, h.legend({ class: "hidden-text" }, "Bars"), "bars", this.#order, ORDERS, (order) => {
        this.#order = order;
        this.show(this.trace, store.state);
      });
    if (this.fresh("gate", trace.id, site.name, this.#order, this.clientWidth, dark())) this.#load(() => this.load(trace, site, state));
  }

  async load(trace, site, state) {
    delete this.dataset.painted;
    const edited = Object.keys(trace.edits ?? {}).length > 0;
    const plain = edited ? await this.ask(api.trace(again(trace, state, { edits: null }))) : trace;
    const [now, before] = await Promise.all([trace, plain ?? trace].map((one) => this.ask(api.gate(one.id, site.name))));
    if (!now || !before || site !== this.site) return;
    [this.now, this.before, this.edited] = [now.data, before.data, edited];
    this.map = site.keys === "places" ? now.shape.slice(-2) : null;
    if (this.map && this.picture?.url !== trace.picture.url) {
      const image = await this.ask(loaded(new URL(trace.picture.url, document.baseURI).href));
      if (!image) return;
      this.picture = { url: trace.picture.url, image, grey: faded(image) };
    }
    this.names = { channels: "channel", places: "position" }[site.keys] ?? "word";
    this.words = this.names === "word" ? labels(trace, site.keys, now.data.length) : null;
    this.order = Array.from(now.data, (_, n) => n);
    if (this.#order === "size") this.order.sort((a, b) => before.data[b] - before.data[a] || a - b);
    if (this.fresh("at", trace.model, site.name)) this.at = 0;
    this.at = Math.min(this.at, now.data.length - 1);
    [this.#bars.hidden, this.#orders.hidden] = [Boolean(this.map), Boolean(this.map)];
    [this.#place.hidden, this.#scale.hidden] = [!this.map, !this.map];
    replace(this.#note, `${site.name}: ${site.why}.`);
    this.paint();
    this.dataset.painted = [trace.id, site.name, this.#order].join(" ");
    const found = edited && plain && (await this.ask(api.compare(plain.id, trace.id)));
    replace(this.#out, found ? changes(found) : null);
  }

  // --- pictures ---

  paint() {
    if (this.map) this.lay();
    else this.draw();
    this.card();
  }

  draw() {
    const full = Math.max(this.#bars.clientWidth, 200);
    // of more than there are pixels, the largest of each few
    const few = Math.max(1, Math.ceil((2 * this.order.length) / full));
    const largest = (some) => some.reduce((best, n) => (this.before[n] > this.before[best] ? n : best));
    const shown = Array.from({ length: Math.ceil(this.order.length / few) }, (_, n) =>
      largest(this.order.slice(n * few, (n + 1) * few)),
    );
    const wide = (full - LEFT) / shown.length;
    const up = (value) => HIGH - clamp(value, 0, 1) * HIGH;
    const most = this.names === "word" ? Math.max(range(this.before)[1], range(this.now)[1], 1e-9) : 1;
    const gap = wide > 4 ? 1 : 0;
    const bar = (n, place) => {
      const [now, before] = [this.now[n] / most, this.before[n] / most];
      const size = { x: LEFT + place * wide + gap / 2, width: Math.max(wide - gap, 0.5) };
      return drawing("g", { class: n === this.at ? "here" : "", "data-n": n },
        drawing("rect", { class: "track", ...size, y: 0, height: HIGH }),
        now === before ? null : drawing("rect", { class: "before", ...size, y: up(before), height: HIGH - up(before) }),
        drawing("rect", { class: "bar", ...size, y: up(now), height: HIGH - up(now) }),
      );
    };
    const mark = (share) => [
      drawing("path", { class: "line", d: `M${LEFT},${up(share)} H${full}` }),
      drawing("text", { x: LEFT - 6, y: up(share) + 4, "text-anchor": "end" }, digits(share * most, 2)),
    ];
    const under = (x, text, anchor) => drawing("text", { x, y: HIGH + 16, "text-anchor": anchor }, text);
    const name = (n) => (this.words ? shortened(this.words[n], Math.floor(wide / 9)) : String(n));
    const ends = [under(LEFT, `${this.names} ${this.order[0]}`, "start"), under(full, String(this.order.at(-1)), "end")];
    const each = () => [under(0, this.names, "start"), ...shown.map((n, place) => under(LEFT + (place + 0.5) * wide, name(n), "middle"))];
    replace(
      this.#bars,
      drawing("svg", { viewBox: `0 -8 ${full} ${HIGH + 28}`, width: full, height: HIGH + 28, "aria-hidden": "true" },
        [0, 0.5, 1].map(mark),
        shown.map(bar),
        wide < (this.words ? 40 : 26) ? ends : each(),
      ),
    );
  }

  lay() {
    const [rows, columns] = this.map;
    const [low, high] = range(this.now);
    const weights = Array.from(this.now, (one) => (one - low) / (high - low || 1)); // gates differ by little
    const cell = Math.max(1, Math.floor(clamp(this.#place.clientWidth, 200, 400) / Math.max(rows, columns)));
    const size = [columns * cell, rows * cell]; // whole pixels, or lines would show between the places
    const context = lay(this.#canvas, this.picture, { weights, most: 1, rows, columns }, 0.9, size, false);
    for (const [style, thick] of [["#ffffff", 4], [dark() ? "#0b1626" : inks().accent, 2]]) {
      context.strokeStyle = style;
      context.lineWidth = thick;
      context.strokeRect((this.at % columns) * cell, Math.floor(this.at / columns) * cell, Math.max(cell, 5), Math.max(cell, 5));
    }
    replace(this.#scale, "weight ", figure(low, 3), h.span({ class: "glow-bar", "aria-hidden": "true" }), figure(high, 3));
  }

  // --- one weight ---

  get name() {
    if (this.map) return `row ${Math.floor(this.at / this.map[1])}, column ${this.at % this.map[1]}`;
    return this.words ? `${this.at} “${this.words[this.at]}”` : String(this.at);
  }

  card() {
    const [now, before] = [this.now[this.at], this.before[this.at]];
    const mean = this.now.reduce((sum, one) => sum + one, 0) / this.now.length;
    const called = (n) => (this.map ? `row ${Math.floor(n / this.map[1])}, column ${n % this.map[1]}` : this.words?.[n] ?? `channel ${n}`);
    const off = this.has("off", { site: this.site.name, head: this.at });
    const shut = this.has("shut", { site: this.site.name });
    replace(this.#one, off ? `Restore this ${this.names}` : `Ablate this ${this.names}`);
    this.#one.setAttribute("aria-pressed", String(off));
    this.#one.disabled = shut;
    this.#all.setAttribute("aria-pressed", String(shut));
    replace(this.#all, shut ? "Restore the gate" : "Set the gate to 0");
    const { picture } = this.trace;
    replace(
      this.#card,
      picture && !this.map ? h.img({ src: picture.url, alt: "Image", class: "gate-picture" }) : null,
      terms(
        [
          [this.names, this.name],
          ["weight", figure(now), { class: "now" }],
          this.edited && ["before", figure(before)],
          this.edited && ["Δ", figure(now - before)],
          [`mean of ${this.now.length}`, figure(mean)],
        ],
        { class: "stages" },
      ),
      h.section(h.h3("Strongest"), table([], strongest(this.now, 6, 1e-9).map((n) => [called(n), figure(this.now[n])]))),
    );
    this.tell();
  }

  tell() {
    const text = `${this.site.name}, ${this.names} ${this.name}: ${digits(this.now[this.at])}${this.edited ? `, before ${digits(this.before[this.at])}` : ""}`;
    const node = this.map ? this.#canvas : this.#bars;
    node.setAttribute("aria-label", text);
    if (document.activeElement === node) say(text);
  }

  point(n) {
    if (n === this.at) return;
    this.#bars.querySelector(".here")?.classList.remove("here");
    this.at = n;
    if (this.map) this.lay();
    else this.#bars.querySelector(`[data-n="${n}"]`)?.classList.add("here");
    this.card();
  }

  under(event) {
    if (!this.now) return;
    if (!this.map) {
      const bar = event.target.closest("[data-n]");
      if (bar) this.point(Number(bar.dataset.n));
      return;
    }
    const box = this.#canvas.getBoundingClientRect();
    const [rows, columns] = this.map;
    const row = clamp(Math.floor(((event.clientY - box.top) / box.height) * rows), 0, rows - 1);
    this.point(row * columns + clamp(Math.floor(((event.clientX - box.left) / box.width) * columns), 0, columns - 1));
  }

  key(event) {
    if (!this.now || event.ctrlKey || event.metaKey || event.altKey) return;
    const [place, last] = [this.order.indexOf(this.at), this.order.length - 1];
    const down = this.map ? this.map[1] : 1;
    const by = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -down, ArrowDown: down, Home: -place, End: last - place }[event.key];
    if (event.key === "Enter") this.#one.click();
    if (by === undefined) return;
    event.preventDefault();
    if (place + by >= 0 && place + by <= last) this.point(this.order[place + by]);
  }

  // --- what if ---

  has(kind, one) {
    return (store.state.edits[kind] ?? []).some((other) => same(other, one));
  }

  toggle(kind, one) {
    const { edits } = store.state;
    const some = this.has(kind, one) ? edits[kind].filter((other) => !same(other, one)) : [...(edits[kind] ?? []), one];
    const all = { ...edits, [kind]: some };
    if (!some.length) delete all[kind];
    store.go({ edits: all });
  }
}

function range(values) {
  return values.reduce(([low, high], one) => [Math.min(low, one), Math.max(high, one)], [Infinity, -Infinity]);
}

customElements.define("regard-gates", Gates);
