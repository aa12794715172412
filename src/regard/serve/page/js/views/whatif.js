// Interventions view: edits, the output before and after them, and the same in Python.

import * as api from "../api.js";
import { h, replace, say, shortened } from "../dom.js";
import { choices, editLines, withoutLast } from "../side.js";
import { store } from "../store.js";
import { isOff, labels, latest, siteOf, View } from "../view.js";
import { changes } from "./changes.js";
import { again } from "./head.js";
import { button, clamp, field, listField, numberField, places } from "./parts.js";

const KINDS = {
  off: "Ablate a head",
  weights: "Set a weight",
  masks: "Mask cells",
  swaps: "Replace a word",
  temperatures: "Temperature",
};
const MOST = 512; // cells hidden at once

class WhatIf extends View {
  #kinds = h.fieldset({ class: "steps" });
  #form = h.form({ class: "pickers edit-form", on: { submit: (event) => this.add(event) } });
  #made = h.ul({ class: "edits" });
  #undo = button("Undo", () => this.undo());
  #clear = button("Clear all", () => this.change({}));
  #out = h.div();
  #python = h.pre({ class: "python", tabindex: "0" });
  #load = latest();
  #kind = "off";

  connectedCallback() {
    if (this.firstChild) return;
    const legend = h.legend({ class: "hidden-text" }, "Intervention");
    choices(this.#kinds, legend, "edit", this.#kind, Object.entries(KINDS), (kind) => this.kind(kind));
    const copy = button("Copy as Python", () => this.copy());
    const tools = h.div({ class: "row" }, this.#undo, this.#clear);
    this.append(
      h.div({ class: "view-head" }, this.#kinds),
      this.#form,
      h.section({ class: "made" }, this.#made, tools),
      this.#out,
      h.section(h.div({ class: "row apart" }, h.h3("The same in Python"), copy), this.#python),
    );
  }

  show(trace, state) {
    this.now = { trace, site: siteOf(trace, state), state };
    if (this.fresh("form", trace.model, trace.text, state.site, state.head, state.query, state.key))
      this.kind(this.#kind);
    if (this.fresh("made", state.edits)) this.made(state.edits);
    if (this.fresh("trace", trace.id)) {
      replace(this.#python, trace.python);
      this.#load(() => this.compare(trace, state));
    }
  }

  // --- the edits ---

  kind(kind) {
    this.#kind = kind;
    const { trace, site, state } = this.now;
    const had = this.#form.contains(document.activeElement);
    const sites = trace.sites.filter((one) => one.shown).map((one) => [one.name, one.name]);
    const pick = (name, options, value, then = () => {}) => [name, listField(name, options, value, then)];
    const down = places(labels(trace, site.queries, site.n_q));
    const across = places(labels(trace, site.keys, site.n_k));
    const head = pick(
      "Head",
      Array.from({ length: site.heads }, (_, n) => [n, String(n)]),
      state.head,
    );
    const where = pick("Layer", sites, site.name, (name) => store.set({ site: name }));
    const number = (name, low, high, value, step) => {
      const node = numberField(name, [low, high], () => {}, step);
      node.lastChild.value = String(value);
      return [name, node];
    };
    const words = trace.swappable ?? [];
    const query = clamp(state.query, 0, site.n_q - 1);
    const key = clamp(state.key, 0, site.n_k - 1);
    const fields = {
      off: () => [where, head],
      weights: () => [
        where,
        head,
        pick("Query", down, query),
        pick("Key", across, key),
        number("Weight", 0, 1, 0.5, "any"),
      ],
      masks: () => [
        where,
        head,
        pick("Query", [["*", "every query"], ...down], query),
        pick("From key", across, key),
        pick("To key", across, key),
      ],
      swaps: () => [
        pick(
          "Word",
          words.map((word, n) => [n, `${n} ${shortened(word)}`]),
          0,
        ),
        ["Becomes", field("Becomes", h.input({ type: "text", required: true, dir: "auto" }))],
      ],
      temperatures: () => [
        pick("Layer", [["*", "everywhere"], ...sites], "*"),
        number("Temperature", 0.01, 100, 0.5, "any"),
      ],
    }[kind]();
    this.fields = Object.fromEntries(fields);
    const none = kind === "swaps" && !words.length;
    const add = h.button({ type: "submit", class: "primary", disabled: none }, "Add");
    replace(
      this.#form,
      fields.map(([, node]) => node),
      add,
      none ? h.p({ class: "muted small" }, "There are no words to swap here.") : null,
    );
    if (had) this.#form.querySelector("select, input")?.focus();
  }

  add(event) {
    event.preventDefault();
    const { site, state } = this.now;
    const value = (name) => this.fields[name].lastChild.value;
    const number = (name) => Number(value(name));
    const place = { site: site.name, head: this.fields.Head && number("Head") };
    const made = {
      off: () => [place],
      weights: () => [{ ...place, query: number("Query"), key: number("Key"), value: number("Weight") }],
      masks: () => cells(place, value("Query"), [number("From key"), number("To key")], site.n_q),
      swaps: () => [{ word: number("Word"), to: value("Becomes").trim() }],
      temperatures: () => [{ site: value("Layer"), value: number("Temperature") }],
    }[this.#kind]();
    if (!made.length || made.length > MOST)
      return void say(`${made.length} cells are too many for one edit; hide fewer`);
    if (this.#kind === "weights" && isOff(state, site, place.head)) {
      const why = `Head ${place.head} of ${site.name} is ablated: all its weights are 0. Restore it to set one.`;
      return void this.ask(Promise.reject(new api.Problem(why)));
    }
    const before = state.edits[this.#kind] ?? [];
    const known = new Set(before.map((one) => JSON.stringify(one)));
    return this.change({
      ...state.edits,
      [this.#kind]: [...before, ...made.filter((one) => !known.has(JSON.stringify(one)))],
    });
  }

  change(edits) {
    store.go({ edits });
  }

  undo() {
    store.undo(withoutLast(store.state.edits));
  }

  made(edits) {
    const had = this.#made.contains(document.activeElement);
    const all = editLines(edits, "Remove", (left) => this.change(left));
    const none = "No interventions yet: what you add is listed here and compared with the unmodified model.";
    replace(this.#made, all.length ? all : h.li({ class: "muted" }, none));
    this.#undo.disabled = !all.length;
    this.#clear.disabled = !all.length;
    if (had) (this.#made.querySelector("button") ?? this.#undo).focus();
  }

  // --- what they do ---

  async compare(trace, state) {
    if (!Object.keys(trace.edits ?? {}).length) {
      this.dataset.painted = trace.id;
      return replace(this.#out);
    }
    const before = await this.ask(api.trace(again(trace, state, { edits: null }), state.branches));
    const found = before && (await this.ask(api.compare(before.id, trace.id)));
    if (!found || trace !== this.now.trace) return undefined;
    replace(this.#out, changes(found));
    const other = found.tokens.filter((one) => !one.same).length;
    say(
      other
        ? `Output after the edits: ${shortened(found.output_text[1], 160)}`
        : "The output is unchanged.",
      this,
    );
    this.dataset.painted = trace.id;
    return undefined;
  }

  async copy() {
    try {
      await navigator.clipboard.writeText(this.#python.textContent);
      say("The code is on the clipboard.");
    } catch {
      getSelection().selectAllChildren(this.#python); // no permission: at least it is marked
      say("The code is selected; copy it with Ctrl+C.");
    }
  }
}

function cells(place, query, [from, to], rows) {
  const queries = query === "*" ? Array.from({ length: rows }, (_, n) => n) : [Number(query)];
  const keys = Array.from({ length: Math.abs(to - from) + 1 }, (_, n) => Math.min(from, to) + n);
  return queries.flatMap((one) => keys.map((key) => ({ ...place, query: one, key })));
}

customElements.define("regard-whatif", WhatIf);
