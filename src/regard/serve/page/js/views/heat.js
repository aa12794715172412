// Heat map with a cursor that follows pointer and arrow keys; several can share one cursor.

import { h, pointer, say } from "../dom.js";
import { cellAt, cellBox, drawCells, drawCursor, drawHere, drawLabels, drawSheet, frameOf, layout, thinned } from "../grid.js";
import { fit, inks } from "../paint.js";
import { keyed, whole } from "../zoom.js";

export class Heat {
  #below = h.canvas({ "aria-hidden": "true" });
  #over = h.canvas({ class: "over", tabindex: "0", role: "application" });
  node = h.div({ class: "plot" }, this.#below, this.#over);
  #matrix = null;
  #cell = [0, 0];
  #announced = "";

  // move(cell): by keys or a click; hover(cell | null): by the pointer; open(cell): Enter
  constructor({ move, hover = () => {}, open = () => {}, what = "matrix" }) {
    this.#over.setAttribute("aria-roledescription", what);
    const at = (event) => this.#matrix && cellAt(this.#matrix.plot, ...pointer(this.#over, event));
    let last = "null";
    const over = (cell) => {
      if (String(cell) === last) return;
      last = String(cell);
      hover(cell);
    };
    this.#over.addEventListener("pointermove", (event) => over(at(event)));
    this.#over.addEventListener("pointerleave", () => over(null));
    this.#over.addEventListener("click", (event) => at(event) && move(at(event)));
    this.#over.addEventListener("focus", () => say(this.#announced));
    this.#over.addEventListener("keydown", (event) => {
      if (!this.#matrix) return;
      const { rows, columns } = this.#matrix;
      if (event.key === "Enter") return open(this.#cell);
      const found = keyed(event, { window: whole(rows, columns), rows, columns, cell: this.#cell });
      if (!found) return undefined;
      event.preventDefault();
      return found.cell ? move(found.cell) : undefined;
    });
  }

  // {rows, columns, sheet, area: {width, height}, names? ({down, across}, else numbers, under titles?), square?, cells? (for drawCells),
  // marks?(context, plot, ink): drawn over it, pen?: which ink the cursor has}
  draw(matrix) {
    const ink = inks();
    const context = this.#below.getContext("2d");
    const { rows, columns, area, names } = matrix;
    const plot = names
      ? layout(context, names, whole(rows, columns), area, ink.font)
      : counted(context, matrix, ink.font);
    this.#matrix = { ...matrix, plot, ink };
    this.size = [area.width, Math.ceil(plot.top + plot.height + 6)];
    const brush = fit(this.#below, ...this.size);
    drawSheet(brush, plot, matrix.sheet, whole(rows, columns));
    if (matrix.cells) drawCells(brush, plot, matrix.cells, ink);
    frameOf(brush, plot, ink);
    if (names) drawLabels(brush, plot, names, ink);
    else ticks(brush, plot, ink, matrix.titles);
    matrix.marks?.(brush, plot, ink);
    this.point(this.#cell);
  }

  point(cell) {
    if (!this.#matrix) return;
    const { plot, ink, rows, columns, names, pen = "gold" } = this.#matrix;
    this.#cell = [Math.min(cell[0], rows - 1), Math.min(cell[1], columns - 1)];
    const brush = fit(this.#over, ...this.size);
    if (names) drawHere(brush, plot, names, this.#cell, ink);
    drawCursor(brush, plot, ...this.#cell, { ...ink, gold: ink[pen] });
  }

  tell(text, before = "") {
    this.#announced = text;
    this.#over.setAttribute("aria-label", before + text);
    if (document.activeElement === this.#over) say(text);
  }
}

// rows and columns that have numbers for names
function counted(context, { rows, columns, area, titles, square = false }, font) {
  context.font = `12px ${font}`;
  const left = Math.ceil(context.measureText(String(rows - 1)).width) + 14;
  const top = titles ? 42 : 24;
  let [wide, high] = [(area.width - left - 8) / columns, (area.height - top - 6) / rows].map((size) =>
    Math.min(size, square ? 44 : 26),
  );
  if (square) wide = high = Math.min(wide, high);
  const window = whole(rows, columns);
  return { left, top, wide, high, rows, columns, window, width: wide * columns, height: high * rows };
}

function ticks(context, plot, ink, titles) {
  context.font = `12px ${ink.font}`;
  context.fillStyle = ink.muted;
  context.textBaseline = "middle";
  context.textAlign = "left";
  if (titles) context.fillText(`${titles[0]} ↓  ${titles[1]} →`, 0, 8);
  context.textAlign = "right";
  for (let row = 0, by = thinned(plot.high, 22); row < plot.rows; row += by) {
    const [, y, , h] = cellBox(plot, row, 0);
    context.fillText(String(row), plot.left - 7, y + h / 2);
  }
  context.textAlign = "center";
  for (let column = 0, by = thinned(plot.wide, 34); column < plot.columns; column += by) {
    const [x, , w] = cellBox(plot, 0, column);
    context.fillText(String(column), x + w / 2, plot.top - 12);
  }
}
