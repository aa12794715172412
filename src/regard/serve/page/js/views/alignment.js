// One head in; a matrix of words out: pieces added over keys, averaged over queries; gold links marked, AER if known.

import * as api from "../api.js";
import { digits, element, figure, replace, say, shortened, token } from "../dom.js";
import { cellAt, cellBox, drawCells, drawCursor, drawHere, drawLabels, drawSheet, frameOf, layout } from "../grid.js";
import { coded, dark, fit, inks, legend, sheet } from "../paint.js";
import { store } from "../store.js";
import { groups, siteOf, strongest, View } from "../view.js";

const SIDE = 512; // tokens of a side that are put together at once
const BAND = 65536; // numbers in one answer

class Alignment extends View {
  #below = element("canvas", { "aria-hidden": "true" });
  #over = element("canvas", { class: "over", tabindex: "0", role: "application", "aria-roledescription": "matrix of words" });
  #plot = element("div", { class: "plot" }, this.#below, this.#over);
  #card = element("div", { class: "card" });
  #note = element("p", { class: "muted small" });
  #key = element("div", { class: "keys" });
  #hovered = null;

  connectedCallback() {
    if (this.firstChild) return;
    const main = element("div", {}, this.#note, this.#plot, this.#key);
    this.append(element("div", { class: "beside" }, main, this.#card));
    const cell = (event) => (this.plot ? cellAt(this.plot, event.offsetX, event.offsetY) : null);
    this.#over.addEventListener("pointermove", (event) => this.hover(cell(event)));
    this.#over.addEventListener("pointerleave", () => this.hover(null));
    this.#over.addEventListener("click", (event) => this.pick(cell(event)));
    this.#over.addEventListener("keydown", (event) => this.key(event));
    this.#over.addEventListener("focus", () => this.tell());
  }

  async show(scene, state) {
    const site = siteOf(scene, state);
    const start = site.n_q > SIDE || site.n_k > SIDE ? [block(state.query, site.n_q), block(state.key, site.n_k)] : [0, 0];
    const subject = [scene.id, site.name, state.head, ...start];
    this.now = { scene, site, head: state.head, subject: subject.join(), query: state.query, key: state.key };
    if (this.fresh("subject", subject)) {
      this.values = null;
      await this.load(start);
    }
    if (!this.values || this.now.subject !== subject.join()) return;
    const looks = [dark(), this.clientWidth, innerHeight, devicePixelRatio];
    if (this.fresh("draw", subject, looks)) this.draw();
    if (this.fresh("cursor", subject, state.query, state.key, looks)) this.over();
  }

  async load([top, left]) {
    const { scene, site, head, subject } = this.now;
    const [bottom, right] = [Math.min(site.n_q, top + SIDE), Math.min(site.n_k, left + SIDE)];
    const band = Math.floor(BAND / (right - left));
    const asked = [];
    for (let row = top; row < bottom; row += band) {
      asked.push(api.cells(scene.id, site.name, head, [row, Math.min(row + band, bottom), left, right]));
    }
    const answer = await this.ask(Promise.all([api.statistics(scene.id), ...asked]));
    if (!answer || this.now.subject !== subject) return this.stale("subject");
    const [statistics, ...bands] = answer;
    const inside = (from, to) => (group) => group.places[0] >= from && group.places.at(-1) < to;
    this.down = groups(scene, site.queries, site.n_q).filter(inside(top, bottom));
    this.across = groups(scene, site.keys, site.n_k).filter(inside(left, right));
    const at = (i, j) => bands[Math.floor((i - top) / band)].data[((i - top) % band) * (right - left) + j - left];
    this.values = byWord(at, this.down, this.across);
    this.aer = statistics[site.name]?.aer?.[head] ?? null;
    const cross = site.keys === "source" && site.queries !== "source";
    this.gold = new Set(cross ? (scene.gold ?? []).map(([source, target]) => `${target} ${source}`) : []);
    const part = `Tokens ${top} to ${bottom - 1} × ${left} to ${right - 1}: the block around the cursor.`;
    replace(this.#note, bottom - top < site.n_q || right - left < site.n_k ? part : "");
    return undefined;
  }

  // --- drawing ---

  draw() {
    const ink = inks();
    const [rows, columns] = [this.down.length, this.across.length];
    const of = (side) => side.map((one) => one.label);
    const { site } = this.now;
    this.names = { down: of(this.down), across: of(this.across), titles: [site.queries, site.keys] };
    const width = Math.max(240, this.#plot.clientWidth);
    const room = innerHeight - (this.#plot.getBoundingClientRect().top + scrollY) - 110;
    const height = Math.min(Math.max(room, 320), 900, Math.max(width * 1.2, 320));
    this.plot = layout(this.#below.getContext("2d"), this.names, [0, rows, 0, columns], { width, height }, ink.font);
    this.size = [width, Math.ceil(this.plot.top + this.plot.height + 6)];
    const context = fit(this.#below, ...this.size);
    drawSheet(context, this.plot, sheet(coded(this.values, "weights").bytes, rows, columns), [0, rows, 0, columns]);
    const value = (row, column) => this.values[row * columns + column];
    drawCells(context, this.plot, { value, hidden: () => false, share: Math.sqrt, palette: "weights" }, ink);
    frameOf(context, this.plot, ink);
    drawLabels(context, this.plot, this.names, ink);
    this.links(context, ink);
    const gold = this.gold.size ? element("span", { class: "small muted" }, element("span", { class: "key-gold" }), "gold link") : null;
    const rate = this.aer === null ? null : element("span", {}, "AER ", figure(this.aer, 4), " against the gold alignment");
    replace(this.#key, legend("weights"), gold, rate);
    this.dataset.painted = this.now.subject;
  }

  links(context, ink) {
    context.strokeStyle = ink.gold;
    for (let row = 0; row < this.down.length; row++) {
      for (let column = 0; column < this.across.length; column++) {
        if (!this.linked(row, column)) continue;
        const [x, y, w, h] = cellBox(this.plot, row, column);
        context.lineWidth = Math.min(3, Math.max(1, w / 6));
        const inset = context.lineWidth / 2;
        context.strokeRect(x + inset, y + inset, w - 2 * inset, h - 2 * inset);
      }
    }
  }

  linked(row, column) {
    const [target, source] = [this.down[row].number, this.across[column].number];
    return target !== null && source !== null && this.gold.has(`${target} ${source}`);
  }

  get cell() {
    const find = (side, place) => Math.max(0, side.findIndex((group) => group.places.includes(place)));
    return [find(this.down, this.now.query), find(this.across, this.now.key)];
  }

  over() {
    const ink = { ...inks() };
    const context = fit(this.#over, ...this.size);
    const [row, column] = this.#hovered ?? this.cell;
    drawHere(context, this.plot, this.names, [row, column], ink);
    drawCursor(context, this.plot, row, column, { ...ink, gold: ink.ink });
    const weights = this.values.subarray(row * this.across.length, (row + 1) * this.across.length);
    const best = strongest(weights, 8, 1e-9).map((n) =>
      element("tr", {}, element("td", {}, token(this.names.across[n])), element("td", { class: "right" }, figure(weights[n]))),
    );
    const text = this.sentence(row, column);
    this.#over.setAttribute("aria-label", `${this.now.site.name}, head ${this.now.head}, by word. ${text}`);
    const heading = [token(this.names.down[row]), element("span", { class: "muted" }, " looks at "), token(this.names.across[column])];
    const link = this.linked(row, column) ? element("p", { class: "small" }, element("span", { class: "key-gold" }), "a gold link") : null;
    replace(
      this.#card,
      element("section", {}, element("h3", { class: "headline" }, heading), element("p", {}, figure(weights[column])), link),
      element("section", {}, element("h3", {}, "Strongest words of this row"), element("table", { class: "plain" }, element("tbody", {}, best))),
      element("p", { class: "muted small" }, this.pieces(row, column)),
    );
  }

  pieces(row, column) {
    const [down, across] = [this.down[row].places.length, this.across[column].places.length];
    if (down === 1 && across === 1) return "One piece looks at one piece: the weight itself.";
    return `Added over ${across} ${across === 1 ? "piece" : "pieces"} of the key, averaged over ${down} of the query.`;
  }

  sentence(row, column) {
    const value = this.values[row * this.across.length + column];
    const gold = this.linked(row, column) ? ", a gold link" : "";
    return `“${shortened(this.names.down[row], 40)}” looks at “${shortened(this.names.across[column], 40)}”: ${digits(value)}${gold}`;
  }

  // --- pointing ---

  hover(cell) {
    if (!this.values || String(cell) === String(this.#hovered)) return;
    this.#hovered = cell;
    this.over();
  }

  pick(cell) {
    if (cell) store.set({ query: this.down[cell[0]].places[0], key: this.across[cell[1]].places[0] });
  }

  key(event) {
    const steps = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1], Home: [0, -1e9], End: [0, 1e9] };
    if (event.key === "Enter") return store.go({ view: "pair" });
    const step = steps[event.key];
    if (!step || event.shiftKey || event.ctrlKey || event.metaKey || event.altKey || !this.values) return undefined;
    event.preventDefault();
    this.#hovered = null;
    const within = (at, count) => Math.min(Math.max(at, 0), count - 1);
    const [row, column] = this.cell;
    this.pick([within(row + step[0], this.down.length), within(column + step[1], this.across.length)]);
    return this.tell();
  }

  tell() {
    if (this.values) say(this.sentence(...this.cell));
  }
}

// value(i, j) of pieces to words: added over a key's pieces, averaged over a query's
export function byWord(value, down, across) {
  const found = new Float64Array(down.length * across.length);
  down.forEach((queries, row) => {
    across.forEach((keys, column) => {
      let sum = 0;
      for (const i of queries.places) for (const j of keys.places) sum += value(i, j);
      found[row * across.length + column] = sum / queries.places.length;
    });
  });
  return found;
}

function block(at, count) {
  return Math.max(0, Math.min(Math.floor(at / SIDE) * SIDE, count - SIDE));
}

customElements.define("regard-alignment", Alignment);
