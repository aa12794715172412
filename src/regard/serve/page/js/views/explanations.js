// What explanation methods find, drawn: a map of heads, shaded tokens, bars, the logit lens, matrices.

import { button, digits, figure, h, replace, table, token } from "../dom.js";
import { coded, legend, reach, shade, shareIn, sheet } from "../paint.js";
import { store } from "../store.js";
import { toggled } from "../side.js";
import { axisName, isOff, labels } from "../view.js";
import { Heat } from "./heat.js";
import { listField } from "./parts.js";

// {nodes, text}: what to show, and the same in a sentence
export function drawn(found, about) {
  return { heads, tokens, matrices, lens, contributions, patches }[found.kind](found, about);
}

const largest = (values) => values.reduce((most, one) => Math.max(most, Math.abs(one ?? 0)), 1e-9);

// a law that holds, or not, as |A·V − output| is shown below a matrix
function law(name, total, wanted, rest) {
  const off = Math.abs(total - wanted) / Math.max(Math.abs(wanted), 1e-6);
  const verdict = off <= 0.01 ? " ✓ within 1 % of " : " ✗ more than 1 % from ";
  return h.p({ class: "small law" }, h.span({ class: "muted" }, `${name} `), figure(total), h.span({ class: "muted" }, verdict), figure(wanted), h.span({ class: "muted" }, rest));
}

const predicted = (found) => h.p({ class: "headline" }, "prediction ", token(found.target.name));

// --- heads ---

function heads(found, { trace }) {
  const all = Object.entries(found.effects).flatMap(([site, some]) => some.map((effect, head) => ({ site, head, effect })));
  const most = largest(all.map((one) => one.effect));
  const off = (one) => isOff(trace, { name: one.site }, one.head);
  const switchOff = ({ site, head }) => {
    const { edits } = store.state;
    store.go({ site, head, edits: toggled(edits, site, head, (edits.off ?? []).findIndex((other) => other.site === site && other.head === head)) });
  };
  const cell = (one, n) =>
    h.button(
      {
        type: "button",
        class: off(one) ? "effect off" : "effect",
        tabindex: n ? "-1" : "0",
        style: shade("signed", one.effect, most),
        title: `${one.site}, head ${one.head}: ${one.effect} nats; click to switch it ${off(one) ? "on" : "off"}`,
        data: { site: one.site, head: String(one.head), effect: String(one.effect) },
        on: { click: () => switchOff(one) },
      },
      h.span({ class: "hidden-text" }, `${one.site}, head ${one.head}: `),
      digits(one.effect, 2),
    );
  let n = 0;
  const wide = Math.max(...Object.values(found.effects).map((some) => some.length));
  const rows = Object.entries(found.effects).map(([site, some]) => [
    h.th({ scope: "row" }, site),
    ...some.map((effect, head) => h.td(cell({ site, head, effect }, n++))),
  ]);
  const map = h.div({ class: "sideways" }, table(["Δ log p, nats", ...Array.from({ length: wide }, (_, head) => `head ${head}`)], rows, { class: "plain effects" }));
  const cells = [...map.querySelectorAll("button")];
  walkCells(map, cells, wide);
  const ranked = [...all].sort((a, b) => b.effect - a.effect);
  const [first] = ranked;
  const none = all.filter((one) => Math.abs(one.effect) < 0.01).length;
  const line = (one) => [openHead(one), figure(one.effect, 3)];
  const list = h.section();
  const sorted = (down) => {
    replace(list, h.h3(button(`${down ? "Most" : "Least"} needed first`, () => sorted(!down).querySelector("button").focus(), { class: "link", title: "Sort the other way round" })), h.div({ class: "scroll", tabindex: "0", role: "region", "aria-label": "Heads by effect" }, table(["head", "Δ log p, nats"], (down ? ranked : ranked.toReversed()).map(line))));
    return list;
  };
  sorted(true);
  return {
    text: `most needed ${first.site}, head ${first.head}: ${digits(first.effect, 3)} nats; ${none} of ${all.length} heads change less than 0.01 nats`,
    nodes: [
      predicted(found),
      h.p({ class: "muted small" }, "log p ", figure(found.log_probability), ` nats with all heads. ${none} of ${all.length} heads change it by less than 0.01 nats.`),
      h.div({ class: "beside" }, h.div(map, legend("signed", [-most, most], false, "Δ log p, nats")), h.div({ class: "card" }, list)),
    ],
  };
}

function openHead({ site, head }) {
  return h.button({ type: "button", class: "link small", title: "Open its matrix", on: { click: () => store.go({ site, head, view: "matrix" }) } }, `${site}, ${head}`);
}

// one stop for Tab; the arrows walk
function walkCells(node, cells, wide) {
  const at = () => cells.indexOf(document.activeElement);
  node.addEventListener("keydown", (event) => {
    const by = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -wide, ArrowDown: wide }[event.key];
    const to = cells[at() + by];
    if (!by || !to) return;
    event.preventDefault();
    for (const one of cells) one.tabIndex = one === to ? 0 : -1;
    to.focus();
  });
}

// --- tokens ---

const UNITS = { "leave-one-out": "Δ log p, nats", "integrated-gradients": "added to the logit", "gradient-input": "added to the logit" };

function tokens(found, { trace, method }) {
  const all = Object.entries(found.scores).flatMap(([axis, some]) => {
    const names = labels(trace, axis, some.length);
    return some.map((score, n) => ({ axis, name: names[n], n, score }));
  });
  const most = largest(all.map((one) => one.score));
  const strips = Object.entries(found.scores).map(([axis, some]) => {
    const names = labels(trace, axis, some.length);
    const part = some.slice(0, 600).map((score, n) => h.bdi({ class: "token weighed", title: `${n}: ${score}`, style: shade("signed", score, most), data: { score: String(score) } }, names[n]));
    return h.section(h.h3(axisName(axis)), h.p({ class: "text-weighed" }, part));
  });
  const ranked = [...all].sort((a, b) => Math.abs(b.score) - Math.abs(a.score)).slice(0, 20);
  const [first] = ranked;
  return {
    text: `“${first.name}” decides most: ${digits(first.score, 3)}`,
    nodes: [
      predicted(found),
      found.difference === null ? null : law("Σ scores", found.total, found.difference, ", the logit less that of average tokens"),
      strips,
      legend("signed", [-most, most], false, UNITS[method]),
      barTable(ranked.map((one) => [h.span(token(one.name), h.span({ class: "muted small" }, ` ${axisName(one.axis)} ${one.n}`)), one.score]), most, ["token", UNITS[method]]),
    ],
  };
}

function barTable(rows, most, [name, unit]) {
  const bar = (value) => h.td({ class: "deltas", "aria-hidden": "true" }, h.span({ class: `delta ${value < 0 ? "less" : "more"}`, style: { width: `${(50 * Math.abs(value)) / most}%` } }));
  const lines = rows.map(([what, value]) => [h.th({ scope: "row" }, what), figure(value, 4), bar(value)]);
  return h.div({ class: "sideways" }, table([name, unit, h.span({ class: "hidden-text" }, "bar")], lines, { class: "plain moved" }));
}

function contributions(found) {
  const ranked = Object.entries(found.parts).sort((a, b) => Math.abs(b[1]) - Math.abs(a[1]));
  const most = largest(ranked.map(([, value]) => value));
  return {
    text: `${ranked[0][0]} adds ${digits(ranked[0][1], 3)} to the logit`,
    nodes: [predicted(found), law("Σ parts", found.total, found.logit, ", the logit"), barTable(ranked.slice(0, 40), most, ["part", "added to the logit"])],
  };
}

// --- layers ---

function lens(found) {
  const cell = (best) => {
    const [name, share] = best[0];
    return h.td({ style: shade("weights", share), class: "lens", title: best.map(([one, p]) => `${one} ${digits(p, 3)}`).join("\n") }, token(name), h.span({ class: "small number" }, ` ${digits(100 * share, 2)} %`));
  };
  const rows = found.layers.map((layer, n) => [h.th({ scope: "row" }, layer), ...found.best[n].map(cell)]);
  const scroll = h.div({ class: "sideways", tabindex: "0", role: "region", "aria-label": "Logit lens" }, table(["layer", ...found.rows.map((row, n) => `${n} ${row}`)], rows, { class: "plain lenses" }));
  const settled = found.rows.filter((_, n) => found.best.every((layer) => layer[n][0][0] === found.best.at(-1)[n][0][0])).length;
  return {
    text: `${settled} of ${found.rows.length} predictions stand from the first layer on`,
    nodes: [h.p({ class: "muted small" }, `The most probable token and its probability; ${settled} of ${found.rows.length} predictions stand from the first layer on. The last row is the model's output.`), scroll, legend("weights", null, false, "probability")],
  };
}

// --- matrices ---

function heatOf(values, names, palette, range, width, tell, name) {
  const [rows, columns] = [names.down.length, names.across.length];
  const flat = Float32Array.from(values.flat(), (one) => one ?? Number.NEGATIVE_INFINITY);
  const most = reach(range);
  const { bytes, range: spread } = coded(flat, palette);
  const share = shareIn(palette, most);
  const value = (i, j) => flat[i * columns + j];
  const hidden = (i, j) => !Number.isFinite(value(i, j));
  const heat = new Heat({ move: (cell) => point(cell), hover: (cell) => cell && point(cell) });
  const reading = h.p({ class: "number" });
  const point = ([i, j]) => {
    heat.point([i, j]);
    const text = `${names.down[i]} → ${names.across[j]}: ${hidden(i, j) ? "–" : digits(value(i, j), 4)}${tell}`;
    replace(reading, text);
    heat.tell(text);
  };
  const cells = { value, hidden, share, palette };
  heat.draw({ rows, columns, names, area: { width, height: Math.min(520, 60 * rows + 140) }, cells, sheet: sheet(bytes, rows, columns, palette, spread) });
  let best = 0;
  for (let n = 0; n < flat.length; n++) if (Number.isFinite(flat[n]) && Math.abs(flat[n]) > Math.abs(Number.isFinite(flat[best]) ? flat[best] : 0)) best = n;
  point([Math.floor(best / columns), best % columns]);
  return { nodes: [heat.node, reading, legend(palette, [-most, most], false, name)], text: reading.textContent };
}

let shownMatrix = "";

const MEANINGS = { "value-norms": "norm", "attention-gradient": "added to the logit", flow: "flow" };

function matrices(found, { trace, width, method }) {
  const names = Object.keys(found.matrices);
  if (!names.includes(shownMatrix)) shownMatrix = names.at(-1);
  const out = h.div();
  let text = "";
  const show = (name) => {
    shownMatrix = name;
    const { values, queries, keys } = found.matrices[name];
    const flat = values.flat();
    const shares = flat.every((one) => one >= 0 && one <= 1 + 1e-5);
    const sides = { down: labels(trace, queries, values.length), across: labels(trace, keys, values[0].length), titles: [queries, keys].map(axisName) };
    const made = heatOf(values, sides, shares ? "weights" : "signed", [-largest(flat), largest(flat)], width, "", shares ? "share of a row" : MEANINGS[method] ?? "");
    text = made.text;
    replace(out, made.nodes);
  };
  show(shownMatrix);
  const pick = names.length > 1 ? listField("Layer", names.map((name) => [name, name]), shownMatrix, show) : null;
  return { text, nodes: [pick && h.div({ class: "pickers above" }, pick), out] };
}

// layers over the same axis stand in one map
function patches(found, { trace, width }) {
  const most = Math.max(1, largest(found.effects.flat()));
  const line = h.p({ class: "small" }, "difference of logits: ", figure(found.clean, 4), " for this text, ", figure(found.other, 4), " for the other");
  const maps = [...new Set(found.axes)].map((axis) => {
    const some = found.layers.map((_, n) => n).filter((n) => found.axes[n] === axis);
    const wide = Math.max(...some.map((n) => found.effects[n].filter((one) => one !== null).length));
    const across = axis === "head" ? found.labels.slice(0, wide) : labels(trace, axis, wide);
    const values = some.map((n) => found.effects[n].slice(0, wide));
    return heatOf(values, { down: some.map((n) => found.layers[n]), across, titles: ["layer", axisName(axis)] }, "signed", [-most, most], width, " recovered", "recovered share");
  });
  return { text: maps.map((map) => map.text).join("; "), nodes: [line, ...maps.map((map) => h.div(map.nodes))] };
}
