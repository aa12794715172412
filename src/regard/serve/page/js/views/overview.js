// Overview: thumbnails of all heads of all layers, in order or sorted by a statistic, one of them large. Enter opens it.

import * as api from "../api.js";
import { button, digits, figure, h, pointer, replace, say, terms } from "../dom.js";
import { dark, fit, inks, legends, paletteOf, sheet } from "../paint.js";
import { choices, toggled } from "../side.js";
import { store } from "../store.js";
import { isOff, latest, sizeOf, View } from "../view.js";
import { Heat } from "./heat.js";
import { headOf, picture } from "./head.js";
import { VIEWS } from "./index.js";

// name, label, what it is, factor and unit
const ORDERS = [
  ["place", "layer", "in layer order"],
  ["entropy", "entropy", "entropy of a row, the most focused first", 1, "nats"],
  ["distance", "distance", "between query and key on average, the nearest first", 1, "tokens"],
  ["sink", "sink", "weight on the first key (attention sink), largest first", 100, "%"],
  ["aer", "alignment error", "alignment error rate against the gold links, the best first", 100, "%"],
];
const UNITS = new Map(ORDERS.map(([name, , , factor, unit]) => [name, [factor, unit]]));
const PICTURE = 48; // pixels of a thumbnail as the server pools it
const GAP = 14;
const SWITCH = 70; // pixels: smaller pictures have no room for a switch
const FEW = 6; // heads of a layer
const EDGE = 4; // room for the mark around a picture

class Overview extends View {
  #canvas = h.canvas({ tabindex: "0", role: "application", "aria-roledescription": "heat maps of heads" });
  #orders = h.fieldset({ class: "steps" });
  #legend = h.div();
  #more = button("over many sentences", () => store.go({ view: "corpus" }), { class: "link small", title: "The means of every head over a corpus" });
  #note = h.p({ class: "muted small" });
  #pictures = new Map(); // site → {data, shape}
  #sheets = new Map(); // site → all its heads below one another, coloured
  #statistics = null;
  #frame = 0;
  #tiles = []; // {site, head, x, y, size}
  #here = 0;
  #title = h.h3({ class: "headline" });
  #large = new Heat({ move: ([query, key]) => this.open(this.shown, { query, key }), open: () => this.open(this.shown), what: "the head in large" });
  #facts = h.div();
  #off = button("Switch it off", () => this.switchOff());
  #beside = h.div({ class: "beside" });
  #zoom = latest();

  connectedCallback() {
    if (this.firstChild) return;
    const card = h.div({ class: "card preview" }, this.#title, this.#large.node, this.#facts, h.p(this.#off));
    this.#beside.append(h.div({ class: "heads-all" }, this.#canvas), card);
    this.append(
      h.div({ class: "view-head" }, h.div({ class: "row" }, this.#orders, this.#more), this.#legend),
      this.#note,
      this.#beside,
    );
    this.#canvas.addEventListener("keydown", (event) => this.key(event));
    this.#canvas.addEventListener("click", (event) => this.press(event));
    this.#canvas.addEventListener("pointermove", (event) => this.hover(event));
    this.#canvas.addEventListener("focus", () => this.tell());
  }

  show(trace, state) {
    this.trace = trace;
    // few heads leave more room for the large one
    this.#beside.classList.toggle("few", Math.max(...trace.sites.map((site) => (site.shown ? site.heads : 0))) <= FEW);
    this.#more.hidden = Boolean(trace.picture) || !VIEWS.find((view) => view.name === "corpus")?.fits(trace); // an exported page has none
    this.order = ORDERS.some(([name]) => name === state.order) ? state.order : "place";
    this.chosen = state;
    if (this.fresh("trace", trace.id)) this.load(trace);
    else this.draw();
  }

  draw() {
    const { trace, order, chosen } = this;
    const came = this.#pictures.size + (this.#statistics ? 1 : 0);
    if (!came) return;
    if (this.fresh("orders", trace.id, order, this.#statistics !== null)) this.orders(order);
    const sites = trace.sites.filter((site) => site.shown);
    const pooled = sites.some((site) => Math.max(site.n_q, site.n_k) > PICTURE);
    const palettes = sites.map(paletteOf);
    if (this.fresh("legend", dark(), pooled, palettes)) replace(this.#legend, h.span({ class: "keys" }, legends(palettes, pooled)));
    if (this.fresh("sheets", dark())) this.#sheets.clear();
    if (this.fresh("paint", trace.id, order, dark(), this.wide, chosen.site, chosen.head, devicePixelRatio, came)) {
      this.arrange(order);
      this.#here = Math.max(0, this.#tiles.findIndex((tile) => tile.site.name === chosen.site && tile.head === chosen.head));
      this.paint(order);
      this.enlarge(this.#here);
    }
  }

  // a head off or on again: the one that stands in large, unless another is told
  switchOff(which = this.shown) {
    const tile = this.#tiles[which];
    if (!tile) return;
    const { edits } = store.state;
    const at = (edits.off ?? []).findIndex((one) => one.site === tile.site.name && one.head === tile.head);
    store.go({ edits: toggled(edits, tile.site.name, tile.head, at) });
  }

  // pixels for the pictures; the large one stands beside or below them
  get wide() {
    return Math.max(280, this.#canvas.parentElement.clientWidth);
  }

  // the head that is pointed at, with its tokens and its numbers
  enlarge(at) {
    const tile = this.#tiles[at];
    const { trace } = this;
    if (!tile || !this.fresh("large", trace.id, tile.site.name, tile.head, dark(), this.wide, this.#statistics !== null)) return;
    this.#zoom(async () => {
      const { site, head } = tile;
      const found = await this.ask(headOf(trace, site, head));
      if (!found || this.trace !== trace) return;
      this.shown = this.#tiles.findIndex((one) => one.site === site && one.head === head);
      const width = Math.max(200, this.#large.node.clientWidth);
      this.#large.draw(picture(found, { width, height: Math.max(300, Math.min(1.3 * width, 420)) }));
      this.#large.point([this.chosen.query, this.chosen.key]); // the cursor of all views
      this.#large.tell(`${site.name}, head ${head}, in large`);
      replace(this.#title, `${site.name}, head ${head}`);
      replace(this.#off, isOff(trace, site, head) ? "Switch it on" : "Switch it off");
      const facts = ORDERS.slice(1).map(([name, label]) => [label, this.value(tile, name), UNITS.get(name)]);
      replace(this.#facts, terms(facts.filter(([, value]) => value !== null).map(([label, value, [factor, unit]]) => [label, [figure(factor * value, 3), ` ${unit}`]]), { class: "stages" }));
    });
  }

  // what comes is drawn at once, as often as the screen shows it
  async load(trace) {
    this.#pictures.clear();
    this.#sheets.clear();
    this.#statistics = null;
    delete this.dataset.painted;
    const missing = trace.sites.filter((site) => !site.shown && site.why);
    replace(this.#note, missing.map((site) => h.span(`${site.name}: ${site.why}. `)));
    const sites = trace.sites.filter((site) => site.shown);
    const found = (n, picture) => {
      if (this.trace !== trace) return;
      this.#pictures.set(sites[n].name, { ...picture, palette: paletteOf(sites[n]) });
      cancelAnimationFrame(this.#frame);
      this.#frame = requestAnimationFrame(() => this.draw());
    };
    const request = api.overview(trace.id, PICTURE, found).then(() => api.statistics(trace.id));
    const statistics = await this.ask(request);
    if (this.trace !== trace) return;
    if (!statistics) return this.stale("trace");
    this.#statistics = statistics;
    this.draw();
  }

  orders(order) {
    const known = Object.values(this.#statistics ?? {}).some((one) => one.aer);
    const some = ORDERS.filter(([name]) => name !== "aer" || known);
    choices(this.#orders, h.legend("Sorted by"), "order", order, some, (order) => store.set({ order }));
  }

  value(tile, name) {
    return this.#statistics?.[tile.site.name]?.[name]?.[tile.head] ?? null;
  }

  arrange(order) {
    const width = this.wide;
    const sites = this.trace.sites.filter((site) => site.shown);
    const tiles = sites.flatMap((site) => Array.from({ length: site.heads }, (_, head) => ({ site, head })));
    const sorted = order !== "place";
    if (sorted) {
      const rank = (tile) => (order === "sink" ? -1 : 1) * (this.value(tile, order) ?? Infinity);
      tiles.sort((a, b) => rank(a) - rank(b));
    }
    const margin = sorted || width < 640 ? 0 : 140;
    // a layer's heads on one line, if they are not too many
    const most = Math.max(...sites.map((site) => site.heads));
    const even = Math.floor((width - margin - 2 * EDGE + GAP) / most) - GAP;
    const size = width < 480 ? 56 : even >= 40 ? Math.min(even, 110) : 64;
    const across = Math.max(1, Math.floor((width - margin - 2 * EDGE + GAP) / (size + GAP)));
    // a line is as high as its pictures, or as the words beside it
    const high = (site) => Math.max(margin ? 34 : 12, Math.min(size, (size * site.n_q) / Math.max(site.n_q, site.n_k)));
    const step = (site) => (sorted ? size + 42 : high(site) + 28);
    let [x, y, last] = [0, 0, null];
    for (const tile of tiles) {
      const opens = !sorted && tile.site !== last;
      if (x === across || (opens && last)) [x, y] = [0, y + step(last)];
      if (opens && !margin) y += 22;
      Object.assign(tile, { x: margin + EDGE + x * (size + GAP), y: y + EDGE, size, column: x, opens });
      [x, last] = [x + 1, tile.site];
    }
    this.#tiles = tiles;
    this.across = across;
    this.tall = y + size + 46;
    this.margin = margin;
  }

  paint(order) {
    const context = fit(this.#canvas, this.wide, this.tall);
    const ink = inks();
    for (const [name, { data, shape, palette }] of this.#pictures) {
      if (!this.#sheets.has(name)) this.#sheets.set(name, sheet(data, shape[0] * shape[1], shape[2], palette, null, data));
    }
    context.textBaseline = "alphabetic";
    for (const tile of this.#tiles) {
      const { name, n_q, n_k } = tile.site;
      const [, rows, columns] = this.#pictures.get(name)?.shape ?? [0, n_q, n_k];
      const scale = tile.size / Math.max(rows, columns);
      const [w, h] = [Math.max(12, columns * scale), Math.max(12, rows * scale)];
      Object.assign(tile, { w, h });
      const all = this.#sheets.get(name);
      if (all) context.drawImage(all, 0, tile.head * rows, columns, rows, tile.x, tile.y, w, h);
      context.strokeStyle = ink.frame;
      context.lineWidth = 1;
      context.strokeRect(tile.x - 0.5, tile.y - 0.5, w + 1, h + 1);
      this.caption(context, tile, order, ink);
    }
    this.mark(context, ink);
    this.name(this.#here);
    if (this.#statistics) this.dataset.painted = `${this.trace.id} ${order}`;
  }

  caption(context, tile, order, ink) {
    const { x, y, size, site, head } = tile;
    context.font = `12px ${ink.font}`;
    const off = isOff(this.trace, site, head);
    if (size >= SWITCH) {
      context.textAlign = "right";
      context.fillStyle = off ? ink.gold : ink.accent;
      context.fillText(off ? "off" : "on", x + size, y + (order === "place" ? tile.h : size) + 14);
      context.textAlign = "left";
    }
    if (off) {
      context.strokeStyle = ink.gold;
      context.lineWidth = 2;
      context.beginPath();
      context.moveTo(x, y);
      context.lineTo(x + tile.w, y + tile.h);
      context.stroke();
    }
    context.fillStyle = ink.muted;
    if (order === "place") {
      context.fillText(`head ${head}`, x, y + tile.h + 14, size - 26);
      if (!tile.opens) return;
      context.fillStyle = ink.ink;
      context.font = `14px ${ink.font}`;
      if (!this.margin) return context.fillText(`${site.name} · ${site.kind}`, x, y - 8);
      context.fillText(site.name, 0, y + 14, this.margin - 12);
      context.fillStyle = ink.muted;
      context.font = `12px ${ink.font}`;
      context.fillText(site.kind, 0, y + 32);
      return context.fillText(sizeOf(site), 0, y + 48, this.margin - 12);
    }
    context.fillText(`${site.name}, ${head}`, x, y + size + 14, size >= SWITCH ? size - 24 : size + 4);
    const value = this.value(tile, order);
    context.fillStyle = ink.ink;
    const [factor, unit] = UNITS.get(order);
    return context.fillText(value === null ? "no links known" : `${digits(factor * value, 3)} ${unit}`, x, y + size + 29, size + 4);
  }

  mark(context, ink) {
    const tile = this.#tiles[this.#here];
    if (!tile) return;
    context.strokeStyle = ink.gold;
    context.lineWidth = 2;
    context.strokeRect(tile.x - 3, tile.y - 3, tile.w + 6, tile.h + 6);
  }

  // --- pointing ---

  at(event) {
    const [x, y] = pointer(this.#canvas, event);
    return this.#tiles.findIndex((tile) => x >= tile.x && x < tile.x + tile.size && y >= tile.y && y < tile.y + tile.h + 16);
  }

  hover(event) {
    const found = this.at(event);
    this.#canvas.style.cursor = found < 0 ? "" : "pointer";
    if (found >= 0 && found !== this.hovered) {
      this.tell(found);
      this.enlarge(found);
    }
    this.hovered = found;
  }

  press(event) {
    const found = this.at(event);
    if (found < 0) return;
    if (this.onSwitch(event, this.#tiles[found])) this.switchOff(found);
    else this.open(found);
  }

  // the word “on” or “off” below a picture
  onSwitch(event, tile) {
    const [x, y] = pointer(this.#canvas, event);
    return tile.size >= SWITCH && x >= tile.x + tile.size - 28 && y >= tile.y + tile.h + 1;
  }

  switchAt(n) {
    const { x, y, h, size } = this.#tiles[n];
    return [x + size - 8, y + h + 8];
  }

  key(event) {
    const steps = { ArrowLeft: -1, ArrowRight: 1, Home: -this.#here, End: this.#tiles.length - 1 - this.#here };
    if (event.key === "Enter" || event.key === " ") {
      event.preventDefault();
      return this.open(this.#here);
    }
    if (event.key === "Delete" || event.key === "x") {
      event.preventDefault();
      return this.switchOff(this.#here);
    }
    let to = event.key in steps ? this.#here + steps[event.key] : null;
    if (event.key === "ArrowUp" || event.key === "ArrowDown") to = this.above(event.key === "ArrowDown" ? 1 : -1);
    if (to === null || !this.#tiles[to]) return undefined;
    event.preventDefault();
    const tile = this.#tiles[to];
    store.set({ site: tile.site.name, head: tile.head });
    const box = this.#canvas.getBoundingClientRect();
    if (box.top + tile.y < 0 || box.top + tile.y + tile.size > innerHeight - 60) {
      scrollBy({ top: box.top + tile.y - innerHeight / 2 });
    }
    return this.tell(to);
  }

  // the tile of the next line that stands nearest
  above(by) {
    const here = this.#tiles[this.#here];
    const lines = [...new Set(this.#tiles.map((tile) => tile.y))];
    const y = lines[lines.indexOf(here.y) + by];
    const line = this.#tiles.filter((tile) => tile.y === y);
    const near = line.find((tile) => tile.column === here.column) ?? line.at(-1);
    return near ? this.#tiles.indexOf(near) : null;
  }

  open(at, cell = {}) {
    const tile = this.#tiles[at];
    if (tile) store.go({ site: tile.site.name, head: tile.head, view: "matrix", ...cell });
  }

  tell(at = this.#here) {
    const tile = this.#tiles[at];
    if (tile) say(this.name(at));
  }

  // a canvas has no words of its own
  name(at) {
    const tile = this.#tiles[at];
    if (!tile) return "";
    const parts = ORDERS.slice(1).map(([name, label, , factor, unit]) => [label, this.value(tile, name), factor, unit]);
    const known = parts.filter(([, value]) => value !== null).map(([label, value, factor, unit]) => `${label} ${digits(factor * value, 4)} ${unit}`);
    const text = `${tile.site.name}, head ${tile.head}: ${known.join(", ")}`;
    this.#canvas.setAttribute("aria-label", `Heads. ${text}. Arrows move, Enter opens, Delete switches off or on.`);
    return text;
  }
}

customElements.define("regard-overview", Overview);
