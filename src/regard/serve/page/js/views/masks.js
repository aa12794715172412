// Masks view: the attention mask of a pattern, its cost, and its empty blocks.

import * as api from "../api.js";
import { digits, figure, h, replace, say } from "../dom.js";
import { dark, sheet } from "../paint.js";
import { choices } from "../side.js";
import { store } from "../store.js";
import { latest, View } from "../view.js";
import { Heat } from "./heat.js";
import { joined, mistake, negated, PARTS } from "./notation.js";
import { button, clamp, count, listField, numberField, put } from "./parts.js";

const EXAMPLES = [
  ["Causal() & Window(8)", "a sliding window"],
  ["Window(3) | Global(1) | Random(2, seed=0)", "BigBird"],
  ["Causal() & (Window(4) | Strided(8))", "sparse transformer"],
  ["Window(4) | Global(2)", "Longformer"],
  ["Causal() | Prefix(12)", "prefix"],
  ["~Window(2)", "everybody but the neighbours"],
];
const USUAL = { pattern: EXAMPLES[0][0], length: 64, block: 8 };
const BLOCKS = [4, 8, 16, 32, 64, 128];
const STATES = ["empty", "mixed", "full"];
const SHADES = [0, 171, 222]; // of the signed palette, in which 0 is hidden
const DRAWN = 512; // pixels of a side; more tokens share one

class Masks extends View {
  #text = h.input({
    type: "text",
    class: "code",
    spellcheck: "false",
    autocomplete: "off",
    "aria-describedby": "mask-wrong",
  });
  #length = numberField("Tokens", [1, 1048576], (length) => this.set({ length }));
  #size = listField(
    "Blocks",
    BLOCKS.map((n) => [n, `${n} × ${n}`]),
    8,
    (block) => this.set({ block: Number(block) }),
  );
  #signs = h.fieldset({ class: "steps" });
  #wrong = h.div({ id: "mask-wrong", class: "wrong", role: "status" });
  #cost = h.dl({ class: "stages cost" });
  #mask = new Heat({ move: (cell) => this.point(cell), hover: (cell) => this.point(cell ?? this.cell, !cell) });
  #blocks = new Heat({ move: (cell) => this.block(cell), hover: (cell) => this.block(cell ?? this.at, !cell) });
  #here = h.p({ class: "small" });
  #there = h.p({ class: "small" });
  #maskTitle = h.h3();
  #blockTitle = h.h3();
  #load = latest();
  #sign = "&";
  #timer = 0;
  cell = [0, 0];
  at = [0, 0];

  connectedCallback() {
    if (this.firstChild) return;
    this.#text.addEventListener("input", () => {
      clearTimeout(this.#timer);
      this.#timer = setTimeout(() => this.set({ pattern: this.#text.value }), 150);
    });
    const use = (pattern) => {
      this.#text.value = pattern;
      this.set({ pattern });
    };
    const signs = [
      ["&", "& and"],
      ["|", "| or"],
    ];
    choices(this.#signs, h.legend("Add with"), "sign", this.#sign, signs, (sign) => (this.#sign = sign));
    const parts = Object.entries(PARTS).map(([part, title]) =>
      button(part, () => use(joined(this.#text.value, this.#sign, part)), { title, class: "code" }),
    );
    const others = [button("~ not", () => use(negated(this.#text.value))), button("Clear", () => use(""))];
    const examples = EXAMPLES.map(([pattern, name]) =>
      button(name, () => use(pattern), { title: pattern, class: "quiet" }),
    );
    const field = h.label({ class: "field pattern" }, h.span("Pattern (attention mask)"), this.#text);
    this.append(
      h.h2({ class: "hidden-text" }, "Masks"),
      h.div({ class: "pickers" }, field, this.#length, this.#size),
      this.#wrong,
      h.div({ class: "row parts" }, this.#signs, parts, others),
      h.div({ class: "row parts" }, h.span({ class: "muted small" }, "Examples"), examples),
      this.#cost,
      h.div(
        { class: "halves masks" },
        h.section(this.#maskTitle, this.#mask.node, this.#here),
        h.section(this.#blockTitle, this.#blocks.node, this.#there),
      ),
    );
  }

  set(patch) {
    store.set({ mask: { ...this.now, ...patch } });
  }

  show(_, state) {
    const given = state.mask && typeof state.mask === "object" ? state.mask : {};
    this.now = {
      pattern: typeof given.pattern === "string" ? given.pattern : USUAL.pattern,
      length: clamp(Number.isInteger(given.length) ? given.length : USUAL.length, 1, 1048576),
      block: BLOCKS.includes(given.block) ? given.block : USUAL.block,
    };
    if (document.activeElement !== this.#text) this.#text.value = this.now.pattern;
    put(this.#length, this.now.length);
    put(this.#size, this.now.block);
    this.#size.hidden = this.now.length > 4096; // then the server chooses
    if (this.fresh("mask", this.now)) this.#load(() => this.load());
    else if (this.fresh("appearance", dark(), this.clientWidth) && this.found) this.draw();
  }

  async load() {
    const request = this.now; // may be another by the time of the answer
    const { pattern, length, block } = request;
    const wrong = mistake(pattern);
    if (wrong) return this.refuse(wrong.why, wrong.at, pattern);
    try {
      this.found = await api.patterns(pattern, length);
    } catch (problem) {
      if (!(problem instanceof api.Problem)) throw problem;
      if (problem.status !== 400) return void (await this.ask(Promise.reject(problem)));
      const name = problem.message.match(/^([A-Z]\w+)/)?.[1];
      return this.refuse(problem.message, name && pattern.includes(name) ? pattern.indexOf(name) : null, pattern);
    }
    this.refuse("", null);
    this.bits =
      this.found.mask === null ? null : Uint8Array.from(atob(this.found.mask), (letter) => letter.charCodeAt(0));
    if (this.bits)
      Object.assign(this.found, this.blocks(Math.max(block, 2 ** Math.ceil(Math.log2(length / 128)))));
    this.cost();
    this.draw();
    this.dataset.painted = JSON.stringify(request);
    return undefined;
  }

  // the reason in place, with a mark under the letter it is about
  refuse(why, at, pattern) {
    this.#text.setAttribute("aria-invalid", String(Boolean(why)));
    const mark = why && at !== null ? h.pre(`${pattern.slice(0, at)}▸${pattern.slice(at)}`) : null;
    replace(this.#wrong, mark, why ? h.p(at === null ? why : `At character ${at + 1}: ${why}`) : null);
  }

  cost() {
    const { cells, share, exact, rows_empty: none, blocks, block, length } = this.found;
    const kinds = [0, 0, 0];
    for (const row of blocks) for (const state of row) kinds[state]++;
    const [empty, mixed, full] = kinds;
    const about = exact === false ? "about " : "";
    const lines = [
      ["cells", [about, count(cells), " of ", count(length * length)]],
      ["share of all", [about, figure(100 * share), " %"]],
      ["versus full attention", cells ? [about, figure(1 / share), " times fewer"] : ["nothing is computed"]],
      ["blocks computed", [count(mixed + full), " of ", count(empty + mixed + full), `: ${full} full, ${mixed} mixed`]],
    ];
    if (none) lines.push(["fully masked queries", [count(none)]]);
    replace(
      this.#cost,
      lines.map(([name, what]) => h.div(h.dt(name), h.dd(what))),
    );
    replace(this.#maskTitle, `Mask of ${length.toLocaleString("en")} tokens`);
    replace(this.#blockTitle, `Blocks of ${block} × ${block}: full (strong), mixed (pale), empty (grey)`);
    say(`${digits(100 * share)} % of full attention`);
  }

  draw() {
    const { length, blocks, pattern } = this.found;
    const area = (heat) => ({ width: clamp(heat.node.clientWidth, 200, 560), height: 370 });
    this.#mask.node.hidden = !this.bits;
    if (this.bits) {
      const side = Math.min(length, DRAWN);
      const bytes = Uint8Array.from(
        this.pooled(side, (n) => (n * side) / length),
        (share) => (share ? 150 + Math.round(72 * share) : 0),
      );
      this.#mask.draw({
        rows: length,
        columns: length,
        titles: ["query", "key"],
        square: true,
        area: area(this.#mask),
        sheet: sheet(bytes, side, side, "signed"),
      });
      this.point([0, 1].map((n) => Math.min(this.cell[n], length - 1)));
    } else replace(this.#here, "Masks of more than 4,096 tokens are counted in blocks, not drawn.");
    const bytes = Uint8Array.from(blocks.flat(), (state) => SHADES[state]);
    const size = { rows: blocks.length, columns: blocks[0].length };
    this.#blocks.draw({
      ...size,
      titles: ["queries", "keys"],
      square: true,
      area: area(this.#blocks),
      sheet: sheet(bytes, size.rows, size.columns, "signed"),
    });
    this.block([0, 1].map((n) => Math.min(this.at[n], blocks.length - 1)));
    this.#text.title = pattern;
  }

  sees(i, j) {
    const n = i * this.found.length + j;
    return ((this.bits[n >> 3] >> (7 - (n & 7))) & 1) === 1;
  }

  // the share of the cells that are seen, of those that fall into each pixel; place(n): of a row or column
  pooled(side, place) {
    const { length } = this.found;
    const seen = new Float64Array(side * side);
    const all = new Float64Array(side * side);
    const to = Int32Array.from({ length }, (_, n) => Math.floor(place(n)));
    for (let i = 0, n = 0; i < length; i++) {
      const row = to[i] * side;
      for (let j = 0; j < length; j++, n++) {
        all[row + to[j]]++;
        seen[row + to[j]] += (this.bits[n >> 3] >> (7 - (n & 7))) & 1;
      }
    }
    return seen.map((count, n) => count / all[n]);
  }

  blocks(block) {
    const side = Math.ceil(this.found.length / block);
    const shares = this.pooled(side, (n) => n / block);
    const state = (share) => (share === 0 ? 0 : share === 1 ? 2 : 1);
    return {
      block,
      blocks: Array.from({ length: side }, (_, row) =>
        Array.from(shares.subarray(row * side, (row + 1) * side), state),
      ),
    };
  }

  point(cell, back = true) {
    if (!this.bits) return;
    if (back) this.cell = cell;
    this.#mask.point(cell);
    const text = `Query ${cell[0]} ${this.sees(...cell) ? "may attend to" : "may not attend to"} key ${cell[1]}`;
    replace(this.#here, text);
    this.#mask.tell(text);
  }

  block(cell, back = true) {
    if (!this.found) return;
    const { block, blocks, length } = this.found;
    if (back) this.at = cell;
    this.#blocks.point(cell);
    const part = (n) => `${n * block}–${Math.min((n + 1) * block, length) - 1}`;
    const text = `Queries ${part(cell[0])}, keys ${part(cell[1])}: ${STATES[blocks[cell[0]][cell[1]]]}`;
    replace(this.#there, text);
    this.#blocks.tell(text);
  }
}

customElements.define("regard-masks", Masks);
