// Positions view: the table of a position encoding as a heat map, and one dimension as a curve.

import * as api from "../api.js";
import { digits, figure, h, replace, terms } from "../dom.js";
import { coded, dark, legend, sheet } from "../paint.js";
import { choices } from "../side.js";
import { store } from "../store.js";
import { latest, View } from "../view.js";
import { Heat } from "./heat.js";
import { clamp, numberField, put, trail } from "./parts.js";

const KINDS = {
  sinusoidal: "Added to the embedding: sine and cosine of the position at increasing wavelengths.",
  rotary: "Each pair of q and k is rotated by its position: what (1, 0) becomes, cosine beside sine.",
  alibi: "Added to the score: a penalty linear in the distance, one slope per head.",
  t5: "Added to the score: a learned bias per logarithmic distance bucket (T5).",
  learned: "Added to the embedding: one learned vector per position (untrained here).",
};
const USUAL = { kind: "sinusoidal", length: 64, width: 64, heads: 8, head: 0 };

class Positions extends View {
  #kinds = h.fieldset({ class: "steps" });
  #length = numberField("Length", [2, 1024], (length) => this.set({ length }));
  #width = numberField("Width", [2, 512], (width) => this.set({ width }), 2);
  #heads = numberField("Heads", [1, 16], (heads) => this.set({ heads }));
  #head = numberField("Head", [0, 15], (head) => this.set({ head }));
  #what = h.p({ class: "muted" });
  #heat = new Heat({ move: (cell) => this.point(cell), hover: (cell) => this.point(cell ?? this.cell, !cell) });
  #legend = h.div();
  #card = h.div({ class: "card" });
  #load = latest();
  cell = [0, 0];

  connectedCallback() {
    if (this.firstChild) return;
    const fields = h.div({ class: "pickers" }, this.#length, this.#width, this.#heads, this.#head);
    const main = h.div(this.#heat.node, this.#legend);
    this.append(
      h.h2({ class: "hidden-text" }, "Positions"),
      h.div({ class: "view-head" }, this.#kinds, fields),
      this.#what,
      h.div({ class: "beside above" }, main, this.#card),
    );
  }

  set(patch) {
    store.set({ positions: { ...this.now, ...patch } });
  }

  show(_, state) {
    const given = state.positions && typeof state.positions === "object" ? state.positions : {};
    const kind = given.kind in KINDS ? given.kind : USUAL.kind;
    const number = (name, low, high) => clamp(Number.isInteger(given[name]) ? given[name] : USUAL[name], low, high);
    const pairs = kind === "alibi" || kind === "t5";
    const heads = number("heads", 1, 16);
    this.now = {
      kind,
      length: number("length", 2, pairs ? 256 : 1024),
      width: number("width", 2, 512),
      heads,
      head: number("head", 0, heads - 1),
    };
    if (this.fresh("kinds", kind)) this.kinds(kind);
    [this.#width.hidden, this.#heads.hidden, this.#head.hidden] = [pairs, !pairs, !pairs];
    put(this.#length, this.now.length);
    put(this.#width, this.now.width);
    put(this.#heads, heads);
    put(this.#head, this.now.head);
    if (this.fresh("table", this.now, dark(), this.clientWidth)) this.#load(() => this.load(pairs));
  }

  kinds(kind) {
    const names = Object.keys(KINDS).map((name) => [name, { alibi: "ALiBi", t5: "T5" }[name] ?? name]);
    const legend = h.legend({ class: "hidden-text" }, "Kind of position");
    choices(this.#kinds, legend, "position", kind, names, (kind) => this.set({ kind }));
    replace(this.#what, KINDS[kind]);
  }

  async load(pairs) {
    const request = this.now; // may be another by the time of the answer
    const { kind, length, width, heads, head } = request;
    const answer = await this.ask(api.positions(pairs ? { kind, length, heads } : { kind, length, width }));
    if (!answer) return;
    const [rows, columns] = answer.shape.slice(-2);
    const values = pairs ? answer.data.subarray(head * rows * columns, (head + 1) * rows * columns) : answer.data;
    const { bytes, range } = coded(values, "signed");
    this.table = { values, rows, columns, pairs };
    const area = { width: Math.max(240, this.#heat.node.clientWidth), height: 400 };
    const titles = pairs ? ["query", "key"] : ["position", "dimension"];
    this.#heat.draw({ rows, columns, titles, area, square: pairs, sheet: sheet(bytes, rows, columns, "signed", range) });
    replace(this.#legend, legend("signed", range, false, pairs ? "added to the score" : "value"));
    this.point([Math.min(this.cell[0], rows - 1), Math.min(this.cell[1], columns - 1)]);
    this.dataset.painted = JSON.stringify(request);
  }

  point(cell, back = true) {
    if (!this.table) return;
    const { values, rows, columns, pairs } = this.table;
    if (back) this.cell = cell;
    const [i, j] = [Math.min(cell[0], rows - 1), Math.min(cell[1], columns - 1)];
    const value = values[i * columns + j];
    const names = pairs ? ["query", "key"] : ["position", "dimension"];
    const line = Array.from({ length: pairs ? columns : rows }, (_, n) => [
      n,
      pairs ? values[i * columns + n] : values[n * columns + j],
    ]);
    const about = pairs ? `What query ${i} adds for each key` : `Dimension ${j} along the text`;
    this.#heat.point([i, j]);
    replace(
      this.#card,
      terms([...names.map((name, n) => [name, String([i, j][n])]), ["value", figure(value), { class: "now" }]], {
        class: "stages",
      }),
      h.section(h.h3(about), trail(line, pairs ? j : i, about, pairs ? ["key", "added to the score"] : ["position", "value"])),
    );
    this.#heat.tell(`${this.now.kind}, ${names[0]} ${i}, ${names[1]} ${j}: ${digits(value)}`);
  }
}

customElements.define("regard-positions", Positions);
