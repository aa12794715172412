// Shared widgets: fields, weighted text, curves, a player.

import { button, clamp, digits, drawing, figure, h, shortened, shown, token } from "../dom.js";
import { shade } from "../paint.js";
import { store } from "../store.js";
import { siteOf, strongest } from "../view.js";

export { button, clamp };

// what these views requested of one model another may refuse, and a target belongs to its text
store.addEventListener("change", ({ detail: { changed } }) => {
  const names = changed.includes("model") ? ["beam", "target", "more", "sampling"] : changed.includes("text") ? ["target"] : [];
  const old = names.filter((name) => !changed.includes(name));
  store.set(Object.fromEntries(old.map((name) => [name, undefined])));
});

export function floats(base64) {
  return new Float32Array(Uint8Array.from(atob(base64), (letter) => letter.charCodeAt(0)).buffer);
}

export function field(label, input) {
  return h.label({ class: "field" }, h.span(label), input);
}

export function numberField(label, [least, most], take, step = 1) {
  const input = h.input({ type: "number", min: least, max: most, step });
  input.addEventListener("change", () => {
    const value = Number(input.value);
    input.value = String(clamp(Number.isFinite(value) ? value : least, least, most));
    take(Number(input.value));
  });
  return field(label, input);
}

export function list(options, value) {
  return options.map(([name, text]) => {
    const option = h.option({ value: String(name) }, text);
    option.selected = String(name) === String(value);
    return option;
  });
}

export function listField(label, options, value, take) {
  const node = h.select({ on: { change: () => take(node.value) } }, list(options, value));
  return field(label, node);
}

// a field's value from outside, unless somebody is typing in it
export function put(label, value) {
  const node = label.lastChild;
  if (node !== document.activeElement && node.value !== String(value)) node.value = String(value);
}

// how many, every digit of it
export function count(value) {
  return h.data({ value: String(value), class: "number" }, value.toLocaleString("en"));
}

export const places = (names) => names.map((name, n) => [n, `${n} ${shortened(name, 24)}`]);

// tokens of which one is chosen: one stop for Tab, the arrows walk. names: texts; go(number)
export function row(node, names, at, go) {
  const had = node.contains(document.activeElement) || node === document.activeElement;
  node.replaceChildren(
    ...names.map((name, n) =>
      h.span(
        { role: "option", id: `${node.id}-${n}`, "aria-selected": String(n === at), on: { click: () => go(n) } },
        token(name),
      ),
    ),
  );
  node.setAttribute("aria-activedescendant", `${node.id}-${at}`);
  if (had) node.focus();
  const here = node.children[at];
  if (here && node.scrollHeight > node.clientHeight) node.scrollTop = here.offsetTop - node.clientHeight / 2;
}

export function walk(node, { at, count, go }) {
  node.addEventListener("keydown", (event) => {
    const here = at();
    const to = {
      ArrowLeft: here - 1,
      ArrowUp: here - 1,
      ArrowRight: here + 1,
      ArrowDown: here + 1,
      Home: 0,
      End: count() - 1,
    };
    if (!(event.key in to) || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    go(clamp(to[event.key], 0, count() - 1));
  });
}

// the prediction of the chosen query, where queries predict; else the last
export function usualRow(trace, state, rows) {
  const site = siteOf(trace, state);
  return site?.queries === "written" && site.n_q === rows.length ? state.query : rows.length - 1;
}

// a text, the stronger a token weighs the darker behind it; and the strongest with their numbers
export function weighed(names, weights, most = 600) {
  const few = names.slice(0, most).map((name, n) => {
    const style = shade("weights", weights[n] ?? 0);
    return h.bdi({ class: "token weighed", title: `${n}: ${weights[n]}`, style }, shown(name));
  });
  const top = strongest(weights, 5, 1e-9).map((n) => h.li(token(names[n] ?? String(n)), " ", figure(weights[n])));
  const more = names.length > most ? h.span({ class: "muted small" }, ` and ${names.length - most} more`) : null;
  return [h.p({ class: "text-weighed" }, few, more), h.ol({ class: "strongest" }, top)];
}

// a line through points in [0, 1]²; marks: [x, y]; ends: texts at the ends of both axes; titles: what x and y are
export function curve(points, { label, marks = [], ends = {}, titles = [], zero = null }) {
  const [w, h] = [240, 100];
  const at = ([x, y]) => `${(x * w).toFixed(1)},${((1 - y) * h).toFixed(1)}`;
  const text = (x, y, anchor, words) => drawing("text", { x, y, "text-anchor": anchor }, words);
  return drawing(
    "svg",
    { viewBox: `-46 -12 ${w + 56} ${h + 34}`, class: "curve", role: "img", "aria-label": label },
    drawing("path", { class: "axis", d: `M0,0 V${h} H${w}` }),
    zero === null ? null : drawing("path", { class: "axis", d: `M0,${(1 - zero) * h} H${w}` }),
    drawing("polyline", { class: "line", points: points.map(at).join(" ") }),
    marks.map(([x, y]) => drawing("circle", { class: "mark", cx: x * w, cy: (1 - y) * h, r: 4.5 })),
    text(-6, 6, "end", ends.top ?? ""),
    text(-6, h, "end", ends.bottom ?? ""),
    text(0, h + 18, "start", ends.left ?? ""),
    text(w, h + 18, "end", ends.right ?? ""),
    text(w / 2, h + 18, "middle", titles[0] ?? ""),
    drawing("text", { transform: `translate(-8 ${h / 2}) rotate(-90)`, "text-anchor": "middle" }, titles[1] ?? ""),
  );
}

// the curve through some [x, y], x ascending; that of number `at` is marked
export function trail(pairs, at, label, titles) {
  let [low, high] = [0, 0];
  for (const [, y] of pairs) [low, high] = [Math.min(low, y), Math.max(high, y)];
  const [first, last] = [pairs[0][0], pairs.at(-1)[0]];
  const place = ([x, y]) => [(x - first) / (last - first || 1), (y - low) / (high - low || 1)];
  const step = Math.max(1, Math.floor(pairs.length / 640));
  return curve(pairs.filter((_, n) => n % step === 0).map(place), {
    label,
    titles,
    marks: at < 0 ? [] : [place(pairs[at])],
    ends: { top: digits(high, 3), bottom: digits(low, 3), left: String(first), right: String(last) },
    zero: low < 0 && high > 0 ? place([0, 0])[1] : null,
  });
}

// plays something step by step; `ahead()` is true while there is more
export function player(ahead, pause = 800) {
  let timer = 0;
  const node = button("Play", () => (timer ? stop() : start()));
  const name = (text) => node.replaceChildren(text);
  function stop() {
    clearInterval(timer);
    timer = 0;
    name("Play");
  }
  function start() {
    name("Pause");
    timer = setInterval(() => ahead() || stop(), pause);
    ahead(true);
  }
  return { node, stop };
}
