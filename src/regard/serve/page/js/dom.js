// DOM helpers: builds nodes from a tag, attributes and children. Text is never parsed as markup.

const SVG = "http://www.w3.org/2000/svg";

// attributes: "class", "aria-…", any property of the node, on: {event: f}, style: {css: value}, data: {name: value}
export function element(tag, attributes = {}, ...children) {
  return filled(document.createElement(tag), attributes, children);
}

// where a pointer is on a node, in CSS pixels
export function pointer(node, { clientX, clientY }) {
  const { left, top } = node.getBoundingClientRect();
  return [clientX - left, clientY - top];
}

// the same by the tag's name, attributes only where there are some: h.p({ class: "small" }, "text"), h.h3("Title")
export const h = new Proxy({}, { get: (_, tag) => (...all) => (plain(all[0]) ? element(tag, ...all) : element(tag, {}, ...all)) });

const plain = (thing) => thing !== null && typeof thing === "object" && Object.getPrototypeOf(thing) === Object.prototype;

export function drawing(tag, attributes = {}, ...children) {
  return filled(document.createElementNS(SVG, tag), attributes, children);
}

function filled(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "on") for (const [event, f] of Object.entries(value)) node.addEventListener(event, f);
    else if (name === "style") for (const [rule, to] of Object.entries(value)) node.style.setProperty(rule, to);
    else if (name === "data") Object.assign(node.dataset, value);
    else if (name === "value" || name === "checked") node[name] = value;
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...there(children));
  return node;
}

const there = (children) => children.flat(2).filter((child) => child !== null && child !== undefined && child !== false);

export function replace(node, ...children) {
  node.replaceChildren(...there(children));
  return node;
}

// the same, and a focus that was inside goes to the new node that the selector finds
export function renew(node, selector, ...children) {
  const had = node.contains(document.activeElement);
  replace(node, ...children);
  if (had) node.querySelector(selector)?.focus();
}

export const clamp = (value, low, high) => Math.min(Math.max(value, low), high);

export function button(text, click, attributes = {}) {
  return h.button({ type: "button", ...attributes, on: { click } }, text);
}

// every number on the page: so many digits that matter (a float32 has about seven), or, where there is little room, so
// many places. Only 0 itself is "0"; what the places cannot tell from it is "<.01"
export function digits(value, count = 6, places = null) {
  if (value === -Infinity) return "−∞";
  if (!Number.isFinite(value)) return value > 0 ? "∞" : "not a number";
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (places !== null && size < 10) {
    const fixed = value.toFixed(places);
    const least = (0.1 ** places).toFixed(places).slice(1);
    return Number(fixed) ? fixed.replace("-", "−") : value > 0 ? `<${least}` : `>−${least}`;
  }
  const text = size >= 1e-4 && size < 1e7 ? String(Number(value.toPrecision(count))) : value.toExponential(count - 1);
  return text.replace(/^-/, "−").replace(/e-/, "e−").replace(/e\+/, "e");
}

// a number on the page: short to read, whole in its title and its value
export function figure(value, count = 6) {
  return element("data", { value: String(value), title: String(value), class: "number" }, digits(value, count));
}

// a token on the page: its blanks made visible, its direction its own
export function token(text, attributes = {}) {
  return element("bdi", { class: "token", title: text, ...attributes }, shown(text));
}

// names and what they stand for; a third part is the attributes of both
export function terms(pairs, attributes = {}) {
  return h.dl(attributes, pairs.filter(Boolean).map(([name, what, of = {}]) => [h.dt(of, name), h.dd(of, what)]));
}

// rows of cells, numbers to the right; a cell that is a th or td already stays as it is
export function table(titles, rows, attributes = { class: "plain" }) {
  const side = (cell) => (cell instanceof Element && cell.matches("data.number") ? { class: "right" } : {});
  const head = titles.map((name, n) => h.th({ scope: "col", ...side(rows[0]?.[n]) }, name));
  const made = (cell) => (cell instanceof Element && cell.matches("td, th") ? cell : h.td(side(cell), cell));
  const body = rows.map((row) => h.tr(row.map(made)));
  return h.table(attributes, head.length ? h.thead(h.tr(head)) : null, h.tbody(body));
}

const OPEN = { "\n": "⏎", "\t": "⇥", " ": "␣" };

// blanks that would vanish, and letters that turn the text around them, are made visible or taken out
export function shown(text) {
  // biome-ignore lint/suspicious/noControlCharactersInRegex: these are the letters it is about
  const clean = text.replace(/[\u0000-\u0008\u000b-\u001f\u007f\u202a-\u202e\u2066-\u2069]/g, "·");
  return clean.replace(/[\n\t]|^ +| +$/g, (blank) => OPEN[blank] ?? OPEN[" "].repeat(blank.length)) || "∅";
}

export function shortened(text, letters = 24) {
  const all = Array.from(shown(text.length > 400 ? text.slice(0, 400) : text));
  return all.length > letters ? `${all.slice(0, letters - 1).join("")}…` : all.join("");
}

// --- the status line, read aloud by screen readers ---

let line = null;
let waiting = 0;

export function speakThrough(node) {
  line = node;
}

// from: the view that says so; one that was left meanwhile says nothing
export function say(text, from = line) {
  if (!from?.isConnected) return;
  clearTimeout(waiting);
  // a held arrow key would otherwise be read out for minutes
  waiting = setTimeout(() => (line.textContent = text), 60);
}
