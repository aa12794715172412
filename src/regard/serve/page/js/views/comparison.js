// Comparison view: two heads of one or two models, and their difference.

import * as api from "../api.js";
import { digits, figure, h, replace, say, shortened, token } from "../dom.js";
import { dark, legend, legends } from "../paint.js";
import { store } from "../store.js";
import { latest, siteOf, View } from "../view.js";
import { changes } from "./changes.js";
import { Heat } from "./heat.js";
import { again, difference, headOf, picture } from "./head.js";
import { clamp, listField } from "./parts.js";

class Comparison extends View {
  #fields = h.div({ class: "pickers" });
  #heats = [0, 1, 2].map(
    () => new Heat({ move: ([query, key]) => store.set({ query, key }), hover: (cell) => this.point(cell ?? this.cell, !cell) }),
  );
  #titles = [0, 1, 2].map(() => h.h3());
  #panels = [0, 1, 2].map((n) => h.section(this.#titles[n], this.#heats[n].node));
  #here = h.div({ class: "sum linked" });
  #legend = h.div({ class: "row apart" });
  #outputs = h.div();
  #load = latest();
  #models = null;
  #others = new Map(); // request → trace
  cell = [0, 0];

  connectedCallback() {
    if (this.firstChild) return;
    this.append(
      h.div({ class: "view-head" }, this.#fields),
      this.#here,
      h.div({ class: "thirds" }, this.#panels),
      this.#legend,
      this.#outputs,
    );
  }

  show(trace, state) {
    this.now = { trace, site: siteOf(trace, state), head: state.head, other: read(state.other) };
    if (this.fresh("all", trace.id, state.site, state.head, state.other, dark(), this.clientWidth))
      this.#load(() => this.load(state));
    this.cell = [state.query, state.key]; // the cursor of all views
    if (this.fresh("cell", this.cell)) this.point(this.cell);
  }

  set(patch) {
    store.go({ other: { ...this.now.other, ...patch } });
  }

  async load(state) {
    const { trace, site, head, other } = this.now;
    this.#models ??= (await this.ask(api.models()))?.models ?? [];
    const second = await this.second(state, other);
    if (!second || this.now.trace !== trace) return undefined;
    const sites = second.sites.filter((one) => one.shown);
    const spot =
      sites.find((one) => one.name === other.site) ?? sites.find((one) => one.name === site.name) ?? sites[0];
    if (!spot) {
      this.fields(second, other, [], { name: "", heads: 0 }, 0);
      const none = "The other model has no attention layer to show; choose another.";
      return replace(this.#here, h.p({ class: "muted" }, none));
    }
    const same = second.id === trace.id && spot.name === site.name;
    const number = clamp(other.head ?? (same ? (head + 1) % spot.heads : head), 0, spot.heads - 1);
    this.fields(second, other, sites, spot, number);
    const answer = await this.ask(Promise.all([headOf(trace, site, head), headOf(second, spot, number)]));
    if (!answer) {
      this.#others.clear(); // the server may have forgotten one
      return this.stale("all");
    }
    if (this.now.trace !== trace) return undefined;
    const whose = (one) => [one.model !== (one === second ? trace : second).model && one.model, second.checkpoint !== trace.checkpoint && (one.checkpoint ? `step ${one.checkpoint}` : "end of training")];
    const which = (one, place, n) => [...(one === second || second.checkpoint !== trace.checkpoint ? whose(one) : []), place.name, `head ${n}`].filter(Boolean).join(", ");
    const names = [which(trace, site, head), which(second, spot, number)];
    [this.a, this.b] = answer;
    this.rows = [this.read(trace, site, head), this.read(second, spot, number)];
    await this.draw(names);
    replace(this.#outputs);
    if (second.id !== trace.id) {
      const found = await this.ask(api.compare(trace.id, second.id));
      if (found && this.now.trace === trace)
        replace(this.#outputs, h.h2("Outputs"), changes(found, second.model === trace.model ? [trace, second].map((one) => (one.checkpoint ? `step ${one.checkpoint}` : "end of training")) : [trace.model, second.model]));
    }
    this.dataset.painted = names.join(" | ");
    return undefined;
  }

  // the trace of the other model on the same text; the same trace when it is the same model
  async second(state, other) {
    const { trace } = this.now;
    const known = this.#models.some((one) => one.name === other.model && one.task === trace.task);
    const model = known ? other.model : trace.model;
    if (model === trace.model && other.checkpoint === (trace.checkpoint ?? null)) return trace;
    const target = other.forced && trace.options.includes("target") ? trace.output_text : null;
    const request = again(trace, state, { model, checkpoint: other.checkpoint, edits: null, target });
    const key = JSON.stringify(request);
    const kept = this.#others.get(key);
    const found = kept ?? (await this.ask(api.trace(request)));
    if (found) this.#others.set(key, found);
    else this.set({ model: "" }); // the reason stands above; the choice stays open
    return found;
  }

  // an exact number of either side, from its row
  read(trace, site, head) {
    return async (i, j) => (await api.row(trace.id, site.name, head, i)).data[j];
  }

  fields(second, other, sites, spot, number) {
    if (!this.fresh("fields", this.now.trace.task, second.id === this.now.trace.id, second.model, other, spot.name, number, sites.length, spot.heads))
      return;
    const had = [...this.#fields.querySelectorAll("select, input")].indexOf(document.activeElement);
    const steps = this.#models.find((one) => one.name === second.model)?.checkpoints ?? [];
    const all = [
      listField(
        "With model",
        this.#models.filter((one) => one.task === this.now.trace.task).map((one) => [one.name, one.name]),
        second.model,
        (model) => this.set({ model, checkpoint: null, site: undefined, head: undefined }),
      ),
      steps.length > 1 ? listField("Checkpoint", [["", "end of training"], ...steps.map((step) => [step, `step ${step}`])], other.checkpoint ?? "", (step) => this.set({ checkpoint: step === "" ? null : Number(step) })) : null,
      listField(
        "Layer",
        sites.map((one) => [one.name, one.name]),
        spot.name,
        (site) => this.set({ site }),
      ),
      listField(
        "Head",
        Array.from({ length: spot.heads }, (_, n) => [n, String(n)]),
        number,
        (head) => this.set({ head: Number(head) }),
      ),
      // of two outputs of other lengths no cell has its like
      second.id !== this.now.trace.id && this.now.trace.options.includes("target")
        ? h.label({ class: "row small" }, h.input({ type: "checkbox", checked: other.forced, on: { change: () => this.set({ forced: !other.forced }) } }), "force this output (teacher forcing)")
        : null,
    ].filter(Boolean);
    replace(this.#fields, all);
    if (had >= 0) this.#fields.querySelectorAll("select, input")[had]?.focus();
  }

  draw(names) {
    const { a, b } = this;
    const alike = a.rows === b.rows && a.columns === b.columns;
    const area = (n) => ({ width: Math.max(200, this.#panels[n].clientWidth), height: 340 });
    for (const [n, name] of names.entries()) replace(this.#titles[n], name);
    this.#panels[2].hidden = !alike;
    this.#heats[0].draw(picture(a, area(0)));
    this.#heats[1].draw(picture(b, area(1)));
    const pooled = !(a.values && b.values);
    const keys = legends([a.palette, b.palette], pooled);
    if (alike) {
      const found = difference(a, b, area(2));
      this.#heats[2].draw(found.picture);
      replace(this.#titles[2], "Δ, the second less the first");
      keys.push(legend("signed", found.range, false, "Δ weight"));
    } else
      keys.push(
        h.p(
          { class: "muted small" },
          `${a.rows} × ${a.columns} and ${b.rows} × ${b.columns} cells: there is no cell-by-cell difference${this.now.trace.options.includes("target") ? "; force this output to have one" : ""}.`,
        ),
      );
    replace(this.#legend, keys);
    this.alike = alike;
    return this.point(this.cell);
  }

  async point(cell, back = true) {
    const { a, b, alike } = this;
    if (!a) return;
    for (const heat of this.#heats) heat.point(cell);
    this.turn = (this.turn ?? 0) + 1;
    const mine = this.turn;
    const inside = (one) => [Math.min(cell[0], one.rows - 1), Math.min(cell[1], one.columns - 1)];
    const numbers = await this.ask(Promise.all([this.rows[0](...inside(a)), this.rows[1](...inside(b))]));
    if (!numbers || mine !== this.turn) return;
    const part = (what, under, name = "part") => h.span({ class: name }, what, h.span(under));
    const [i, j] = inside(a);
    const change = numbers[1] - numbers[0];
    replace(
      this.#here,
      part(token(a.names.down[i]), "query"),
      part(token(a.names.across[j]), "key"),
      part(figure(numbers[0]), "weight in the first"),
      part(figure(numbers[1]), "in the second"),
      alike ? part(figure(change), "Δ weight", "part end") : null,
    );
    const text = `${shortened(a.names.down[i])} attends to ${shortened(a.names.across[j])}: ${digits(numbers[0])} and ${digits(numbers[1])}${alike ? `, difference ${digits(change)}` : ""}`;
    for (const heat of this.#heats) heat.tell(text);
    if (back && this.contains(document.activeElement)) say(text);
  }
}

// the second side, as the address may tell it
function read(other) {
  const { model, site, head, checkpoint, forced } = other && typeof other === "object" ? other : {};
  return {
    model: typeof model === "string" ? model : "",
    site: typeof site === "string" ? site : "",
    head: Number.isInteger(head) && head >= 0 ? head : null,
    checkpoint: Number.isInteger(checkpoint) && checkpoint >= 0 ? checkpoint : null,
    forced: forced === true,
  };
}

customElements.define("regard-comparison", Comparison);
