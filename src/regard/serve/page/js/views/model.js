// Model view: the residual stream at one position through every part of the model, and what each added to a logit.

import * as api from "../api.js";
import { button, digits, figure, h, replace, say, shortened, table, terms, token } from "../dom.js";
import { dark } from "../paint.js";
import { store } from "../store.js";
import { axisName, View } from "../view.js";
import { bars } from "./bars.js";
import { clamp, listField, places, usualRow } from "./parts.js";

const OPEN = 4; // layers of a stack; of more each opens at a click
const KINDS = { embedding: "embedding", norm: "norm", attention: "attention", "feed-forward": "feed-forward", sum: "residual stream", logits: "logits" };
const WHAT = {
  embedding: "What the stream begins with: the token's embedding, and its position's where one is added.",
  norm: "The state scaled to a common size, as the next part reads it.",
  attention: "What the attention adds to the stream: its heads, through the output projection.",
  "feed-forward": "What the feed-forward network adds to the stream.",
  sum: "The residual stream so far: the sum of all that was added.",
  logits: "What the model predicts from the last state.",
};

class Model extends View {
  #row = h.div();
  #law = h.p({ class: "small law" });
  #flow = h.div({ class: "flows" });
  #card = h.div({ class: "card" });
  #found = null;
  #stop = null;

  connectedCallback() {
    if (this.firstChild) return;
    this.append(h.div({ class: "pickers" }, this.#row), this.#law, h.div({ class: "beside" }, this.#flow, this.#card));
    this.#flow.addEventListener("keydown", (event) => this.key(event));
  }

  disconnectedCallback() {
    if (this.#stop) this.stale("request");
    this.#stop?.();
  }

  show(trace, state) {
    const row = clamp(Number.isInteger(state.prediction) ? state.prediction : usualRow(trace, state, trace.rows), 0, trace.rows.length - 1);
    this.now = { trace, row, part: typeof state.part === "string" ? state.part : "" };
    if (this.fresh("rows", trace.id, row)) {
      replace(this.#row, trace.rows.length > 1 ? listField("Prediction", places(trace.rows.slice(0, 2000)), row, (to) => store.go({ prediction: Number(to) })) : null);
    }
    if (this.fresh("request", trace.id, row)) this.load();
    else if (this.#found && this.fresh("part", this.now.part, dark(), this.clientWidth)) this.draw();
  }

  load() {
    const { trace, row } = this.now;
    this.#stop?.();
    delete this.dataset.painted;
    const over = (f) => (found) => {
      this.#stop = null;
      f(found);
    };
    this.#stop = api.explain(trace.id, { method: "residual-stream", row }, {
      progress: () => {},
      result: over((found) => {
        this.#found = found;
        this.draw();
      }),
      problem: over((reason) => {
        this.#found = null;
        replace(this.#flow, h.p({ class: "empty" }, reason.message));
        replace(this.#card);
        replace(this.#law);
        this.dataset.painted = "refused";
      }),
    });
  }

  // --- the flow ---

  draw() {
    const found = this.#found;
    const all = found.stacks.flatMap((stack) => stack.parts);
    this.parts = [...all, logits(found)];
    this.here = this.parts.find((part) => part.name === this.now.part) ?? largest(all) ?? this.parts.at(-1);
    this.most = Math.max(...all.map((part) => Math.abs(part.added ?? 0)), Math.abs(found.biases ?? 0), 1e-9);
    const had = this.#flow.contains(document.activeElement) ? document.activeElement.dataset.part : null;
    replace(this.#flow, found.stacks.map((stack, n) => this.stack(stack, n + 1 === found.stacks.length)));
    this.#flow.querySelector("[aria-pressed=true]")?.setAttribute("tabindex", "0");
    if (had) this.button(had)?.focus();
    this.law();
    this.card();
    this.fresh("part", this.now.part, dark(), this.clientWidth);
    this.dataset.painted = JSON.stringify([this.now.trace.id, this.now.row, this.here.name]);
  }

  button(name) {
    return [...this.#flow.querySelectorAll("[data-part]")].find((one) => one.dataset.part === name);
  }

  law() {
    const { total, logit, note, target } = this.#found;
    if (note) return replace(this.#law, h.span({ class: "muted" }, `Nothing is added up: ${note}.`));
    const off = Math.abs(total - logit) / Math.max(Math.abs(logit), 1);
    return replace(this.#law, h.span({ class: "muted" }, "prediction "), token(target.name), h.span({ class: "muted" }, ": Σ added "), figure(total), h.span({ class: "muted" }, off <= 1e-3 ? " ✓ equals " : " ✗ differs from "), figure(logit), h.span({ class: "muted" }, ", the logit"));
  }

  stack(stack, last) {
    const layers = [];
    for (const part of stack.parts) {
      const own = part.kind === "embedding" || part.name.endsWith("final norm") ? part.name : part.layer;
      if (layers.at(-1)?.name !== own) layers.push({ name: own, parts: [] });
      layers.at(-1).parts.push(part);
    }
    const count = layers.filter((layer) => layer.parts.length > 1).length;
    const nodes = layers.map((layer) => (layer.parts.length === 1 ? this.line(layer.parts) : this.layer(layer, stack.name, count <= OPEN)));
    if (last) nodes.push(this.rest(), this.line([this.parts.at(-1)]));
    const title = h.h3(stack.name, h.span({ class: "muted" }, ` at ${axisName(stack.axis)} ${stack.position}, `), token(stack.label));
    const unit = last && this.#found.biases !== null ? h.p({ class: "muted small unit" }, "added to the logit") : null;
    return h.section({ class: unit ? "flow effects" : "flow" }, title, unit, nodes);
  }

  // a layer opens and closes; closed it tells what all its parts added
  layer({ name, parts }, stack, open) {
    const lines = [];
    for (const part of parts) {
      const before = lines.at(-1);
      // a norm that a sub-layer reads stands in its line
      if (["attention", "feed-forward"].includes(part.kind) && before?.length === 1 && before[0].kind === "norm" && parts[0].kind === "norm") before.push(part);
      else lines.push([part]);
    }
    const sums = parts.map((part) => part.added).filter((one) => one !== null);
    const added = sums.length ? [h.span({ class: "muted small" }, " added "), figure(sums.reduce((a, b) => a + b, 0), 3)] : null;
    const mine = parts.includes(this.here);
    return h.details({ class: "layer", open: open || mine }, h.summary(name.startsWith(`${stack}.`) ? `layer ${name.slice(stack.length + 1)}` : name, added), lines.map((line) => this.line(line)));
  }

  // one step of the stream: a rail, the parts, what came out, what it added
  line(parts) {
    const last = parts.at(-1);
    const rail = { sum: "rail plus", embedding: "rail first", logits: "rail end" }[last.kind] ?? (parts.length > 1 || last.added !== null || ["attention", "feed-forward"].includes(last.kind) ? "rail side" : "rail");
    const boxes = parts.map((part) => this.box(part));
    return h.div({ class: "step" }, h.span({ class: rail, "aria-hidden": "true" }, last.kind === "sum" ? "⊕" : ""), h.div({ class: "boxes" }, boxes), this.effect(last.added));
  }

  box(part) {
    const here = part === this.here;
    const name = part.name.endsWith("final norm") ? "final norm" : part.kind === "attention" && part.name.endsWith("cross") ? "cross-attention" : KINDS[part.kind];
    return h.button(
      { type: "button", class: `box ${part.kind}`, tabindex: "-1", "aria-pressed": String(here), data: { part: part.name }, title: part.name, on: { click: () => this.choose(part) } },
      name,
      part.kind === "logits" ? h.span({ class: "small number" }, ` ${shortened(part.best[0][0], 16)} ${digits(100 * part.best[0][1], 2)} %`) : h.span({ class: "small number" }, ` ‖x‖ ${digits(part.norm, 3)}`),
      part.kind !== "logits" && part.best.length ? h.span({ class: "small would" }, `→ ${shortened(part.best[0][0], 16)} ${digits(100 * part.best[0][1], 2)} %`) : null,
    );
  }

  effect(added) {
    if (added === null || added === undefined) return h.span();
    const bar = h.span({ class: `delta ${added < 0 ? "less" : "more"}`, style: { width: `${(50 * Math.abs(added)) / this.most}%` } });
    return h.span({ class: "effect-bar" }, h.span({ class: "deltas", "aria-hidden": "true" }, bar), h.span({ class: "hidden-text" }, "added "), figure(added, 3));
  }

  rest() {
    const { biases } = this.#found;
    if (biases === null) return null;
    return h.div({ class: "step" }, h.span({ class: "rail side" }), h.div({ class: "boxes muted small" }, "biases of projections, norms and logits, and positions"), this.effect(biases));
  }

  // --- one part ---

  choose(part) {
    store.set({ part: part.name });
    if (innerWidth <= 940) this.#card.scrollIntoView({ block: "nearest" }); // there it stands below
    say(`${part.name}: ${part.kind === "logits" ? part.best[0][0] : `norm ${digits(part.norm, 4)}`}${part.added === null ? "" : `, added ${digits(part.added, 4)} to the logit`}`);
  }

  card() {
    const part = this.here;
    const { target, logit } = this.#found;
    const lens = part.best.length ? h.section(h.h3(part.kind === "logits" ? "Predictions" : "Would predict (logit lens)"), table([], part.best.map(([name, p]) => [token(name), h.span({ class: "number" }, `${digits(100 * p, 3)} %`)]))) : null;
    const title = h.section(h.h3({ class: "headline" }, part.name), h.p({ class: "muted small" }, WHAT[part.kind]));
    if (part.kind === "logits") return replace(this.#card, title, h.section(terms([["logit of ", [token(target.name), " ", figure(logit)]]], { class: "stages" })), lens);
    const facts = [["norm ‖x‖", figure(part.norm)], ["width", figure(part.width)], part.added === null ? null : ["added to the logit", figure(part.added)]];
    const canvas = part.vector && h.canvas({ role: "img", "aria-label": `${part.width} numbers, the largest ${digits(Math.abs(part.top[0][1]), 3)}` });
    const [site] = part.sites;
    const head = (added, n) => [site ? button(`head ${n}`, () => store.go({ site, head: n, view: "matrix" }), { class: "link small", title: "Open its matrix" }) : `head ${n}`, figure(added, 4)];
    replace(
      this.#card,
      title,
      h.section(terms(facts, { class: "stages" })),
      lens,
      part.heads.length ? h.section(h.h3("Added by each head"), table([], part.heads.map(head))) : null,
      h.section(h.h3("The vector"), canvas && h.figure({ class: "bars" }, canvas, h.figcaption(h.span({ class: "muted" }, `dimensions 0 to ${part.width - 1}, axis ±${digits(Math.abs(part.top[0][1]), 3)}`)))),
      h.section(h.h3("Largest entries"), table(["dimension", "value"], part.top.map(([n, value]) => [h.th({ scope: "row" }, String(n)), figure(value, 5)]))),
    );
    if (canvas) bars(canvas, part.vector, Math.abs(part.top[0][1]) || 1, Math.max(180, this.#card.clientWidth), -1);
    return undefined;
  }

  // one stop for Tab; the arrows walk through the parts in sight
  key(event) {
    const all = [...this.#flow.querySelectorAll("[data-part]")].filter((one) => one.checkVisibility());
    const at = all.indexOf(document.activeElement);
    const to = { ArrowDown: at + 1, ArrowRight: at + 1, ArrowUp: at - 1, ArrowLeft: at - 1, Home: 0, End: all.length - 1 }[event.key];
    if (at < 0 || to === undefined || !all[to]) return;
    event.preventDefault();
    for (const one of all) one.tabIndex = one === all[to] ? 0 : -1;
    all[to].focus();
  }
}

const logits = ({ best, logit }) => ({ name: "logits", kind: "logits", layer: "", added: null, best, logit, heads: [], sites: [] });

// the part that added most
function largest(parts) {
  const some = parts.filter((part) => part.added !== null);
  return some.reduce((best, part) => (best && Math.abs(best.added) >= Math.abs(part.added) ? best : part), null);
}

customElements.define("regard-model", Model);
