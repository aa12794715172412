// Stand-in for the server in an exported page: answers requests from the trace's inlined data.

(() => {
  const held = JSON.parse(document.getElementById("regard-data").textContent);
  const ONE = "This page is an export of one trace; for more, run `regard look` on the model.";
  const MOST = 65536;

  class Sentence extends Error {
    constructor(text, status = 409) {
      super(text);
      this.status = status;
    }
  }

  // --- numbers ---

  const bytes = (text) => Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  const floats = (text) => new Float32Array(bytes(text).buffer);
  const unpacked = new Map();

  function array(card, name) {
    if (!unpacked.has(card)) unpacked.set(card, {});
    const known = unpacked.get(card);
    if (!(name in known)) known[name] = made[name]?.(card) ?? floats(card[name]);
    return known[name];
  }

  const made = {
    visible: (card) => Float32Array.from(bytes(card.visible.data)),
    masked: (card) => array(card, "adjusted").map((value, n) => (array(card, "visible")[n] ? value / card.temperature : -Infinity)),
  };

  function head(site, number) {
    const card = held.heads[`${site}/${number}`];
    if (card) return card;
    const known = held.trace.sites.find((one) => one.name === site);
    if (!known) throw new Sentence(`There is no layer “${site}” in this trace.`, 404);
    if (!(Number(number) < known.heads)) throw new Sentence(`${site} has no head ${number}; they are counted from 0 to ${known.heads - 1}.`, 404);
    throw new Sentence("This export does not hold every head; choose another, or run `regard look`.");
  }

  function matrix(site, number, stage) {
    const card = head(site, number);
    if (!((stage === "masked" ? "visible" : stage) in card)) {
      throw new Sentence("This export holds only this head's weights; run `regard look` for its scores.");
    }
    return { values: array(card, stage), shape: card.shape };
  }

  function windowOf(query, [rows, columns]) {
    const number = (name, usual) => (query.has(name) ? Number(query.get(name)) : usual);
    return [number("top", 0), number("bottom", rows), number("left", 0), number("right", columns)];
  }

  // --- answers ---

  const json = (value) => new Response(JSON.stringify(value), { headers: { "Content-Type": "application/json" } });
  const overview = (some) => binary(new Blob(some.map(({ data }) => bytes(data))), [some.map(({ shape }) => shape.join(",")).join(";")]);
  const binary = (data, shape, range) => new Response(data, { headers: { "X-Shape": shape.join(","), ...(range ? { "X-Range": range.join(",") } : {}) } });

  // each pixel the largest value that falls into it
  function map(site, number, query) {
    const stage = query.get("stage") || "weights";
    const { values, shape } = matrix(site, number, stage);
    const [top, bottom, left, right] = windowOf(query, shape);
    const rows = Math.min(bottom - top, Number(query.get("rows") ?? 4096));
    const columns = Math.min(right - left, Number(query.get("columns") ?? 4096));
    const signed = stage === "weights" && held.trace.sites.find((one) => one.name === site).signed;
    const size = signed ? Math.abs : (value) => value;
    const pooled = new Float32Array(rows * columns).fill(-Infinity);
    let [low, high] = [Infinity, -Infinity];
    for (let i = top; i < bottom; i++) {
      const down = Math.floor(((i - top) * rows) / (bottom - top)) * columns;
      for (let j = left; j < right; j++) {
        const value = values[i * shape[1] + j];
        const at = down + Math.floor(((j - left) * columns) / (right - left));
        if (pooled[at] === -Infinity || size(value) > size(pooled[at])) pooled[at] = value;
        if (Number.isFinite(value)) [low, high] = [Math.min(low, value), Math.max(high, value)];
      }
    }
    if (stage === "weights" || stage === "visible") {
      const [zero, wide] = signed ? [128, 127] : [0, 255];
      const shade = (value) => zero + wide * Math.sign(value) * Math.sqrt(Math.min(1, Math.abs(value)));
      return binary(Uint8ClampedArray.from(pooled, shade), [rows, columns]);
    }
    const span = high - low || 1;
    const shade = (value) => (value === -Infinity ? 0 : 1 + Math.round((254 * (value - low)) / span));
    return binary(Uint8Array.from(pooled, shade), [rows, columns], [low, high]);
  }

  function cells(site, number, query) {
    const { values, shape } = matrix(site, number, query.get("stage") || "weights");
    const [top, bottom, left, right] = windowOf(query, shape);
    const [rows, columns] = [bottom - top, right - left];
    if (rows * columns > MOST) throw new Sentence("These are too many cells at once; zoom in.", 400);
    const found = new Float32Array(rows * columns);
    for (let i = 0; i < rows; i++) found.set(values.subarray((top + i) * shape[1] + left, (top + i) * shape[1] + right), i * columns);
    return binary(found, [rows, columns]);
  }

  function line(site, number, query, kind, at) {
    const { values, shape } = matrix(site, number, query.get("stage") || "weights");
    const [rows, columns] = shape;
    if (!(at < (kind === "rows" ? rows : columns))) throw new Sentence("There is no such row or column.", 404);
    if (kind === "rows") return binary(values.slice(at * columns, (at + 1) * columns), [columns]);
    return binary(Float32Array.from({ length: rows }, (_, i) => values[i * columns + at]), [rows]);
  }

  function pair(site, number, query) {
    const card = head(site, number);
    if (!card.q) throw new Sentence(card.note || "This export holds only this head's weights; run `regard look` for q, k and v.");
    const [i, j] = [Number(query.get("query")), Number(query.get("key"))];
    const [rows, columns] = card.shape;
    const about = held.sites[site];
    const part = (name, n, count) => {
      const all = array(card, name);
      const width = all.length / count;
      return Array.from(all.subarray(n * width, (n + 1) * width));
    };
    const [q, k, v] = [part("q", i, rows), part("k", j, columns), part("v", j, columns)];
    const vector = card.tanh ? array(card, "tanh") : null;
    const products = q.map((one, n) => Math.fround(vector ? vector[n] * Math.tanh(one + k[n]) : one * k[n]));
    const dot = products.reduce((sum, one) => sum + one, 0);
    const [adjusted, visible, weight] = ["adjusted", "visible", "weights"].map((name) => array(card, name)[i * columns + j]);
    const scaled = dot * card.scale;
    const bias = about.biased ? adjusted - (card.cap ? card.cap * Math.tanh(scaled / card.cap) : scaled) : 0;
    const added = v.map((one) => Math.fround(weight * one));
    const rest = { temperature: about.temperature, score: about.score, note: card.note, cap: card.cap };
    return json({ q, k, products, dot, scale: card.scale, bias, adjusted, visible: visible === 1, weight, v, added, ...rest });
  }

  function next(step, rest, query) {
    if (!held.tokens[step]) throw new Sentence("This export does not hold that step; run `regard look`.", 404);
    if (query.has("sampling")) throw new Sentence(ONE);
    if (rest === "tokens") return json(held.tokens[step]);
    if (!held.next) throw new Sentence("This export holds only the top tokens; run `regard look` for all.");
    const all = floats(held.next);
    const size = all.length / held.trace.steps;
    return binary(all.slice(step * size, (step + 1) * size), [size]);
  }

  function answer(path, query, body) {
    const parts = path.split("/").map(decodeURIComponent);
    if (path === "models") return json(held.models);
    if (path === "traces") {
      const { text, question, edits } = held.trace;
      const same = body.text === text && (body.question ?? question) === question;
      if (same && JSON.stringify(body.edits ?? {}) === JSON.stringify(edits)) return json(held.trace);
      throw new Sentence(ONE);
    }
    if (parts[0] !== "traces") throw new Sentence(ONE);
    if (parts.length === 2) return json(held.trace);
    if (parts[2] === "statistics") return json(held.statistics);
    if (parts[2] === "overview") return overview(Object.values(held.thumbnails));
    if (parts[2] === "next") return next(Number(parts[3]), parts[4], query);
    if (parts[2] === "beam" && held.beam) return json({ steps: held.beam });
    if (parts[2] !== "sites") throw new Sentence(ONE);
    const [, , , site, kind, number, what, at] = parts;
    if (kind === "gate") return binary(floats(held.gates[site].weights), held.gates[site].shape);
    if (what === "map") return map(site, number, query);
    if (what === "cells") return cells(site, number, query);
    if (what === "rows" || what === "columns") return line(site, number, query, what, Number(at));
    if (what === "pair") return pair(site, number, query);
    if (what === "check") return json(head(site, number).check);
    throw new Sentence(ONE);
  }

  globalThis.fetch = async (address, options = {}) => {
    const { pathname, searchParams } = new URL(address);
    const path = pathname.replace(/^.*?\/api\//, "");
    try {
      return answer(path, searchParams, options.body ? JSON.parse(options.body) : {});
    } catch (reason) {
      if (!(reason instanceof Sentence)) throw reason;
      return new Response(JSON.stringify({ error: reason.message }), { status: reason.status });
    }
  };

  globalThis.EventSource = class extends EventTarget {
    constructor() {
      super();
      setTimeout(() => this.dispatchEvent(Object.assign(new Event("error"), { data: JSON.stringify({ error: ONE }) })));
    }
    close() {}
  };

  // what the server would have to make
  document.addEventListener("click", (event) => {
    const link = event.target.closest?.("a[href^='http://regard.invalid/']");
    if (!link) return;
    event.preventDefault();
    const box = document.getElementById("problem");
    box.textContent = ONE;
    box.hidden = false;
  });

  // --- a frame of a notebook may neither keep nor remember anything ---

  try {
    localStorage.getItem("");
  } catch {
    Object.defineProperty(globalThis, "localStorage", { value: { getItem: () => null, setItem: () => {} } });
  }
  const { site, head: number, view } = held.view;
  const open = held.trace.opening ?? {};
  const cell = open.site === site && open.head === number ? `&query=~${open.query}&key=~${open.key}` : "";
  const first = `#view=${view}&site=${encodeURIComponent(site)}&head=~${number}${cell}`;
  try {
    if (!location.hash) history.replaceState(null, "", first);
  } catch {
    location.hash = first;
    history.replaceState = history.pushState = () => {};
  }
})();
