// A scene and the state in; the side panel out: which site, which head, its recipe, the edits, what can be saved.

import * as api from "./api.js";
import { element, replace, say, shortened } from "./dom.js";
import { store } from "./store.js";
import { siteOf, View } from "./view.js";

const NARROW = matchMedia("(max-width: 860px)");
const FORMATS = ["svg", "png", "html", "npz", "csv"];

class Side extends View {
  #sites = element("fieldset");
  #heads = element("fieldset");
  #recipe = element("section");
  #edits = element("section");
  #save = element("section");
  #summary = element("summary");

  connectedCallback() {
    if (this.firstChild) return;
    const inside = element("div", { class: "side" }, this.#sites, this.#heads, this.#recipe, this.#edits, this.#save);
    const box = element("details", { open: !NARROW.matches }, this.#summary, inside);
    NARROW.addEventListener("change", () => (box.open = !NARROW.matches));
    this.append(box);
  }

  show(scene, state) {
    const site = siteOf(scene, state);
    if (this.fresh("sites", scene.id, state.site)) this.sites(scene, site);
    if (this.fresh("heads", scene.id, state.site, state.head, state.edits)) this.heads(site, state);
    if (this.fresh("recipe", scene.id, state.site)) this.recipe(site);
    if (this.fresh("edits", scene.id, state.site, state.head, state.edits)) this.edits(site, state);
    if (this.fresh("save", scene.id, state.site, state.head)) this.save(scene, site, state);
    replace(this.#summary, site ? `${site.name}, head ${state.head}` : "No attention to choose");
  }

  sites(scene, site) {
    const had = this.#sites.contains(document.activeElement);
    const list = scene.sites.map((one) =>
      choice("site", one.name, one === site, [one.name, element("span", { class: "muted small" }, one.kind)], {
        disabled: !one.shown,
        title: one.why || "",
        pick: () => store.go({ site: one.name }),
      }),
    );
    replace(this.#sites, element("legend", {}, "Site"), element("div", { class: "sites" }, list));
    if (had) this.#sites.querySelector("input:checked")?.focus();
  }

  heads(site, state) {
    const had = this.#heads.contains(document.activeElement);
    const off = new Set((state.edits.off ?? []).filter((one) => one.site === site?.name).map((one) => one.head));
    const list = Array.from({ length: site?.heads ?? 0 }, (_, head) => {
      const pick = () => store.go({ head });
      return choice("head", head, head === state.head, [String(head)], { pick, name: off.has(head) ? "off" : "" });
    });
    replace(this.#heads, element("legend", {}, "Head"), element("div", { class: "heads" }, list));
    if (had) this.#heads.querySelector("input:checked")?.focus();
  }

  recipe(site) {
    if (!site) return replace(this.#recipe);
    const parts = ["score", "position", "pattern", "normaliser"].filter((name) => site[name]);
    const lines = parts.flatMap((name) => [element("dt", {}, name), element("dd", {}, site[name])]);
    const size = `${site.n_q} ${site.queries} × ${site.n_k} ${site.keys}`;
    lines.unshift(element("dt", {}, "size"), element("dd", {}, size));
    return replace(this.#recipe, element("h2", {}, "Recipe"), element("dl", { class: "recipe" }, lines));
  }

  edits(site, state) {
    const made = Object.entries(state.edits).flatMap(([kind, some]) => some.map((one, n) => ({ kind, one, n })));
    const list = made.map(({ kind, one, n }) => {
      const remove = () => store.go({ edits: without(state.edits, kind, n) });
      const label = `Undo: ${inWords(kind, one)}`;
      const button = element("button", { type: "button", class: "quiet", "aria-label": label, on: { click: remove } }, "×");
      return element("li", {}, element("span", {}, inWords(kind, one)), button);
    });
    const off = (state.edits.off ?? []).findIndex((one) => one.site === site?.name && one.head === state.head);
    const toggle = element(
      "button",
      {
        type: "button",
        "aria-pressed": String(off >= 0),
        disabled: !site,
        on: { click: () => store.go({ edits: toggled(state.edits, site.name, state.head, off) }) },
      },
      "Switch this head off",
    );
    replace(
      this.#edits,
      element("h2", {}, "What if"),
      list.length ? element("ul", { class: "edits" }, list) : null,
      element("div", { class: "row" }, toggle),
    );
  }

  save(scene, site, state) {
    const copy = async () => {
      await navigator.clipboard.writeText(scene.python);
      say("The lines that make this scene are on the clipboard.");
    };
    const links = FORMATS.map((format) => {
      const href = api.exportUrl(scene.id, { site: site?.name, head: state.head, format });
      return element("a", { href, download: "", class: "small" }, format.toUpperCase());
    });
    replace(
      this.#save,
      element("h2", {}, "Take along"),
      element("p", { class: "row" }, links),
      element("p", { class: "row" }, element("button", { type: "button", on: { click: copy } }, "Copy as Python")),
    );
  }
}

// a radio button that looks like a line or a chip; arrow keys come with it
export function choice(group, value, checked, children, { pick, name = "", disabled = false, title = "" }) {
  const input = element("input", { type: "radio", name: group, value: String(value), checked, disabled, on: { change: pick } });
  return element("label", { class: `choice ${name}`, title }, input, element("span", {}, children));
}

function without(edits, kind, n) {
  const left = { ...edits, [kind]: edits[kind].filter((_, at) => at !== n) };
  if (!left[kind].length) delete left[kind];
  return left;
}

function toggled(edits, site, head, at) {
  return at >= 0 ? without(edits, "off", at) : { ...edits, off: [...(edits.off ?? []), { site, head }] };
}

function inWords(kind, one) {
  const where = one.site === "*" ? "everywhere" : one.site;
  if (kind === "off") return `${where}: head ${one.head} off`;
  if (kind === "weights") return `${where}: head ${one.head}, ${one.query} → ${one.key} weighs ${one.value}`;
  if (kind === "masks") return `${where}: head ${one.head}, ${one.query} may not see ${one.key}`;
  if (kind === "swaps") return `word ${one.word} is “${shortened(String(one.to))}”`;
  return `${where}: temperature ${one.value}`;
}

customElements.define("regard-side", Side);
