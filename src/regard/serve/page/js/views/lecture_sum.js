// Arithmetic line under the matrices: marks the cells it uses, and announces it.

import { h, replace } from "../dom.js";
import { spoken } from "./lecture_arithmetic.js";
import { mark, nameOf } from "./lecture_tables.js";

const PRESS = "press to show or hide";
const TYPE = "given; type another number";

export function explain(panel, tables, here, otherwise = "") {
  const spec = here && tables.get(here.table).spec;
  const says = spec?.says?.(here.i, here.j);
  mark(tables, here, says?.uses ?? []);
  if (!says) {
    const given = spec && (spec.kind === "mask" ? PRESS : spec.input ? TYPE : "");
    replace(panel, h.p({ class: "muted" }, given ? `${nameOf(spec, here)}: ${given}` : otherwise));
    return "";
  }
  replace(panel, says.lines ? says.lines.map((one) => line(one, one.name)) : line(says, nameOf(spec, here)));
  return `${nameOf(spec, here)}: ${spoken(says)}`;
}

function line({ left, result, mine }, name) {
  const where = h.span({ class: "lecture-where" }, name);
  return h.p({ class: mine && "lecture-mine" }, where, " ", h.span(left), " = ", h.strong(result));
}
