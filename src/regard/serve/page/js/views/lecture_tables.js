// Matrices as HTML tables whose cells can be focused, edited or toggled.

import { digits, element, h, replace, shown } from "../dom.js";

// "W_q", "k^T", "s_{t−1}" with real subscripts and superscripts
export function maths(text) {
  return text.split(/([_^](?:\{[^}]*\}|.))/).map((part) => {
    if (!/^[_^]/.test(part)) return part;
    return element(part[0] === "_" ? "sub" : "sup", {}, part.slice(1).replace(/[{}]/g, ""));
  });
}

// spec: {id, title, rows, columns, values, input?, kind?, says?(i, j)}; does: {typed(name, i, j, text), switched(i, j)}
export function table(spec, does) {
  const cells = spec.values.map((line, i) => line.map((_, j) => cellOf(spec, i, j, does)));
  const head = h.tr(
    h.td({ class: "lecture-corner" }),
    spec.columns.map((name) => h.th({ scope: "col", title: plain(name) }, label(name))),
  );
  const body = cells.map((line, i) =>
    h.tr(h.th({ scope: "row", title: plain(spec.rows[i]) }, label(spec.rows[i])), line),
  );
  const node = h.table(
    { class: `lecture-matrix ${spec.input ? "lecture-given" : ""} ${spec.kind ?? ""}`, data: { id: spec.id } },
    h.caption(...maths(spec.title)),
    h.thead(head),
    h.tbody(body),
  );
  const made = { spec, node, cells };
  fill(made, spec);
  return made;
}

const label = (text) => h.bdi(...maths(shown(text)));

function cellOf(spec, i, j, does) {
  const at = { i: String(i), j: String(j), table: spec.id };
  const name = nameOf(spec, { i, j });
  if (spec.input) {
    const typed = (event) => does.typed(spec.input, i, j, event.target.value, event.type === "change");
    const attributes = {
      "aria-label": name,
      inputmode: "decimal",
      autocomplete: "off",
      spellcheck: "false",
      size: "4",
    };
    return h.td({ data: at }, h.input({ type: "text", ...attributes, on: { input: typed, change: typed } }));
  }
  if (spec.kind === "mask") {
    const button = h.button({ type: "button", on: { click: () => does.switched(i, j) } });
    button.dataset.name = name;
    return h.td({ data: at }, button);
  }
  return h.td({ data: at, tabindex: i || j || !spec.says ? "-1" : "0" });
}

export const plain = (text) => text.replace(/[_^{}]/g, "");

// new numbers into the same table; what somebody is typing into stays as it is
export function fill(made, spec) {
  made.spec = spec;
  for (const [i, line] of spec.values.entries()) {
    for (const [j, value] of line.entries()) fillCell(made.cells[i][j], spec, value);
  }
}

function fillCell(td, spec, value) {
  const [inside] = td.children;
  if (spec.input) {
    if (document.activeElement !== inside && inside.getAttribute("aria-invalid") !== "true")
      inside.value = typedForm(value);
    td.dataset.value = value;
  } else if (spec.kind === "mask") {
    inside.setAttribute("aria-pressed", String(Boolean(value)));
    inside.setAttribute("aria-label", `${inside.dataset.name}: ${value ? "visible" : "masked"}`);
    inside.textContent = value ? "■" : "·";
    td.dataset.value = value;
  } else if (typeof value === "string") {
    replace(td, h.bdi(shown(value)));
  } else {
    const whole = value === null ? -Infinity : value;
    replace(td, h.data({ value: String(whole), title: String(whole) }, brief(whole)));
    td.classList.toggle("lecture-hidden", value === null);
    td.classList.toggle("lecture-long", td.textContent.length > 8);
    if (spec.kind === "weights")
      td.style.setProperty("--weight", String(Math.sqrt(Math.max(0, Math.min(1, value ?? 0)))));
  }
}

// four decimals, as the lectures print them; the arithmetic below has six digits and the title all
function brief(value) {
  const size = Math.abs(value);
  if (!size || size >= 100 || size === Infinity) return digits(value);
  return size < 0.00095 ? digits(value, 2) : digits(Number(value.toFixed(4)));
}

// as a person would type it
const typedForm = (value) => String(Number(value.toPrecision(12)));

export const sameShape = (a, b) =>
  a.id === b.id && a.values.length === b.values.length && a.values[0].length === b.values[0].length;

// all cells of a stage are as wide as its longest number asks for, so that columns stand above each other; true if changed
export function widen(stage, tables) {
  let letters = 0;
  for (const { node, cells } of tables.values()) {
    for (const th of node.tHead.querySelectorAll("th"))
      letters = Math.max(letters, 0.8 * Math.min(th.textContent.length, 8));
    for (const td of cells.flat())
      letters = Math.max(letters, td.textContent.length, Math.min(6, td.querySelector("input")?.value.length ?? 0));
  }
  const wide = `${Math.max(3.3, Math.min(5.5, 0.6 + 0.61 * letters)).toFixed(2)}em`;
  if (stage.style.getPropertyValue("--cell") === wide) return false;
  stage.style.setProperty("--cell", wide);
  return true;
}

// the cells that an explanation speaks of
export function mark(tables, now, uses) {
  for (const { spec, cells } of tables.values()) {
    cells.forEach((line, i) => {
      line.forEach((td, j) => {
        const hit = ({ table, i: row, j: column }) =>
          table === spec.id && (row === undefined || row === i) && (column === undefined || column === j);
        td.classList.toggle("lecture-used", uses.some(hit));
        td.classList.toggle("lecture-now", now?.table === spec.id && now.i === i && now.j === j);
      });
    });
  }
}

// what stands between and around tables: a crossing (left × top meet in the result), or a line of tables and signs
export function block(spec, does, tables) {
  const made = (one) => {
    const built = table(one, does);
    tables.set(one.id, built);
    return built.node;
  };
  const inside = h.div({ class: `lecture-${spec.kind}` }, KINDS[spec.kind](spec, made));
  if (!spec.folded) return spec.heading ? [h.h3(spec.heading), inside] : inside;
  return h.details({ class: "lecture-more" }, h.summary(spec.folded), inside);
}

const cross = ({ left, pairs }, made) => [
  h.div({ class: "lecture-left" }, made(left)),
  pairs.map(([top, result]) => h.div({ class: "lecture-pair" }, made(top), made(result))),
];

const line = ({ parts }, made) =>
  parts.map((part) => (typeof part === "string" ? h.span({ class: "lecture-sign" }, ...maths(part)) : made(part)));

const panels = ({ panels: all }, made) =>
  all.map(({ heading, formula, tables }) =>
    h.section(
      { class: "lecture-panel" },
      h.h3(heading),
      h.p({ class: "lecture-formula" }, ...maths(formula)),
      tables.map(made),
    ),
  );

// signs point down there
const stack = ({ parts }, made) =>
  line({ parts: parts.filter((part) => typeof part !== "string" || part !== "→") }, made);

const beside = ({ blocks }, made) => blocks.map((one) => h.div({ class: "lecture-cross" }, cross(one, made)));

const KINDS = { cross, line, panels, stack, beside };

// --- finding ---

export const placeOf = ({ dataset }) => ({ table: dataset.table, i: Number(dataset.i), j: Number(dataset.j) });
export const nameOf = (spec, { i, j }) =>
  `${plain(spec.title)}, ${called("row", spec.rows[i])}, ${called("column", spec.columns[j])}`;

const called = (side, name) => (/^\d+$/.test(name) ? `${side} ${name}` : plain(name));

// every table of a stage, in the order in which it is made
export const specs = ({ blocks }) =>
  blocks.flatMap((spec) => {
    if (spec.kind === "beside") return specs(spec);
    if (spec.kind === "cross") return [spec.left, ...spec.pairs.flat()];
    if (spec.kind === "panels") return spec.panels.flatMap((panel) => panel.tables);
    return spec.parts.filter((part) => typeof part !== "string");
  });
