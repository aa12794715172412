// Side panel: layer, head, recipe, interventions and export.

import * as api from "./api.js";
import { button, h, renew, replace, say, shortened, terms } from "./dom.js";
import { dark, headColours } from "./paint.js";
import { store } from "./store.js";
import { MOST_HEADS, selectedHeads, siteOf, sizeOf, View } from "./view.js";

const NARROW = matchMedia("(max-width: 860px)");
const PICTURES = ["svg", "png"]; // of the view in sight
const FORMATS = ["html", "npz", "csv"]; // of the head

class Side extends View {
  #sites = h.fieldset();
  #heads = h.fieldset();
  #recipe = h.section();
  #edits = h.section();
  #save = h.section();
  #summary = h.summary();

  connectedCallback() {
    if (this.firstChild) return;
    const inside = h.div({ class: "side" }, this.#sites, this.#heads, this.#recipe, this.#edits, this.#save);
    const box = h.details({ open: !NARROW.matches }, this.#summary, inside);
    NARROW.addEventListener("change", () => (box.open = !NARROW.matches));
    this.append(box);
  }

  show(trace, state) {
    const site = siteOf(trace, state);
    if (this.fresh("sites", trace.id, state.site)) this.sites(trace, site);
    if (this.fresh("heads", trace.id, state.site, state.head, state.heads, state.edits, dark())) this.heads(site, state, trace);
    if (this.fresh("recipe", trace.id, state.site)) this.recipe(site);
    if (this.fresh("edits", trace.id, state.site, state.head, state.edits)) this.edits(site, state);
    if (this.fresh("save", trace.id, state.site, state.head)) this.save(trace, site, state);
    replace(this.#summary, site ? `${site.name}, head ${state.head}` : "No attention layer to show");
  }

  sites(trace, site) {
    const list = trace.sites.map((one) =>
      choice("site", one.name, one === site, [one.name, h.span({ class: "muted small" }, one.kind)], {
        disabled: !one.shown,
        title: one.why || "",
        pick: () => store.go({ site: one.name }),
      }),
    );
    renew(this.#sites, ":checked", h.legend("Layer"), h.div({ class: "sites" }, list));
  }

  heads(site, state, trace) {
    const off = new Set((state.edits.off ?? []).filter((one) => one.site === site?.name).map((one) => one.head));
    const list = Array.from({ length: site?.heads ?? 0 }, (_, head) => {
      const pick = () => store.go({ head });
      return choice("head", head, head === state.head, [String(head)], { pick, name: off.has(head) ? "off" : "" });
    });
    const some = site?.heads && state.heads ? selectedHeads(trace, state) : null;
    const all = some ? Array.from({ length: site.heads }, (_, head) => this.several(some, site, head, off.has(head))) : list;
    const toggle = h.input({ type: "checkbox", id: "several", checked: Boolean(some), on: { change: () => store.go({ heads: some ? undefined : [[site.name, state.head]] }) } });
    this.#heads.hidden = !site?.heads; // a gate has none
    const had = document.activeElement; // where one was stays where one is
    const here = had?.id === "several" ? "#several" : some ? `[name=heads][value="${Number(had?.value)}"]` : "[name=head]:checked";
    renew(this.#heads, here, h.legend("Head"), h.div({ class: "heads" }, all), h.label({ class: "row small several", for: "several" }, toggle, `several, up to ${MOST_HEADS}`));
  }

  // a head that is shown with others, or not: in its own colour
  several(some, site, head, off) {
    const at = some.findIndex((one) => one.site === site && one.head === head);
    const pairs = some.map((one) => [one.site.name, one.head]);
    const change = () => {
      const left = pairs.filter((_, n) => n !== at);
      if (at < 0) store.go({ heads: [...pairs, [site.name, head]], head });
      else store.go({ heads: left, site: left.at(-1)[0], head: left.at(-1)[1] });
    };
    const disabled = at < 0 ? some.length >= MOST_HEADS : some.length === 1;
    const input = h.input({ type: "checkbox", name: "heads", value: String(head), checked: at >= 0, disabled, on: { change } });
    const swatch = h.span({ class: "swatch", "aria-hidden": "true", style: at < 0 ? {} : { background: headColours()[at] } });
    return h.label({ class: off ? "choice off" : "choice" }, input, h.span(swatch, String(head)));
  }

  recipe(site) {
    if (!site) return replace(this.#recipe);
    const parts = ["score", "position", "pattern", "normaliser", "gate"].filter((name) => site[name]);
    const size = ["size", sizeOf(site)];
    const lines = [size, ...parts.map((name) => [name, site[name]])];
    const note = site.shown && site.why ? h.p({ class: "muted small" }, `${site.why}.`) : null;
    return replace(this.#recipe, h.h2("Recipe"), terms(lines, { class: "recipe" }), note);
  }

  edits(site, state) {
    const list = editLines(state.edits, "Undo", (edits) => store.go({ edits }));
    const off = (state.edits.off ?? []).findIndex((one) => one.site === site?.name && one.head === state.head);
    const toggle = h.button({
        type: "button",
        "aria-pressed": String(off >= 0),
        on: { click: () => store.go({ edits: toggled(state.edits, site.name, state.head, off) }) },
      },
      "Ablate this head",
    );
    if (!site?.heads && !list.length) return replace(this.#edits);
    return replace(
      this.#edits,
      h.h2("Interventions"),
      list.length ? h.ul({ class: "edits" }, list) : null,
      site?.heads ? h.div({ class: "row" }, toggle) : null,
    );
  }

  save(trace, site, state) {
    const copy = async () => {
      await navigator.clipboard.writeText(trace.python);
      say("The Python code of this trace is on the clipboard.");
    };
    const picture = async (format) => {
      const [view] = document.getElementById("panel").children;
      const { save } = await import("./views/picture.js");
      const where = site ? [`${site.name}, head ${state.head}`] : [];
      const name = ["regard", view.localName.slice(7), site?.name, site && state.head].filter((part) => part !== undefined);
      return save(view, [...where, shortened(trace.text, 80)].join(" · "), format, name.join("-"));
    };
    const pictures = PICTURES.map((format) => button(format.toUpperCase(), () => picture(format), { class: "small", title: "Current view" }));
    const links = FORMATS.map((format) => {
      const href = api.exportUrl(trace.id, { site: site?.name, head: state.head, format });
      return h.a({ href, download: "", class: "small" }, format.toUpperCase());
    });
    replace(
      this.#save,
      h.h2("Export"),
      h.p({ class: "row" }, pictures, links),
      h.p({ class: "row" }, h.button({ type: "button", on: { click: copy } }, "Copy as Python")),
    );
  }
}

// a radio button that looks like a line or a chip; arrow keys come with it
export function choice(group, value, checked, children, { pick, name = "", disabled = false, title = "" }) {
  const input = h.input({ type: "radio", name: group, value: String(value), checked, disabled, on: { change: pick } });
  return h.label({ class: `choice ${name}`, title }, input, h.span(children));
}

// one of some; options: [value, label, title?]
export function choices(node, legend, group, chosen, options, pick) {
  const all = options.map(([value, label, title = ""]) =>
    choice(group, value, value === chosen, [label], { title, pick: () => pick(value) }),
  );
  renew(node, ":checked", legend, all);
}

// every edit in words with a button that takes it back; change(the others)
export function editLines(edits, verb, change) {
  return Object.entries(edits).flatMap(([kind, some]) =>
    some.map((one, n) => {
      const text = inWords(kind, one);
      const undo = button("×", () => change(without(edits, kind, n)), { class: "quiet", "aria-label": `${verb}: ${text}` });
      return h.li(h.span({ class: "token" }, text), undo);
    }),
  );
}

function without(edits, kind, n) {
  const left = { ...edits, [kind]: edits[kind].filter((_, at) => at !== n) };
  if (!left[kind].length) delete left[kind];
  return left;
}

// of the kind that was added last
export function withoutLast(edits) {
  const kind = Object.keys(edits).at(-1);
  return kind ? without(edits, kind, edits[kind].length - 1) : edits;
}

// with one weight as it should be, and no other edit of its cell
export function withWeight(edits, one) {
  const same = (other) => ["site", "head", "query", "key"].every((name) => other[name] === one[name]);
  return { ...edits, weights: [...(edits.weights ?? []).filter((other) => !same(other)), one] };
}

// a head switched off, or on again: `at` is where it stands among those that are off
export function toggled(edits, site, head, at) {
  return at >= 0 ? without(edits, "off", at) : { ...edits, off: [...(edits.off ?? []), { site, head }] };
}

function inWords(kind, { site, head, query, key, value, word, to }) {
  const where = site === "*" ? "everywhere" : site;
  return {
    off: () => `${where}: head ${head} is ablated`,
    weights: () => `${where}: in head ${head}, weight ${query} → ${key} = ${value}`,
    masks: () => `${where}: in head ${head}, ${query} → ${key} masked`,
    swaps: () => `word ${word} → “${shortened(String(to))}”`,
    temperatures: () => `${where}: temperature ${value}`,
    shut: () => `${where}: gate set to 0`,
  }[kind]();
}

customElements.define("regard-side", Side);
