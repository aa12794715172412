// Lines view (bipartite): two columns of tokens, with a line for every larger weight. Pointing at a token isolates it.

import * as api from "../api.js";
import { digits, h, pointer, replace, say, shortened } from "../dom.js";
import { dark, fit, headColours, inks } from "../paint.js";
import { store } from "../store.js";
import { axisName, labels, latest, selectedHeads, siteOf, strongest, View } from "../view.js";
import { tokenCard } from "./cell.js";

const LINE = 24; // pixels from token to token at least
const FEW = 8; // lines of a token in a long text; its other weights are below them
const FAINT = 0.02; // below: no line, unless its token is isolated

class Lines extends View {
  #canvas = h.canvas({ tabindex: "0", role: "application", "aria-roledescription": "lines between tokens" });
  #card = h.div({ class: "card" });
  #note = h.p({ class: "muted small" });
  #load = latest();
  #rows = new Map(); // query → its exact weights, of each head
  #legend = h.div();
  #hovered = null; // {side: "down" | "across", at}

  connectedCallback() {
    if (this.firstChild) return;
    const main = h.div(this.#note, this.#legend, this.#canvas);
    this.append(h.div({ class: "beside" }, main, this.#card));
    this.#canvas.addEventListener("pointermove", (event) => this.hover(this.at(event)));
    this.#canvas.addEventListener("pointerleave", () => this.hover(null));
    this.#canvas.addEventListener("click", (event) => this.pick(this.at(event)));
    this.#canvas.addEventListener("wheel", (event) => this.wheel(event), { passive: false });
    this.#canvas.addEventListener("keydown", (event) => this.key(event));
    this.#canvas.addEventListener("focus", () => this.tell());
  }

  show(trace, state) {
    const site = siteOf(trace, state);
    const heads = selectedHeads(trace, state);
    const subject = [trace.id, site.name, state.head, ...heads.map((one) => `${one.site.name}:${one.head}`)];
    this.now = { trace, site, head: state.head, heads, query: Math.min(state.query, site.n_q - 1), subject };
    if (this.fresh("legend", subject, dark())) this.several();
    if (this.fresh("subject", subject)) {
      this.names = { down: labels(trace, site.queries, site.n_q), across: labels(trace, site.keys, site.n_k) };
      this.#rows.clear();
      this.from = { down: 0, across: 0 };
      this.stale("query");
    }
    const { appearance } = this;
    if (this.fresh("appearance", subject, appearance)) this.measure();
    if (this.fresh("query", subject, this.now.query)) this.follow();
    if (this.fresh("draw", subject, this.now.query, appearance)) this.refresh();
  }

  get many() {
    return this.now.heads.length > 1;
  }

  // the colours of several heads, and their words
  async several() {
    const { subject, heads } = this.now;
    if (!this.many) return replace(this.#legend);
    this.words = await import("./several.js");
    if (this.now.subject.join() !== subject.join()) return undefined;
    replace(this.#legend, this.words.headLegend(heads, store.state, "a line for each head, in its colour"));
    return this.card();
  }

  measure() {
    const { site } = this.now;
    this.ink = inks();
    this.width = Math.min(Math.max(260, this.#canvas.parentElement.clientWidth), 780);
    const full = Math.max(320, innerHeight - (this.#canvas.getBoundingClientRect().top + scrollY) - 70);
    const most = Math.max(site.n_q, site.n_k);
    this.line = Math.max(LINE, Math.min(36, Math.floor(full / most))); // few tokens stand further apart
    this.fits = Math.max(4, Math.floor(full / this.line)); // tokens in sight
    this.tall = this.line * Math.min(this.fits, most) + 28;
    const scrolls = site.n_q > this.fits || site.n_k > this.fits;
    const text = "More tokens than fit: the strongest visible links are drawn. Arrows or the wheel scroll each column.";
    replace(this.#note, scrolls ? text : "");
    this.name(`${site.n_q} queries × ${site.n_k} keys`);
  }

  // the chosen query comes into sight
  follow() {
    const { query, site } = this.now;
    this.aimed = false;
    if (query < this.from.down || query >= this.from.down + this.fits) this.scroll("down", query - Math.floor(this.fits / 2), site.n_q);
  }

  // and so does what it attends to most
  aim() {
    const { query, site } = this.now;
    const [best] = strongest(this.largest(query), 1, 0);
    const { across } = this.from;
    if (this.aimed || best === undefined) return;
    this.aimed = true;
    if (best < across || best >= across + this.fits) this.scroll("across", best - Math.floor(this.fits / 2), site.n_k);
  }

  scroll(side, to, count) {
    this.from[side] = Math.max(0, Math.min(Math.round(to), count - this.fits));
  }

  refresh() {
    this.draw();
    this.#load(() => this.load());
  }

  async load() {
    const { trace, site, subject } = this.now;
    const { down } = this.from;
    const last = Math.min(site.n_q, down + this.fits);
    const missing = [];
    for (let row = down; row < last; row++) if (!this.#rows.has(row)) missing.push(row);
    if (missing.length) {
      const [top, bottom] = [missing[0], missing.at(-1) + 1];
      const blocks = this.now.heads.map((one) => api.block(trace.id, one.site.name, one.head, [top, bottom, 0, site.n_k]));
      const found = await this.ask(Promise.all(blocks));
      if (!found || this.now.subject.join() !== subject.join()) return;
      if (this.#rows.size > 4 * this.fits) this.#rows.clear(); // a reader who scrolls far needs not all of it
      for (let row = top; row < bottom; row++) {
        this.#rows.set(row, found.map((one) => one.subarray((row - top) * site.n_k, (row - top + 1) * site.n_k)));
      }
    }
    this.aim();
    this.draw();
    this.card();
    this.dataset.painted = [...subject, down].join(" ");
  }

  // --- drawing ---

  get live() {
    return this.#hovered ?? { side: "down", at: this.now.query };
  }

  y(side, at) {
    return 20 + (at - this.from[side] + 0.5) * this.line;
  }

  draw() {
    const context = fit(this.#canvas, this.width, this.tall);
    const { ink } = this;
    context.font = `14px ${ink.font}`;
    const widest = [this.names.down, this.names.across].map((names) => this.gutter(context, names));
    this.edges = [widest[0], this.width - widest[1]];
    context.textBaseline = "middle";
    context.direction = "ltr";
    context.save();
    context.beginPath();
    context.rect(this.edges[0], 18, this.edges[1] - this.edges[0], this.tall - 18);
    context.clip();
    this.strokes(context);
    context.restore();
    this.column(context, "down", this.edges[0] - 10, "right");
    this.column(context, "across", this.edges[1] + 10, "left");
    context.font = `12px ${ink.font}`;
    context.fillStyle = ink.muted;
    context.textAlign = "right";
    context.fillText(axisName(this.now.site.queries), this.edges[0] - 10, 8);
    context.textAlign = "left";
    context.fillText(axisName(this.now.site.keys), this.edges[1] + 10, 8);
    if (this.width <= 460) return;
    const [x, side] = this.live.side === "down" ? [this.width - 2, "right"] : [2, "left"];
    context.textAlign = side;
    context.fillText("weight", x, 8);
  }

  // room for the tokens and a number; measured on some, so that scrolling does not move it
  gutter(context, names) {
    const step = Math.ceil(names.length / 200);
    const some = names.filter((_, n) => n % step === 0).map((name) => context.measureText(shortened(name, 20)).width);
    return Math.min(Math.max(...some) + (this.width > 460 ? 64 : 16), this.width * 0.36);
  }

  // lines of the isolated token in full colour, the others behind it
  strokes(context) {
    const { site } = this.now;
    const { side, at } = this.live;
    const isolated = this.#hovered !== null || document.activeElement === this.#canvas;
    const [x, X] = [this.edges[0] + 2, this.edges[1] - 2];
    const last = Math.min(site.n_q, this.from.down + this.fits);
    const { heads } = this.now;
    const stroke = (row, key, weight, alpha, n) => {
      // lines of several heads between the same two tokens lie beside each other
      const beside = (n - (heads.length - 1) / 2) * Math.min(3, (this.line - 8) / heads.length);
      const [y, Y] = [this.y("down", row) + beside, this.y("across", key) + beside];
      context.strokeStyle = this.many ? headColours()[n] : this.ink.accent;
      context.globalAlpha = alpha;
      context.lineWidth = 0.6 + 5 * weight;
      context.beginPath();
      context.moveTo(x, y);
      context.bezierCurveTo(x + (X - x) * 0.4, y, X - (X - x) * 0.4, Y, X, Y);
      context.stroke();
    };
    for (let row = this.from.down; row < last; row++) {
      const mine = side === "down" && row === at;
      const fade = isolated && !mine ? 0.12 : 1;
      for (const [n, weights] of (this.#rows.get(row) ?? []).entries()) {
        for (const key of strongest(weights, mine ? 64 : FEW, mine ? 0.0005 : FAINT)) {
          const here = mine || (side === "across" && key === at);
          if (isolated && here) continue;
          const out = key < this.from.across || key >= this.from.across + this.fits; // its token is out of sight
          stroke(row, key, weights[key], (0.1 + 0.75 * Math.sqrt(weights[key])) * fade * (out ? 0.35 : 1), n);
        }
      }
    }
    if (isolated) for (const [row, key, weight, n] of this.isolated()) stroke(row, key, weight, 0.25 + 0.75 * Math.sqrt(weight), n);
    context.globalAlpha = 1;
  }

  // [query, key, weight, which head] of the token that is pointed at, the largest weight first
  isolated() {
    const { side, at } = this.live;
    const mine = () => (this.#rows.get(at) ?? []).flatMap((weights, n) => strongest(weights, 64, 0.0005).map((key) => [at, key, weights[key], n]));
    const found = side === "down" ? mine() : [...this.#rows].flatMap(([row, all]) => all.map((weights, n) => [row, at, weights[at], n]));
    return found.filter(([, , weight]) => weight >= 0.0005).sort((a, b) => b[2] - a[2]).slice(0, 64 * this.now.heads.length);
  }

  // of a row the largest weight that any of the heads gives to each key
  largest(row) {
    const [first = [], ...others] = this.#rows.get(row) ?? [];
    return others.length ? first.map((weight, key) => Math.max(weight, ...others.map((one) => one[key]))) : first;
  }

  column(context, side, x, align) {
    const names = this.names[side];
    const { live, ink } = this;
    // the largest comes last, and stays
    const touched = new Map(this.isolated().toReversed().map(([row, key, weight]) => [side === "down" ? row : key, weight]));
    context.textAlign = align;
    const last = Math.min(names.length, this.from[side] + this.fits);
    const full = (side === "down" ? this.edges[0] : this.width - this.edges[1]) - 14;
    for (let at = this.from[side]; at < last; at++) {
      const chosen = live.side === side && live.at === at;
      const weight = live.side === side ? undefined : touched.get(at);
      context.font = `${chosen ? "600 " : ""}14px ${ink.font}`;
      context.fillStyle = chosen ? ink.gold : weight >= FAINT || live.side === side ? ink.ink : ink.muted;
      const text = shortened(names[at], 20);
      const number = weight >= FAINT && this.width > 460 ? digits(weight, 2) : "";
      context.fillText(text, x, this.y(side, at), full - (number ? 44 : 0));
      if (!number) continue;
      context.font = `12px ${ink.font}`;
      context.fillStyle = ink.muted;
      context.textAlign = align === "left" ? "right" : "left";
      context.fillText(number, align === "left" ? this.width - 2 : 2, this.y(side, at));
      context.textAlign = align;
    }
  }

  card() {
    const { side, at } = this.live;
    const found = this.isolated().map(([row, key, weight]) => [side === "down" ? key : row, weight]);
    const others = this.names[side === "down" ? "across" : "down"];
    if (this.many && this.words) return this.words.tokenHeads(this.#card, this.names[side][at], side === "down" ? " attends to" : " attended by", this.isolated().slice(0, 18), { heads: this.now.heads, others, at: side === "down" ? 1 : 0 });
    if (this.many) return undefined;
    return tokenCard(this.#card, this.names[side][at], side === "down" ? " attends to" : " attended by", found.slice(0, 12), others);
  }

  // --- pointing ---

  at(event) {
    const [x, y] = pointer(this.#canvas, event);
    const side = x < this.width / 2 ? "down" : "across";
    const at = this.from[side] + Math.floor((y - 20) / this.line);
    const inside = x < this.edges[0] + 30 || x > this.edges[1] - 30;
    return inside && y >= 20 && at < this.names[side].length ? { side, at } : null;
  }

  hover(found) {
    if (found?.side === this.#hovered?.side && found?.at === this.#hovered?.at) return;
    this.#hovered = found;
    this.#canvas.style.cursor = found ? "pointer" : "";
    this.draw();
    this.card();
  }

  pick(found) {
    if (found) store.set({ [found.side === "down" ? "query" : "key"]: found.at });
  }

  wheel(event) {
    const side = pointer(this.#canvas, event)[0] < this.width / 2 ? "down" : "across";
    const before = this.from[side];
    this.scroll(side, before + Math.sign(event.deltaY) * 3, this.names[side].length);
    if (this.from[side] === before) return;
    event.preventDefault();
    this.refresh();
  }

  key(event) {
    const { query, site } = this.now;
    const steps = { ArrowUp: -1, ArrowDown: 1, PageUp: -this.fits, PageDown: this.fits, Home: -query, End: site.n_q };
    if (event.key === "Enter") return store.go({ view: "pair", key: strongest(this.largest(query), 1, 0)[0] ?? 0 });
    if (event.key === "ArrowLeft" || event.key === "ArrowRight") {
      event.preventDefault();
      this.scroll("across", this.from.across + (event.key === "ArrowRight" ? 1 : -1) * Math.ceil(this.fits / 2), site.n_k);
      return this.refresh();
    }
    if (!(event.key in steps)) return undefined;
    event.preventDefault();
    store.set({ query: Math.min(Math.max(query + steps[event.key], 0), site.n_q - 1) });
    return this.tell();
  }

  async tell() {
    const { query } = this.now;
    await this.load();
    const best = this.isolated().slice(0, 3);
    const whose = (n) => (this.many ? ` in head ${this.now.heads[n].head}` : "");
    const words = best.map(([, key, weight, n]) => `“${shortened(this.names.across[key])}” ${digits(weight, 3)}${whose(n)}`);
    const text = `${query} “${shortened(this.names.down[query])}” attends to ${words.join(", ")}`;
    this.name(text);
    say(text);
  }

  name(text) {
    this.#canvas.setAttribute("aria-label", `${this.now.site.name}, head ${this.now.head}. ${text}. Up and down choose a token.`);
  }
}

customElements.define("regard-lines", Lines);
