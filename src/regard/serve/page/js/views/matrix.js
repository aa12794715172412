// Matrix view: one head as products, scores, masked scores or weights, at any zoom, with exact numbers.

import * as api from "../api.js";
import { clamp, digits, h, pointer, replace, say, shortened } from "../dom.js";
import { cellAt, cellBox, drawCells, drawCursor, drawHere, drawLabels, drawProfile, drawSheet, frameOf, layout, area } from "../grid.js";
import { coded, colour, dark, fit, inks, legend, paletteOf, readable, shareIn, sheet } from "../paint.js";
import { choice, withWeight } from "../side.js";
import { store } from "../store.js";
import { axisName, hides, isOff, labels, latest, selectedHeads, siteOf, View } from "../view.js";
import { isWhole, keyed, navigate, sane, whole, zoomed } from "../zoom.js";
import { cellCard } from "./cell.js";

export const STAGES = ["products", "scores", "masked", "weights"]; // as in Python
const PROFILE = 56;

class Matrix extends View {
  #below = h.canvas({ "aria-hidden": "true" });
  #over = h.canvas({ class: "over", tabindex: "0", role: "application", "aria-roledescription": "matrix" });
  #plot = h.div({ class: "plot" }, this.#below, this.#over);
  #stages = h.fieldset({ class: "steps" });
  #legend = h.div();
  #card = h.div({ class: "card" });
  #note = h.p({ class: "muted small" });
  #sheets = []; // {sheet, window}: all of it first, what is in sight last
  #exact = null; // {window, values, visible}: numbers of what is in sight, where they are few
  #rows = new Map(); // row → its numbers at this stage
  #load = latest();
  #read = latest();
  #hovered = null;
  #dragged = null; // {cell, from, start, value}: a weight that is being set
  #drag = h.button({ type: "button", "aria-pressed": "false", title: "Drag a cell up or down to set its weight", on: { click: () => this.toggleDrag() } }, "Drag weights");

  connectedCallback() {
    if (this.firstChild) return;
    const button = (label, text, f) =>
      h.button({ type: "button", "aria-label": label, title: label, on: { click: f } }, text);
    const zoom = h.div({ class: "row" },
      button("Zoom out", "−", () => this.zoom(1 / 1.5)),
      button("Zoom in", "+", () => this.zoom(1.5)),
      button("All of the matrix", "All", () => store.set({ window: null })),
      this.#drag,
    );
    const head = h.div({ class: "view-head" }, this.#stages, zoom);
    const main = h.div(this.#plot, this.#note, this.#legend);
    this.append(head, h.div({ class: "beside" }, main, this.#card));
    navigate(this.#over, {
      here: () => ({ ...this.now, plot: this.plot, cellAt: (x, y) => cellAt(this.plot, x, y) }),
      move: (window) => this.move(window),
      tap: ([query, key]) => store.set({ query, key }),
      hover: (cell) => this.hover(cell),
      open: () => store.go({ view: "pair" }),
    });
    this.#over.addEventListener("keydown", (event) => this.key(event));
    for (const name of ["pointerdown", "pointermove", "pointerup"]) this.#over.addEventListener(name, (event) => this.dragging(event), { capture: true });
    this.#over.addEventListener("focus", () => this.tell());
  }

  show(trace, state) {
    const site = siteOf(trace, state);
    const heads = selectedHeads(trace, state);
    this.many = heads.length > 1 ? import("./several.js") : null;
    const stage = !this.many && STAGES.includes(state.stage) ? state.stage : "weights";
    this.#stages.hidden = Boolean(this.many);
    const [rows, columns] = [site.n_q, site.n_k];
    const cell = [Math.min(state.query, rows - 1), Math.min(state.key, columns - 1)];
    this.now = { trace, site, head: state.head, heads, stage, rows, columns, cell, window: sane(state.window, rows, columns) };
    if (this.fresh("names", trace.id, site.name)) {
      this.names = { down: labels(trace, site.queries, rows), across: labels(trace, site.keys, columns), titles: [site.queries, site.keys].map(axisName) };
    }
    if (this.fresh("stages", stage)) this.stages(stage);
    const names = heads.map((one) => [one.site.name, one.head]);
    const subject = [trace.id, site.name, state.head, stage, names];
    this.now.subject = JSON.stringify(subject);
    if (this.fresh("subject", subject)) {
      [this.#sheets, this.#exact, this.#hovered] = [[], null, null];
      this.#rows.clear();
    }
    const { appearance } = this;
    if (this.fresh("window", subject, this.now.window, appearance)) this.refresh(appearance);
    if (this.fresh("cell", subject, cell, this.now.window, appearance)) this.point();
    if (this.fresh("check", trace.id, site.name, state.head)) this.check(subject);
  }

  stages(stage) {
    const had = this.#stages.contains(document.activeElement);
    const all = STAGES.map((name, n) => [
      n ? h.span({ class: "arrow", "aria-hidden": "true" }, "→") : null,
      choice("stage", name, name === stage, [name], { pick: () => store.set({ stage: name }) }),
    ]);
    replace(this.#stages, h.legend({ class: "hidden-text" }, "Stage"), all);
    if (had) this.#stages.querySelector(":checked").focus();
  }

  // --- the picture ---

  refresh(appearance) {
    if (this.fresh("appearance", appearance)) this.#sheets = [];
    this.ink = inks();
    const space = area(this.#plot, PROFILE + 116, 420, 1.1);
    this.plot = layout(this.#below.getContext("2d"), this.names, this.now.window, space, this.ink.font);
    this.size = [space.width, Math.ceil(this.plot.top + this.plot.height + PROFILE + 14)];
    this.touch();
    this.draw();
    this.loading = this.#load(() => this.load());
  }

  async load() {
    const { trace, site, head, stage, window } = this.now;
    const ratio = devicePixelRatio || 1;
    const most = [Math.ceil(this.plot.height * ratio), Math.ceil(this.plot.width * ratio)];
    const size = [window[1] - window[0], window[3] - window[2]];
    // more cells than one answer holds, or than there are pixels, are shown as a picture
    const few = size[0] * size[1] <= api.CELLS && size.every((count, n) => count <= most[n]);
    const place = [trace.id, site.name, head, window];
    const get = (name) => (few ? api.cells(...place, name) : api.map(...place, ...most, name));
    const masks = stage === "weights" && hides(trace, site) ? get("visible").catch(() => null) : null; // a copy may lack it
    const several = await this.many;
    const many = several && (await this.ask(several.weightsOf(trace, this.now.heads, window, few, most)));
    if (several && !many) return;
    const main = await this.ask(get(stage));
    const { subject } = this.now;
    const same = (now) => now.subject === subject;
    if (!main || !same(this.now)) return;
    const lacking = !few && stage !== "weights" && !main.range;
    replace(this.#note, lacking ? "The scores of so many cells are not pooled; zoom in to see them." : "");
    if (lacking) return;
    const { palette } = this;
    const { bytes, range } = few ? coded(main.data, palette) : { bytes: main.data, range: main.range };
    const [rows, columns] = main.shape;
    const pooled = rows < size[0] || columns < size[1];
    const paint = (visible) => {
      const stripes = many && several.striped(many, this.plot.wide * ((window[3] - window[2]) / columns), this.ink.paper, visible);
      const found = { sheet: stripes ? stripes.sheet : sheet(bytes, rows, columns, palette, range, visible), window };
      const all = this.#sheets.find((one) => isWhole(one.window, this.now.rows, this.now.columns));
      this.#sheets = all && String(all.window) !== String(window) ? [all, found] : [found];
      if (few) this.#exact = { window, values: main.data, visible, columns };
      if (this.fresh("legend", stage, range, dark(), pooled, subject, stripes?.stripes)) replace(this.#legend, stripes ? several.headLegend(this.now.heads, store.state, stripes.stripes > 1 ? "a stripe of a cell for each head, in this order; more colour is more weight (√)" : "a cell has the colour of the head that gives it the most weight") : legend(palette, range, pooled, stage === "weights" ? "weight" : stage));
      this.draw();
      this.over();
      this.dataset.painted = [site.name, head, stage, ...window].join(" ");
    };
    if (!few) paint(null); // what is hidden in a large picture comes when it comes
    const visible = await masks;
    if (same(this.now) && (few || visible)) paint(visible?.data ?? null);
  }

  draw() {
    const context = fit(this.#below, ...this.size);
    for (const one of this.#sheets) drawSheet(context, this.plot, one.sheet, one.window);
    const { exact } = this;
    if (exact) {
      const { palette } = this;
      let most = 1e-9;
      for (const value of this.#exact.values) if (Number.isFinite(value)) most = Math.max(most, Math.abs(value));
      const share = shareIn(palette, most);
      const { visible } = this.#exact;
      const hidden = (row, column) => (visible ? exact(visible, row, column) === 0 : value(row, column) === -Infinity);
      const value = (row, column) => exact(this.#exact.values, row, column);
      drawCells(context, this.plot, { value, hidden, share, palette, plain: Boolean(this.many) }, this.ink);
    }
    frameOf(context, this.plot, this.ink);
    drawLabels(context, this.plot, this.names, this.ink);
  }

  get palette() {
    return this.now.stage === "weights" ? paletteOf(this.now.site) : "signed";
  }

  // reads the numbers that are at hand, if they are those of the window in sight
  get exact() {
    const { window } = this.now;
    const found = this.#exact;
    if (!found || found.window.some((edge, n) => edge !== window[n])) return null;
    return (values, row, column) => values[(row - window[0]) * found.columns + column - window[2]];
  }

  // --- the cursor ---

  get live() {
    return this.#hovered ?? this.now.cell;
  }

  hover(cell) {
    if (String(cell) === String(this.#hovered)) return;
    this.#hovered = cell;
    this.point();
  }

  point() {
    this.over();
    this.#read(() => this.read());
  }

  // all four stages of the row, exactly; of many hovered rows only the last is requested
  async read() {
    await this.loading; // the picture first
    const { trace, site, head } = this.now;
    const [row] = this.live;
    const part = (stage) => api.row(trace.id, site.name, head, row, stage);
    const some = STAGES.map((stage) => (stage === "weights" ? part(stage) : part(stage).catch(() => null))); // a copy may lack them
    const rows = await this.ask(Promise.all(some));
    const { heads, subject } = this.now;
    const several = await this.many;
    const all = several && rows && (await this.ask(Promise.all(heads.map((one) => api.row(trace.id, one.site.name, one.head, row)))));
    if (!rows || (several && !all) || this.now.subject !== subject || this.now.trace.id !== trace.id || this.now.site !== site || this.now.head !== head) return;
    this.several = several;
    const found = Object.fromEntries(STAGES.flatMap((stage, n) => (rows[n] ? [[stage, rows[n].data]] : [])));
    if (this.#rows.size > 64) this.#rows.clear();
    if (all) found.heads = all.map(({ data }) => data);
    this.#rows.set(row, found);
    this.over();
    if (!this.#hovered) this.tell();
  }

  over() {
    const context = fit(this.#over, ...this.size);
    const [row, column] = this.live;
    const { window, stage } = this.now;
    const inside = row >= window[0] && row < window[1] && column >= window[2] && column < window[3];
    const numbers = this.#rows.get(row);
    if (inside) drawCursor(context, this.plot, row, column, this.ink);
    if (inside) drawHere(context, this.plot, this.names, [row, column], this.ink);
    if (this.#dragged) {
      const [x, y, wide, high] = cellBox(this.plot, ...this.#dragged.cell);
      const share = Math.sqrt(this.#dragged.value);
      context.fillStyle = colour("weights", share);
      context.fillRect(x + 2, y + 2, wide - 4, high - 4);
      context.fillStyle = readable("weights", share);
      context.textAlign = "center";
      context.textBaseline = "middle";
      context.font = `600 12px ${this.ink.font}`;
      context.fillText(digits(this.#dragged.value, 2, 2), x + wide / 2, y + high / 2);
    }
    if (numbers?.heads) {
      this.several.drawRows(context, this.plot, numbers.heads, this.ink, PROFILE);
      if (this.fresh("card", this.now.subject, row, column, dark())) this.several.headsCard(this.#card, { row, column, heads: this.now.heads, rows: numbers.heads, names: this.names });
      return;
    }
    if (numbers?.[stage]) drawProfile(context, this.plot, numbers[stage], stage, this.ink, PROFILE, this.palette !== "weights");
    if (numbers && this.fresh("card", this.now.trace.id, this.now.site.name, this.now.head, stage, row, column)) {
      const off = isOff(this.now.trace, this.now.site, this.now.head);
      const set = this.settable ? (value) => this.setWeight([row, column], value) : null;
      cellCard(this.#card, { row, column, numbers, stage, names: this.names, check: this.checked, off, set });
    }
  }

  async check(subject) {
    const [trace, site, head] = subject;
    this.checked = null;
    const answer = await this.ask(api.check(trace, site, head));
    if (!answer || this.now.head !== head || this.now.site.name !== site || this.now.trace.id !== trace) return;
    this.checked = answer;
    this.stale("card");
    this.over();
  }

  tell() {
    const [row, column] = this.now.cell;
    const value = this.#rows.get(row)?.[this.now.stage]?.[column];
    const [query, key] = [shortened(this.names.down[row], 40), shortened(this.names.across[column], 40)];
    const what = value === undefined ? "" : `: ${this.now.stage} ${digits(value)}`;
    const text = `${row} “${query}” attends to ${column} “${key}”${what}`;
    this.#over.setAttribute("aria-label", `${this.now.site.name}, head ${this.now.head}. ${text}`);
    say(text, this);
  }

  // --- setting a weight ---

  toggleDrag() {
    this.#drag.setAttribute("aria-pressed", String(this.#drag.ariaPressed !== "true"));
    this.touch();
  }

  // a finger scrolls the page unless it pans the matrix or sets a weight
  touch() {
    const scrolls = isWhole(this.now.window, this.now.rows, this.now.columns) && this.#drag.ariaPressed !== "true";
    this.#over.style.touchAction = scrolls ? "pan-y" : "none";
  }

  get settable() {
    const { trace, site, head, stage } = this.now;
    return !this.many && stage === "weights" && !isOff(trace, site, head);
  }

  // up is more: 150 pixels are a whole
  dragging(event) {
    const [x, y] = pointer(this.#over, event);
    if (event.type === "pointerdown") {
      const cell = this.#drag.ariaPressed === "true" && this.settable && event.button === 0 ? cellAt(this.plot, x, y) : null;
      const from = cell && this.#rows.get(cell[0])?.weights?.[cell[1]];
      if (!cell || from === undefined) return;
      this.#over.setPointerCapture(event.pointerId);
      this.#dragged = { cell, from, start: y, value: from };
    }
    if (!this.#dragged) return;
    event.stopImmediatePropagation(); // not a pan
    event.preventDefault();
    const { cell, from, start } = this.#dragged;
    this.#dragged.value = Math.abs(start - y) < 3 ? from : Math.round(100 * clamp(from + (start - y) / 150, 0, 1)) / 100;
    if (event.type === "pointerup") {
      const { value } = this.#dragged;
      this.#dragged = null;
      if (value === from) store.set({ query: cell[0], key: cell[1] });
      else this.setWeight(cell, value);
    }
    this.over();
  }

  setWeight([query, key], value) {
    const { site, head } = this.now;
    const { edits } = store.state;
    store.go({ query, key, edits: withWeight(edits, { site: site.name, head, query, key, value }) });
    say(`Weight ${query} → ${key} set to ${value}`);
  }

  // --- moving ---

  move(window) {
    store.set({ window: isWhole(window, this.now.rows, this.now.columns) ? null : window });
  }

  zoom(factor) {
    const { window, cell, rows, columns } = this.now;
    const inside = cell[0] >= window[0] && cell[0] < window[1] && cell[1] >= window[2] && cell[1] < window[3];
    const about = inside ? cell : [Math.floor((window[0] + window[1]) / 2), Math.floor((window[2] + window[3]) / 2)];
    this.move(zoomed(window, factor, about, rows, columns));
  }

  key(event) {
    if (event.key === "Enter") return store.go({ view: "pair" });
    const found = keyed(event, this.now);
    if (!found) return undefined;
    event.preventDefault();
    this.#hovered = null;
    const patch = {};
    if (found.cell) [patch.query, patch.key] = found.cell;
    if (found.window) {
      const all = whole(this.now.rows, this.now.columns);
      patch.window = String(found.window) === String(all) ? null : found.window;
    }
    return store.set(patch);
  }
}

customElements.define("regard-matrix", Matrix);
