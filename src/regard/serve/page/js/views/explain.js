// Explain view: a method of `regard.see.methods` on one prediction, with its progress, its numbers and its law.

import * as api from "../api.js";
import { button, h, replace, say, shortened } from "../dom.js";
import { choices } from "../side.js";
import { store } from "../store.js";
import { dark } from "../paint.js";
import { followJob, View } from "../view.js";
import { again } from "./head.js";
import { clamp, field, listField, places, usualRow } from "./parts.js";
import { drawn } from "./explanations.js";

// name → [label, what its numbers say]; the names are those of `regard look --method`
const QUESTIONS = [
  ["Which heads matter?", {
    heads: ["without the head", "Δ log p, in nats: what the prediction loses when the head's output is 0. Click a head to switch it off; 0 means it does not matter."],
    "mean-heads": ["its mean instead", "Δ log p, in nats: what the prediction loses when the head gives its mean over the queries. Click a head to switch it off."],
  }],
  ["Which words decided?", {
    "leave-one-out": ["leave one out", "Δ log p, in nats: what the prediction loses when the average token stands there instead."],
    "integrated-gradients": ["integrated gradients", "What each token adds to the logit, on the way from average tokens to these; all of them add up."],
    "gradient-input": ["gradient × input", "What each token adds to the logit, to first order."],
  }],
  ["What did each layer add?", {
    lens: ["logit lens", "What each layer (row) would have predicted at each position (column), were it the last; the last row is the model's own output."],
    contributions: ["contributions", "What each head and feed-forward network added to the logit directly; all of them add up to it."],
  }],
  ["Where does it come from?", {
    rollout: ["rollout", "Attention of all layers multiplied: the share of each key (column) in the last state of each query (row). Rows sum to 1."],
    flow: ["flow", "The largest flow from each key (column) to the last state of each query (row), with weights as capacities."],
    "value-zeroing": ["value zeroing", "How much the state of each query (row) changes where the value of a key (column) is 0. Rows sum to 1."],
    "value-norms": ["value norms", "The norm of what arrives of each value, weight · v · W, summed over heads."],
    "attention-gradient": ["attention × gradient", "What each weight adds to the logit, to first order, summed over heads."],
  }],
  ["Where do two texts part?", { patching: ["patching", "The other text is run with one state of this one: 1 brings back this text's prediction, 0 leaves the other's."] }],
];
const ALWAYS = ["rollout", "flow", "value-zeroing", "value-norms"]; // also of a model that predicts nothing
const METHODS = Object.assign({}, ...QUESTIONS.map(([, some]) => some));
const PARTS = [["residual", "residual stream"], ["attention", "attention output"], ["head", "head"]];
const KEPT = 30;

class Explain extends View {
  #questions = h.fieldset({ class: "steps" });
  #methods = h.fieldset({ class: "steps" });
  #row = h.div();
  #other = h.form({ class: "pickers above", on: { submit: (event) => this.patch(event) } });
  #what = h.p({ class: "above" });
  #bar = h.progress({ "aria-label": "Progress", max: "1", value: 0 });
  #count = h.span({ class: "muted small number" });
  #busy = h.div({ class: "row" }, this.#bar, this.#count, button("Stop", () => this.stop("Stopped.")));
  #out = h.div({ class: "explained" });
  #found = new Map(); // request → result
  #stop = null;

  connectedCallback() {
    if (this.firstChild) return;
    this.append(this.#questions, h.div({ class: "pickers above" }, this.#methods, this.#row), this.#other, this.#what, this.#busy, this.#out);
    this.#busy.hidden = true;
  }

  disconnectedCallback() {
    if (this.#stop) this.stale("request"); // begun anew when it is opened again
    this.stop();
  }

  show(trace, state) {
    const asked = read(state.explain);
    const rows = trace.rows ?? [];
    if (!rows.length && !ALWAYS.includes(asked.method)) [asked.method] = ALWAYS;
    const row = clamp(asked.row ?? usualRow(trace, state, rows), 0, Math.max(rows.length - 1, 0));
    this.now = { trace, state, method: asked.method, row, other: asked.other, part: asked.part };
    if (this.fresh("form", trace.id, asked, row)) this.form(rows);
    const patching = asked.method === "patching";
    const request = JSON.stringify([trace.id, asked.method, row, patching && [asked.other, asked.part]]);
    if (this.fresh("request", request)) this.load(request);
    else if (this.fresh("appearance", dark(), this.clientWidth)) this.draw();
  }

  set(patch) {
    const { method, row, other, part } = this.now;
    store.go({ explain: { method, row, other, part, ...patch } });
  }

  form(rows) {
    const { method, row, other, part } = this.now;
    const open = QUESTIONS.filter(([, some]) => rows.length || ALWAYS.some((name) => name in some));
    const question = QUESTIONS.find(([, some]) => method in some);
    choices(this.#questions, h.legend({ class: "hidden-text" }, "Question"), "question-of", question[0], open.map(([name]) => [name, name]), (name) => {
      const [, some] = QUESTIONS.find(([one]) => one === name);
      this.set({ method: Object.keys(some)[0] });
    });
    const all = Object.entries(question[1]).filter(([name]) => rows.length || ALWAYS.includes(name)).map(([name, [label]]) => [name, label]);
    choices(this.#methods, h.legend({ class: "hidden-text" }, "Method"), "method", method, all, (name) => this.set({ method: name }));
    this.#methods.hidden = all.length < 2;
    replace(this.#row, rows.length > 1 && method !== "lens" ? listField("Prediction", places(rows.slice(0, 2000)), row, (to) => this.set({ row: Number(to) })) : null);
    this.#other.hidden = method !== "patching";
    const text = h.input({ type: "text", name: "other", required: true, dir: "auto", value: other, placeholder: this.now.trace.text });
    replace(
      this.#other,
      field("Other text, of as many tokens", text),
      listField("Patched", PARTS, part, (to) => this.set({ part: to })),
      h.button({ type: "submit", class: "primary" }, "Compare"),
    );
    replace(this.#what, METHODS[method][1]);
  }

  patch(event) {
    event.preventDefault();
    this.set({ other: this.#other.elements.other.value.trim() });
  }

  async load(request) {
    this.stop();
    const { trace, state, method, row, other, part } = this.now;
    delete this.dataset.painted;
    if (this.#found.has(request)) return this.draw();
    const values = { method, row };
    replace(this.#out);
    if (method === "patching") {
      if (!other) return undefined;
      const second = await this.ask(api.trace(again(trace, state, { text: other, target: trace.steps && trace.options.includes("target") ? trace.output_text : null })));
      if (!second || this.now.trace !== trace || this.now.other !== other) return undefined;
      Object.assign(values, { other: second.id, part });
    }
    const from = performance.now();
    this.#stop = followJob(this, (handlers) => api.explain(trace.id, values, handlers), {
      busy: this.#busy,
      bar: this.#bar,
      count: this.#count,
      delay: 300,
      over: () => (this.#stop = null),
      result: (found) => {
        if (this.#found.size >= KEPT) this.#found.delete(this.#found.keys().next().value);
        this.#found.set(request, { found, seconds: (performance.now() - from) / 1000 });
        this.draw();
      },
    });
    return undefined;
  }

  stop(why = "") {
    this.#stop?.();
    if (!why) return;
    replace(this.#out, h.p({ class: "muted" }, why));
    this.stale("request");
  }

  draw() {
    const { trace, method, row, other, part } = this.now;
    const request = JSON.stringify([trace.id, method, row, method === "patching" && [other, part]]);
    const kept = this.#found.get(request);
    if (!kept) return;
    const { nodes, text } = drawn(kept.found, { trace, state: store.state, width: Math.max(240, this.clientWidth), method });
    replace(this.#out, nodes);
    say(`${METHODS[method][0]}: ${shortened(text, 160)}`, this);
    this.dataset.painted = request;
  }
}

// what the address says of it
function read(explain) {
  const { method, row, other, part } = explain && typeof explain === "object" ? explain : {};
  return {
    method: typeof method === "string" && method in METHODS ? method : "heads",
    row: Number.isInteger(row) && row >= 0 ? row : null,
    other: typeof other === "string" ? other : "",
    part: PARTS.some(([name]) => name === part) ? part : "residual",
  };
}

customElements.define("regard-explain", Explain);
