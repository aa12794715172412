// Generation view: generated tokens step by step, next-token probabilities and branches.

import * as api from "../api.js";
import { digits, figure, h, renew, replace, say, shortened, terms, token } from "../dom.js";
import { dark } from "../paint.js";
import { same, store } from "../store.js";
import { branchText, labels, latest, View, written } from "../view.js";
import { again } from "./head.js";
import { button, clamp, curve, floats, numberField, player, put, row, walk, weighed } from "./parts.js";
import { Sampler } from "./sampler.js";

class Generation extends View {
  #watched = null; // the trace that was written live
  #live = null; // what is being written at this moment: {names, stop}
  #play = player((first) => this.play(first));
  #text = h.div({
    id: "written",
    class: "tokens",
    role: "listbox",
    tabindex: "0",
    "aria-label": "Generated tokens, step by step",
  });
  #why = h.p({ class: "row small" });
  #watch = button("Generate live", () => (this.#live ? this.stop() : this.watch()));
  #more = numberField("New tokens", [0, 256], (more) => store.go({ more }));
  #title = h.h2();
  #options = h.ol({ class: "options", "aria-label": "Next tokens" });
  #whole = h.div();
  #look = h.section();
  #read = latest();
  #draws = new Sampler({ change: (draw) => store.set({ draw }), sample: (sampling) => this.sample(sampling), force: (text) => this.branch({ id: text }) });

  connectedCallback() {
    if (this.firstChild) return;
    const step = (by) => () => this.go(this.step + by);
    const tools = h.div(
      { class: "row" },
      button("Previous", step(-1)),
      this.#play.node,
      button("Next", step(1)),
      this.#watch,
      this.#more,
    );
    const below = h.div(
      { class: "halves" },
      h.section(this.#draws.node, this.#options),
      h.section({ class: "card" }, this.#whole, this.#look),
    );
    this.append(h.div({ class: "view-head" }, this.#title, tools), this.#text, this.#why, below);
    walk(this.#text, { at: () => this.step, count: () => this.trace?.steps ?? 1, go: (to) => this.go(to) });
    this.#options.addEventListener("keydown", (event) => {
      const by = { ArrowDown: 1, ArrowUp: -1 }[event.key];
      const all = [...this.#options.querySelectorAll("button")];
      if (!by) return;
      event.preventDefault();
      all[clamp(all.indexOf(document.activeElement) + by, 0, all.length - 1)]?.focus();
    });
  }

  disconnectedCallback() {
    this.#play.stop();
    this.stop();
  }

  show(trace, state) {
    if (this.fresh("trace", trace.id)) {
      this.stop();
      this.#play.stop();
    }
    this.#more.hidden = !trace.options.includes("more");
    put(this.#more, state.more ?? 12);
    this.trace = trace;
    if (this.#live) return;
    this.step = clamp(Number.isInteger(state.step) ? state.step : 0, 0, this.trace.steps - 1);
    const [site, head] = watched(this.trace, state);
    this.draw = sampled(state.draw ?? trace.sampling);
    this.#draws.show(state.draw ?? trace.sampling ?? {}, Boolean(trace.sampling));
    if (this.fresh("step", this.trace.id, this.step, site?.name, head, dark(), this.draw)) this.#read(() => this.read(site, head));
  }

  // was the token of this step given, and not chosen: a prompt, or a target?
  get given() {
    return this.step < (this.trace.given ?? 0);
  }

  go(step) {
    store.set({ step: clamp(step, 0, this.trace.steps - 1) });
  }

  play(first) {
    if (this.step >= this.trace.steps - 1) {
      if (first) this.go(0);
      return first;
    }
    this.go(this.step + 1);
    return true;
  }

  async read(site, head) {
    const { trace, step, draw } = this;
    const names = written(trace);
    row(this.#text, names, step, (to) => this.go(to));
    replace(this.#title, `Step ${step + 1} of ${trace.steps}`);
    this.why();
    const at = site ? queryOf(trace, site, step) : -1;
    const request = [
      api.nextTokens(trace.id, step, 20, draw),
      api.next(trace.id, step, draw).catch(() => null), // a copy in a file may lack it
      site && at >= 0 ? api.row(trace.id, site.name, head, at) : null,
    ];
    const answer = await this.ask(Promise.all(request));
    if (!answer || this.#live || trace !== this.trace || step !== this.step || !same(draw, this.draw)) return;
    const [best, all, weights] = answer;
    this.options(best);
    this.#draws.tell(draw ? `${best.kept} ${best.kept === 1 ? "token" : "tokens"} can be drawn; first the model's probability (the mark), then as drawn (the bar)` : "");
    if (all) this.whole(all.data, best.chosen);
    else replace(this.#whole);
    const where = site && weights ? weighed(labels(trace, site.keys, site.n_k), weights.data) : null;
    replace(
      this.#look,
      where ? [h.h3("Attention weights"), h.p({ class: "muted small" }, `${site.name}, head ${head}`), where] : [],
    );
    const first = best.tokens[0];
    say(
      `Step ${step + 1} of ${trace.steps}: “${shortened(names[step], 40)}”. Most probable “${shortened(first.token, 40)}”, ${digits(first.probability)}`,
      this,
    );
    this.dataset.painted = `${trace.id} ${step}${draw ? ` ${JSON.stringify(draw)}` : ""}`;
  }

  options({ tokens, chosen }) {
    const [is, was] = this.given ? ["prompt", "prompt token"] : ["chosen", "generated token"];
    const line = (one) => {
      const mine = one.id === chosen;
      const inside = [
        h.span({
          class: "bar",
          "aria-hidden": "true",
          style: { width: `${100 * (one.drawn ?? one.probability)}%` }, // of the whole, so that steps can be compared
        }),
        one.drawn === undefined ? null : h.span({ class: "model-mark", "aria-hidden": "true", style: { left: `${100 * one.probability}%` } }),
        token(one.token),
        mine ? h.span({ class: "small chosen" }, is) : null,
        one.drawn === undefined ? null : h.span({ class: "muted small of-model" }, h.span({ class: "hidden-text" }, "the model's probability "), figure(one.probability, 3)),
        figure(one.drawn ?? one.probability),
      ];
      const title = mine ? was : "go on with this token";
      return h.li(
        h.button(
          {
            type: "button",
            title,
            "aria-current": mine ? "true" : null,
            on: { click: () => mine || this.branch(one) },
          },
          inside,
        ),
      );
    };
    renew(this.#options, "button", tokens.map(line));
  }

  // all tokens, from the most probable on, both scales logarithmic
  whole(values, chosen) {
    const sorted = Float32Array.from(values).sort().reverse();
    let entropy = 0;
    for (const p of sorted) if (p > 0) entropy -= p * Math.log(p);
    const floor = -8;
    const x = (rank) => Math.log(rank) / Math.log(Math.max(sorted.length, 2));
    const y = (p) => clamp(1 - Math.log10(Math.max(p, 1e-30)) / floor, 0, 1);
    const points = [];
    for (let rank = 1; rank <= sorted.length; rank = Math.max(rank + 1, Math.ceil(rank * 1.04)))
      points.push([x(rank), y(sorted[rank - 1])]);
    const p = chosen === null ? null : values[chosen];
    const rank = !p ? null : 1 + sorted.findIndex((other) => other <= p);
    const label = `All ${values.length} tokens by rank: entropy ${digits(entropy)} nats`;
    const rows = [
      ["entropy", [figure(entropy), " nats"]],
      ["perplexity", [figure(Math.exp(entropy)), " (effective number of tokens)"]],
    ];
    if (rank) rows.push([`rank of the ${this.given ? "given" : "chosen"}`, [figure(rank), ` of ${values.length}`]]);
    replace(
      this.#whole,
      h.h3("The whole distribution"),
      curve(points, {
        label,
        marks: rank ? [[x(rank), y(p)]] : [],
        ends: { top: "1", bottom: "10⁻⁸", left: "1", right: String(values.length) },
        titles: ["rank of the token", "probability"],
      }),
      terms(rows, { class: "stages" }),
    );
  }

  // --- other ways ---

  // the output drawn anew, in every view
  sample(sampling) {
    store.go({ sampling, draw: undefined, beam: undefined, target: undefined, branches: undefined });
  }

  branch({ id }) {
    store.go({ branches: [...(store.state.branches ?? []), [this.step, id]] });
  }

  why() {
    const { before, id, output_text } = this.trace;
    const left = (store.state.branches ?? []).slice(0, -1);
    const live = id === this.#watched;
    const back = button("Back", () => store.go(before ? { branches: left.length ? left : undefined } : { beam: undefined }));
    const why = before ? branchText(this.trace) : "greedy decoding, live";
    replace(this.#why, before || live ? [back, h.span(why), token(output_text, { class: "token output-now" })] : []);
  }

  watch() {
    const { more, edits } = store.state;
    const changed = Object.keys(edits).length ? JSON.stringify(edits) : null;
    const request = again(this.trace, store.state, { more, beam: null, target: null, edits: changed });
    this.#play.stop();
    const names = [];
    const keys = this.trace.axes.source ?? this.trace.axes.frames ?? this.trace.axes.text ?? [];
    const heard = (one) => {
      names.push(one.token);
      row(this.#text, names, names.length - 1, () => {});
      replace(this.#title, `Step ${names.length}: `, figure(one.probability));
      if (one.row) replace(this.#look, h.h3("Attention weights"), weighed(keys, floats(one.row)));
    };
    const over = () => {
      this.#live = null;
      replace(this.#watch, "Generate live");
    };
    const done = (trace) => {
      over();
      this.stale("step");
      this.#watched = trace.id === this.trace.id ? null : trace.id;
      // every view shows what was written, so the address asks for it
      const beam = trace.options.includes("more") ? undefined : 1;
      store.set({ step: trace.steps - 1, ...(this.#watched && { beam, target: undefined, branches: undefined }) });
      this.show(this.trace, store.state);
    };
    const problem = (reason) => {
      over();
      this.stale("step");
      this.ask(Promise.reject(reason));
      this.show(this.trace, store.state);
    };
    replace(this.#options);
    replace(this.#whole);
    replace(this.#watch, "Stop");
    this.#live = { stop: api.generate(request, { token: heard, done, problem }), over };
  }

  stop() {
    if (!this.#live) return;
    this.#live.stop();
    this.#live.over();
    this.stale("step");
    if (this.isConnected) this.show(this.trace, store.state);
  }
}

// what is drawn otherwise than the model's own probabilities say, or null
function sampled(draw) {
  if (!draw || typeof draw !== "object") return null;
  const { temperature = 1, top_k = null, top_p = 1 } = draw;
  return temperature === 1 && !top_k && top_p === 1 ? null : { temperature, ...(top_k ? { top_k } : {}), top_p };
}

// what asks at each step: the chosen head where it does, else the last one that attends to the source
function watched(trace, state) {
  const asks = trace.sites.filter((site) => site.shown && ["written", "read", "text"].includes(site.queries));
  const site =
    asks.find((one) => one.name === state.site) ?? asks.findLast((one) => one.queries === "written") ?? asks.at(-1);
  return [site, site ? clamp(state.head, 0, site.heads - 1) : 0];
}

function queryOf(trace, site, step) {
  const at = site.queries === "text" ? site.n_q - trace.steps + step : step;
  return at < site.n_q ? at : -1;
}

customElements.define("regard-generation", Generation);
