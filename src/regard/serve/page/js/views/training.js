// Training view: the same text at every checkpoint: output and one head.

import * as api from "../api.js";
import { digits, figure, h, renew, replace, say, shortened, table, terms, token } from "../dom.js";
import { dark, fit, legend } from "../paint.js";
import { store } from "../store.js";
import { latest, siteOf, View } from "../view.js";
import { Heat } from "./heat.js";
import { again, headOf, picture } from "./head.js";
import { button, clamp, field, player, trail } from "./parts.js";

const MOST = 12; // checkpoints that are run of their own accord

class Training extends View {
  #range = h.input({
    type: "range",
    on: { input: () => this.go(this.nearest(Number(this.#range.value))), keydown: (event) => this.press(event) },
  });
  #play = player((first) => this.play(first), 900);
  #fixed = h.input({ type: "checkbox", on: { change: () => this.hold() } });
  #hold = h.label({ class: "row small" }, this.#fixed, "force this output (teacher forcing)");
  #title = h.h2();
  #heat = new Heat({ move: ([query, key]) => store.set({ query, key }), hover: (cell) => this.point(cell ?? this.cell) });
  #legend = h.div();
  #card = h.div({ class: "card" });
  #film = h.div({ class: "film" });
  #load = latest();
  #seen = new Map(); // checkpoint → {output_text, entropy, sheet}
  steps = [];
  cell = [0, 0];

  connectedCallback() {
    if (this.firstChild) return;
    const tools = h.div(
      { class: "row" },
      button("Previous", () => this.go(this.at - 1)),
      this.#play.node,
      button("Next", () => this.go(this.at + 1)),
      this.#hold,
    );
    const slider = field("Checkpoint", this.#range);
    slider.classList.add("wide");
    const main = h.div(this.#heat.node, this.#legend);
    this.append(
      h.div({ class: "view-head" }, this.#title, tools),
      slider,
      this.#film,
      h.div({ class: "beside above" }, main, this.#card),
    );
  }

  disconnectedCallback() {
    this.#play.stop();
  }

  async show(trace, state) {
    this.trace = trace;
    if (this.fresh("model", state.model)) {
      this.#play.stop();
      this.steps = [];
      const { model } = state;
      const answer = await this.ask(api.checkpoints(model));
      if (model !== store.state.model) return undefined;
      const { checkpoints = [], final = null, history = [] } = answer ?? {};
      this.steps = [...checkpoints.filter((step) => step !== final), null]; // the last is the model as it is
      this.final = final ?? checkpoints.at(-1) ?? 0; // of that step
      this.history = history;
      [this.#range.min, this.#range.max] = [this.stepOf(0), this.final]; // the axis is that of the steps
      return this.show(this.trace, store.state);
    }
    if (!this.steps.length || trace.model !== state.model) return undefined;
    this.at = this.steps.includes(state.checkpoint) ? this.steps.indexOf(state.checkpoint) : this.steps.length - 1;
    this.#range.value = String(this.stepOf(this.at));
    this.#range.setAttribute("aria-valuetext", this.nameOf(this.steps[this.at]));
    this.#hold.hidden = !trace.options.includes("target");
    this.#fixed.checked = Boolean(state.target);
    const site = siteOf(trace, state);
    this.key = JSON.stringify([
      state.model,
      state.text,
      state.question,
      state.target,
      site.name,
      state.head,
      state.edits,
    ]);
    if (this.fresh("subject", this.key)) this.#seen.clear();
    if (this.fresh("trace", trace.id, site.name, state.head, dark(), this.clientWidth))
      this.#load(() => this.load(trace, site, state.head));
    this.cell = [state.query, state.key]; // the cursor of all views
    if (this.fresh("cell", this.cell)) this.point(this.cell);
    return undefined;
  }

  stepOf(at) {
    return this.steps[at] ?? this.final;
  }

  nameOf(step) {
    return step === null ? `The end of training, step ${this.final}` : `Step ${step}`;
  }

  nearest(step) {
    const far = this.steps.map((_, at) => Math.abs(this.stepOf(at) - step));
    return far.indexOf(Math.min(...far));
  }

  // an arrow goes to the next checkpoint, however far that is
  press(event) {
    const by = { ArrowLeft: -1, ArrowDown: -1, ArrowRight: 1, ArrowUp: 1 }[event.key];
    if (!by) return;
    event.preventDefault();
    this.go(this.at + by);
  }

  go(at) {
    if (this.steps.length) store.set({ checkpoint: this.steps[clamp(at, 0, this.steps.length - 1)] });
  }

  play(first) {
    if (this.loading) return true; // the trace is still being made
    if (this.at >= this.steps.length - 1 && !first) return false;
    this.go(this.at >= this.steps.length - 1 ? 0 : this.at + 1);
    return true;
  }

  // what each checkpoint would write, or what is written now, read by each of them
  hold() {
    store.go({ target: this.#fixed.checked ? this.trace.output_text : undefined });
  }

  async load(trace, site, head) {
    this.loading = true;
    const answer = await this.ask(Promise.all([headOf(trace, site, head), api.statistics(trace.id)]));
    this.loading = false;
    if (!answer || trace !== this.trace) return;
    [this.matrix] = answer;
    const step = trace.checkpoint ?? null;
    const drawn = picture(this.matrix, { width: Math.max(240, this.#heat.node.clientWidth), height: 430 });
    this.#heat.draw(drawn);
    this.#seen.set(step, { output_text: trace.output_text, entropy: answer[1][site.name]?.entropy?.[head], sheet: drawn.sheet });
    replace(this.#title, this.nameOf(step));
    replace(this.#legend, legend(this.matrix.palette, null, !this.matrix.values));
    this.film(step);
    this.point(this.cell);
    say(`${this.nameOf(step)}: ${shortened(trace.output_text ?? "", 160)}`, this);
    this.dataset.painted = `${this.nameOf(step)} ${site.name} ${head}`;
    this.fill(site, head);
  }

  // the other checkpoints, one after the other, while nobody asks for something else
  async fill(site, head) {
    const { key } = this;
    if (this.filling === key) return;
    this.filling = key;
    const first = this.trace;
    for (const step of this.steps.slice(-MOST)) {
      if (this.#seen.has(step) || !this.isConnected || store.state.model !== first.model) continue;
      const trace = await this.ask(api.trace(again(first, store.state, { checkpoint: step }), store.state.branches));
      const spot = trace?.sites.find((one) => one.name === site.name);
      const answer = spot && (await this.ask(Promise.all([headOf(trace, spot, head), api.statistics(trace.id)])));
      if (!answer || key !== this.key) break;
      this.#seen.set(step, {
        output_text: trace.output_text,
        entropy: answer[1][site.name]?.entropy?.[head],
        sheet: picture(answer[0], {}).sheet,
      });
      this.film(this.steps[this.at]);
      this.point(this.cell);
    }
    this.filling = null;
  }

  // those that were seen, in the order of training
  film(now) {
    const one = (step, n) => {
      const found = this.#seen.get(step);
      const canvas = h.canvas({ "aria-hidden": "true" });
      const context = fit(canvas, 72, 72);
      if (found) context.drawImage(found.sheet, 0, 0, 72, 72);
      return h.button(
        { type: "button", class: "frame", "aria-pressed": String(step === now), on: { click: () => this.go(n) } },
        canvas,
        h.span({ class: "small" }, step === null ? `${this.final} (end)` : String(step)),
      );
    };
    renew(this.#film, '[aria-pressed="true"]', this.steps.map(one));
  }

  point(cell) {
    if (!this.matrix) return;
    const { rows, columns, names, values } = this.matrix;
    const [i, j] = [Math.min(cell[0], rows - 1), Math.min(cell[1], columns - 1)];
    this.#heat.point([i, j]);
    const value = values?.[i * columns + j];
    const seen = this.steps.filter((step) => this.#seen.has(step)).map((step) => [step, this.#seen.get(step)]);
    const now = this.steps[this.at];
    const line = seen.map(([step, one]) => [step ?? this.final, one.entropy ?? 0]);
    const loss = this.history.map((one) => [one.step, one.loss]);
    const near = loss.findIndex(([step]) => step === (now ?? this.final));
    const lines = seen.map(([step, one]) => [
      h.td({ "aria-current": step === now ? "true" : null }, step === null ? `${this.final} (end)` : String(step)),
      one.entropy === undefined ? "" : figure(one.entropy),
      token(one.output_text ?? ""),
    ]);
    const here = seen.findIndex(([step]) => step === now);
    const pair = [token(names.down[i]), ["→ ", token(names.across[j])]];
    replace(
      this.#card,
      terms([pair, value !== undefined && ["weight", figure(value), { class: "now" }]], { class: "stages" }),
      h.section(h.h3("Seen so far"), table(["step", "entropy, nats", "output"], lines, { class: "plain seen" })),
      line.length > 1 ? h.section(h.h3("Entropy of this head by step"), trail(line, here, "Entropy by step", ["training step", "nats"])) : null,
      loss.length > 1 ? h.section(h.h3("Held-out loss by step"), trail(loss, near, "Held-out loss by step", ["training step", "nats a token"])) : null,
    );
    this.#heat.tell(
      `${this.nameOf(now)}: ${shortened(names.down[i])} attends to ${shortened(names.across[j])}${value === undefined ? "" : `: ${digits(value)}`}`,
    );
  }
}

customElements.define("regard-training", Training);
