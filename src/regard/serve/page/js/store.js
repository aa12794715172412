// State of the page, kept in the URL hash: one plain object, and an event when it changes.

const EMPTY = {
  model: "",
  text: "",
  question: "",
  view: "start",
  site: "",
  head: 0,
  query: 0,
  key: 0,
  stage: "weights",
  window: null, // [top, bottom, left, right] of the matrix; null is all of it
  edits: {},
  checkpoint: null,
  other: null,
  theme: "",
};
const LONGEST = 20000; // a longer text would make an address that browsers and mail cut

class Store extends EventTarget {
  state = { ...EMPTY, ...read(location.hash) };
  #timer = 0;
  #step = false;
  #past = []; // edits as they were, the last on top

  constructor() {
    super();
    // back and forward, or an address typed by hand
    addEventListener("popstate", () => {
      const next = { ...EMPTY, ...read(location.hash) };
      for (const name of Object.keys(this.state)) if (!(name in next)) next[name] = undefined;
      this.#take(next);
    });
  }

  set(patch) {
    const { edits, text, model } = this.state;
    const another = ["text", "model"].some((name) => name in patch && !same(patch[name], { text, model }[name]));
    if (another) this.#past = []; // edits of another text
    else if ("edits" in patch && !same(patch.edits, edits)) this.#past = [...this.#past.slice(-99), edits];
    if (this.#take(patch)) this.#later();
  }

  // the edits before the last change; where none is known (an address that was sent), `otherwise`
  undo(otherwise) {
    const edits = this.#past.pop() ?? otherwise;
    this.#step = true;
    if (this.#take({ edits })) this.#later();
  }

  // the same, and the browser's "back" undoes it
  go(patch) {
    this.#step = true;
    this.set(patch);
  }

  #take(patch) {
    const changed = Object.keys(patch).filter((name) => !same(this.state[name], patch[name]));
    if (!changed.length) return false;
    Object.assign(this.state, patch);
    this.dispatchEvent(new CustomEvent("change", { detail: { changed } }));
    return true;
  }

  // browsers refuse hundreds of changes of the address in a second, which a held arrow key makes
  #later() {
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => {
      const hash = written(this.state);
      if (hash !== location.hash) history[this.#step ? "pushState" : "replaceState"](null, "", hash || "#");
      this.#step = false;
    }, 120);
  }
}

export function same(a, b) {
  return a === b || JSON.stringify(a) === JSON.stringify(b);
}

function written(state) {
  const parts = [];
  for (const [name, value] of Object.entries(state)) {
    if (value === undefined || same(value, EMPTY[name]) || String(value).length > LONGEST) continue;
    parts.push(`${name}=${encodeURIComponent(typeof value === "string" ? value : `~${JSON.stringify(value)}`)}`);
  }
  return parts.length ? `#${parts.join("&")}` : "";
}

function read(hash) {
  const found = {};
  for (const part of hash.replace(/^#/, "").split("&")) {
    const cut = part.indexOf("=");
    if (cut < 1) continue;
    try {
      const value = decodeURIComponent(part.slice(cut + 1));
      found[part.slice(0, cut)] = value.startsWith("~") ? JSON.parse(value.slice(1)) : value;
    } catch {
      // a torn address: what can be read of it holds
    }
  }
  return sound(found);
}

// an address is something others wrote: what has the wrong type would break a view
function sound(found) {
  for (const name of ["head", "query", "key"]) {
    if (name in found && !(Number.isInteger(found[name]) && found[name] >= 0)) delete found[name];
  }
  for (const name of ["model", "text", "question", "view", "site", "stage", "theme"]) {
    if (name in found && typeof found[name] !== "string") delete found[name];
  }
  const { window, edits, branches } = found;
  if (!(Array.isArray(found.heads) && found.heads.every((one) => Array.isArray(one) && typeof one[0] === "string" && Number.isInteger(one[1])))) delete found.heads;
  const pairs = Array.isArray(branches) && branches.length && branches.every((one) => Array.isArray(one) && one.length === 2 && Number.isInteger(one[0]) && (Number.isInteger(one[1]) || typeof one[1] === "string"));
  if (!pairs) delete found.branches;
  if (window !== undefined && !(Array.isArray(window) && window.length === 4 && window.every(Number.isFinite))) {
    delete found.window;
  }
  const tables = edits && typeof edits === "object" && Object.values(edits).every((some) => Array.isArray(some));
  if (edits !== undefined && !tables) delete found.edits;
  return found;
}

export const store = new Store();
