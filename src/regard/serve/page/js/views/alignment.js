// Alignment view: word-level weights of a head, summed over key subwords, averaged over query subwords; gold links and AER.

import * as api from "../api.js";
import { digits, figure, h, replace, shortened, table, token } from "../dom.js";
import { cellBox, area } from "../grid.js";
import { legend } from "../paint.js";
import { store } from "../store.js";
import { axisName, groups, siteOf, strongest, View } from "../view.js";
import { attends } from "./cell.js";
import { picture } from "./head.js";
import { Heat } from "./heat.js";

const SIDE = 512; // tokens of a side that are put together at once

class Alignment extends View {
  #heat = new Heat({
    what: "matrix of words",
    move: (cell) => this.pick(cell),
    hover: (cell) => this.values && this.over(cell ?? this.cell),
    open: () => store.go({ view: "pair" }),
  });
  #card = h.div({ class: "card" });
  #note = h.p({ class: "muted small" });
  #key = h.div({ class: "keys" });

  connectedCallback() {
    if (this.firstChild) return;
    this.append(h.div({ class: "beside" }, h.div(this.#note, this.#heat.node, this.#key), this.#card));
  }

  async show(trace, state) {
    const site = siteOf(trace, state);
    const start = site.n_q > SIDE || site.n_k > SIDE ? [block(state.query, site.n_q), block(state.key, site.n_k)] : [0, 0];
    const subject = [trace.id, site.name, state.head, ...start];
    this.now = { trace, site, head: state.head, subject: subject.join(), query: state.query, key: state.key };
    if (this.fresh("subject", subject)) {
      this.values = null;
      await this.load(start);
    }
    if (!this.values || this.now.subject !== subject.join()) return;
    const { appearance } = this;
    if (this.fresh("draw", subject, appearance)) this.draw();
    if (this.fresh("cursor", subject, state.query, state.key, appearance)) this.over(this.cell);
  }

  async load([top, left]) {
    const { trace, site, head, subject } = this.now;
    const [bottom, right] = [Math.min(site.n_q, top + SIDE), Math.min(site.n_k, left + SIDE)];
    const request = api.block(trace.id, site.name, head, [top, bottom, left, right]);
    const answer = await this.ask(Promise.all([api.statistics(trace.id), request]));
    if (!answer || this.now.subject !== subject) return this.stale("subject");
    const [statistics, weights] = answer;
    const inside = (from, to) => (group) => group.places[0] >= from && group.places.at(-1) < to;
    this.down = groups(trace, site.queries, site.n_q).filter(inside(top, bottom));
    this.across = groups(trace, site.keys, site.n_k).filter(inside(left, right));
    const at = (i, j) => weights[(i - top) * (right - left) + j - left];
    this.values = byWord(at, this.down, this.across);
    this.aer = statistics[site.name]?.aer?.[head] ?? null;
    const cross = site.keys === "source" && site.queries !== "source";
    this.gold = new Set(cross ? (trace.gold ?? []).map(([source, target]) => `${target} ${source}`) : []);
    const part = `Tokens ${top} to ${bottom - 1} × ${left} to ${right - 1}: the block around the cursor.`;
    replace(this.#note, bottom - top < site.n_q || right - left < site.n_k ? part : "");
    return undefined;
  }

  // --- drawing ---

  draw() {
    const { site } = this.now;
    const [down, across] = [this.down, this.across].map((side) => side.map((one) => one.label));
    this.names = { down, across, titles: [site.queries, site.keys].map(axisName) };
    const [rows, columns] = [down.length, across.length];
    const matrix = { rows, columns, names: this.names, values: this.values, weights: this.values, shape: [rows, columns] };
    const marks = (...where) => this.links(...where);
    this.#heat.draw({ ...picture(matrix, area(this.#heat.node, 130, 320)), marks, pen: "ink" });
    const gold = this.gold.size ? h.span({ class: "small muted" }, h.span({ class: "key-gold" }), "gold link") : null;
    const rate = this.aer === null ? null : h.span("alignment error (AER) ", figure(100 * this.aer, 3), " % against the gold alignment");
    replace(this.#key, legend("weights"), gold, rate);
    this.dataset.painted = this.now.subject;
  }

  links(context, plot, ink) {
    context.strokeStyle = ink.gold;
    for (let row = 0; row < this.down.length; row++) {
      for (let column = 0; column < this.across.length; column++) {
        if (!this.linked(row, column)) continue;
        const [x, y, wide, high] = cellBox(plot, row, column);
        context.lineWidth = Math.min(3, Math.max(1, wide / 6));
        const inset = context.lineWidth / 2;
        context.strokeRect(x + inset, y + inset, wide - 2 * inset, high - 2 * inset);
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

  over([row, column]) {
    const { site, head } = this.now;
    this.#heat.point([row, column]);
    this.#heat.tell(this.sentence(row, column), `${site.name}, head ${head}, by word. `);
    const weights = this.values.subarray(row * this.across.length, (row + 1) * this.across.length);
    const best = strongest(weights, 8, 1e-9).map((n) => [token(this.names.across[n]), figure(weights[n])]);
    const link = this.linked(row, column) ? h.p({ class: "small" }, h.span({ class: "key-gold" }), "a gold link") : null;
    replace(
      this.#card,
      h.section(attends(this.names.down[row], this.names.across[column]), h.p(figure(weights[column])), link),
      h.section(h.h3("Strongest words of this row"), table([], best)),
      h.p({ class: "muted small" }, this.pieces(row, column)),
    );
  }

  pieces(row, column) {
    const [down, across] = [this.down[row].places.length, this.across[column].places.length];
    if (down === 1 && across === 1) return "One subword to one subword: the weight itself.";
    return `Summed over ${across} ${across === 1 ? "subword" : "subwords"} of the key, averaged over ${down} of the query.`;
  }

  sentence(row, column) {
    const value = this.values[row * this.across.length + column];
    const gold = this.linked(row, column) ? ", a gold link" : "";
    return `“${shortened(this.names.down[row], 40)}” attends to “${shortened(this.names.across[column], 40)}”: ${digits(value)}${gold}`;
  }

  pick([row, column]) {
    store.set({ query: this.down[row].places[0], key: this.across[column].places[0] });
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
