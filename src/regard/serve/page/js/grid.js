// Heat map grid: positions of the cells of a matrix window, its labels, and its drawing on a canvas.

import { digits, shortened } from "./dom.js";
import { hatch, readable } from "./paint.js";

const LARGEST = 60; // pixels: no cell is higher
const WIDEST = 120; // nor wider
const MANY = 60; // more labels are thinned, and numbered
const THREAD = 180;
const LINE = 15; // labels stand no closer

// how wide labels are: measured on some of them, so that panning does not move the plot
function gutter(context, names, most) {
  const step = Math.ceil(names.length / 200) || 1;
  let widest = 12;
  for (let n = 0; n < names.length; n += step) widest = Math.max(widest, context.measureText(shortened(names[n], letters(names))).width);
  return Math.min(Math.ceil(widest) + 12, most);
}

function letters(names) {
  return names.length > MANY ? 10 : 15;
}

// every how many labels are shown: 1, 2, 5, 10, 20, …
export function thinned(cell, least = LINE) {
  for (let step = 1; ; step *= 10) for (const by of [1, 2, 5]) if (step * by * cell >= least) return step * by;
}

// names: {down, across}; window: [top, bottom, left, right]; area: {width, height} in CSS pixels
export function layout(context, names, window, area, font) {
  context.font = `13px ${font}`;
  const [rows, columns] = [window[1] - window[0], window[3] - window[2]];
  const narrow = area.width < 480;
  const left = gutter(context, names.down, Math.min(160, area.width * 0.3)) + (names.down.length > MANY ? 26 : 0);
  const across = gutter(context, names.across, 130) + (names.across.length > MANY ? 26 : 0);
  const flat = (area.width - left) / columns >= across + 4 || (columns <= 12 && LARGEST >= across && area.width - left > columns * across);
  const top = flat ? 42 : Math.round(narrow ? across : across * 0.8 + 6);
  const right = flat || narrow ? 8 : Math.round(top * 0.75);
  const space = { width: Math.max(40, area.width - left - right), height: Math.max(40, area.height - top - 4) };
  const square = Math.min(space.width / columns, space.height / rows, LARGEST);
  // cells are up to twice as wide as high, where there is room, and no long thin matrix becomes a thread
  const wide = Math.min(space.width / columns, Math.max(square, Math.min(2 * square, WIDEST), flat ? across : Math.min(THREAD / columns, LARGEST)));
  const high = Math.min(space.height / rows, Math.max(square, Math.min(THREAD / rows, LARGEST)));
  return { left, top, wide, high, rows, columns, window, flat, narrow, width: wide * columns, height: high * rows };
}

// the window below a plot's top, less what stands under it
export function area(node, below, least, most = 1.2) {
  const width = Math.max(240, node.clientWidth);
  const height = innerHeight - (node.getBoundingClientRect().top + scrollY) - below;
  return { width, height: Math.min(Math.max(height, least), 900, Math.max(width * most, 320)) };
}

export function cellAt(plot, x, y) {
  const [row, column] = [Math.floor((y - plot.top) / plot.high), Math.floor((x - plot.left) / plot.wide)];
  if (row < 0 || column < 0 || row >= plot.rows || column >= plot.columns) return null;
  return [plot.window[0] + row, plot.window[2] + column];
}

export function cellBox(plot, row, column) {
  const [x, y] = [plot.left + (column - plot.window[2]) * plot.wide, plot.top + (row - plot.window[0]) * plot.high];
  return [x, y, plot.wide, plot.high];
}

// a sheet that shows `its` window, drawn where it belongs in this one
export function drawSheet(context, plot, sheet, its) {
  const [top, bottom, left, right] = plot.window;
  const [t, b, l, r] = [Math.max(top, its[0]), Math.min(bottom, its[1]), Math.max(left, its[2]), Math.min(right, its[3])];
  if (t >= b || l >= r) return;
  const [down, over] = [sheet.height / (its[1] - its[0]), sheet.width / (its[3] - its[2])];
  const [x, y] = cellBox(plot, t, l);
  const from = [(l - its[2]) * over, (t - its[0]) * down, (r - l) * over, (b - t) * down];
  context.drawImage(sheet, ...from, x, y, (r - l) * plot.wide, (b - t) * plot.high);
}

// numbers and hidden cells, where there is room for them; value(row, column), hidden(row, column)
export function drawCells(context, plot, { value, hidden, share, palette, plain = false }, ink) {
  const [top, bottom, left, right] = plot.window;
  if (plot.wide < 6 || plot.high < 6) return;
  const numbers = !plain && plot.wide >= 34 && plot.high >= 16;
  context.font = `${plot.wide >= 42 ? 12 : 11}px ${ink.font}`;
  context.textAlign = "center";
  context.textBaseline = "middle";
  for (let row = top; row < bottom; row++) {
    for (let column = left; column < right; column++) {
      const [x, y, w, h] = cellBox(plot, row, column);
      if (hidden(row, column)) hatch(context, x, y, w, h, ink);
      else if (numbers) {
        const number = value(row, column);
        context.fillStyle = readable(palette, share(number));
        const narrow = w < 42; // then a negative number goes without its first 0
        const text = digits(number, 3, narrow && number <= -1 ? 1 : 2);
        context.fillText(palette !== "weights" && /[<>]/.test(text) ? "≈0" : narrow ? text.replace("−0.", "−.") : text, x + w / 2, y + h / 2);
      }
    }
  }
  context.strokeStyle = ink.paper;
  context.lineWidth = plot.wide > 24 ? 2 : 1;
  context.beginPath();
  for (let row = 1; row < plot.rows; row++) {
    context.moveTo(plot.left, plot.top + row * plot.high);
    context.lineTo(plot.left + plot.width, plot.top + row * plot.high);
  }
  for (let column = 1; column < plot.columns; column++) {
    context.moveTo(plot.left + column * plot.wide, plot.top);
    context.lineTo(plot.left + column * plot.wide, plot.top + plot.height);
  }
  context.stroke();
}

export function drawLabels(context, plot, names, ink) {
  const [top, bottom, left, right] = plot.window;
  const [down, over] = [thinned(plot.high), thinned(plot.flat ? Math.max(plot.wide, LINE) : plot.wide)];
  context.font = `13px ${ink.font}`;
  context.textBaseline = "middle";
  context.direction = "ltr";
  context.fillStyle = ink.ink;
  corner(context, plot, names.titles, ink);
  for (let row = Math.ceil(top / down) * down; row < bottom; row += down) {
    drawRow(context, plot, numbered(names.down, row), row);
  }
  for (let column = Math.ceil(left / over) * over; column < right; column += over) {
    drawColumn(context, plot, numbered(names.across, column), column);
  }
}

// the labels of one cell, over what stands there: with thinned labels one would not know where one is
export function drawHere(context, plot, names, [row, column], ink) {
  context.font = `600 13px ${ink.font}`;
  context.textBaseline = "middle";
  context.direction = "ltr";
  const [, y, w, h] = cellBox(plot, row, column);
  const text = numbered(names.across, column);
  context.fillStyle = ink.paper;
  context.fillRect(0, y + h / 2 - 9, plot.left - 2, 18);
  for (const far of beside(row, plot.high)) context.fillRect(0, y + h / 2 + far * plot.high - 8, plot.left - 2, 16);
  for (const far of plot.flat ? [] : beside(column, plot.wide)) {
    context.save();
    turned(context, plot, column + far);
    context.fillRect(-4, -8, longest(plot) + 8, 16);
    context.restore();
  }
  const length = Math.min(context.measureText(text).width, longest(plot));
  context.save();
  turned(context, plot, column);
  if (plot.flat) context.fillRect(-w / 2, -9, w, 18);
  else context.fillRect(-4, -9, length + 8, 18);
  context.restore();
  context.fillStyle = ink.gold;
  drawRow(context, plot, numbered(names.down, row), row);
  drawColumn(context, plot, text, column);
}

// how far the labels are that would be cut in two
function beside(at, cell) {
  const step = thinned(cell);
  const near = [Math.floor(at / step) * step - at, Math.ceil((at + 1) / step) * step - at];
  return near.filter((far) => far !== 0 && Math.abs(far * cell) < LINE + 2);
}

// what stands down and what across
function corner(context, plot, titles, ink) {
  if (!titles || plot.left < 56) return;
  context.save();
  context.font = `12px ${ink.font}`;
  context.fillStyle = ink.muted;
  context.textAlign = "right";
  context.fillText(`${titles[1]} →`, plot.left - 8, plot.top - 30, plot.left - 10);
  context.fillText(`${titles[0]} ↓`, plot.left - 8, plot.top - 16, plot.left - 10);
  context.restore();
}

function drawRow(context, plot, text, row) {
  const [, y, , h] = cellBox(plot, row, plot.window[2]);
  context.textAlign = "right";
  context.fillText(text, plot.left - 8, y + h / 2, plot.left - 10);
}

function turned(context, plot, column) {
  context.translate(plot.left + (column - plot.window[2] + 0.5) * plot.wide, plot.top - (plot.flat ? 12 : 8));
  context.textAlign = plot.flat ? "center" : "left";
  if (!plot.flat) context.rotate(plot.narrow ? -Math.PI / 2 : -Math.PI / 3.4);
}

function longest(plot) {
  return plot.flat ? Math.max(plot.wide - 4, 20) : plot.narrow ? plot.top - 12 : (plot.top - 14) / 0.8;
}

function drawColumn(context, plot, text, column) {
  context.save();
  turned(context, plot, column);
  context.fillText(text, 0, 0, longest(plot));
  context.restore();
}

function numbered(names, at) {
  const text = shortened(names[at], letters(names));
  return names.length > MANY ? `${text} ${at}` : text;
}

export function frameOf(context, plot, ink) {
  context.strokeStyle = ink.frame;
  context.lineWidth = 1;
  context.strokeRect(plot.left - 0.5, plot.top - 0.5, plot.width + 1, plot.height + 1);
}

// where one is: a bar through row and column, and a box that is seen on every colour
export function drawCursor(context, plot, row, column, ink) {
  const [x, y, w, h] = cellBox(plot, row, column);
  context.save();
  context.beginPath();
  context.rect(plot.left - 3, plot.top - 3, plot.width + 6, plot.height + 6);
  context.clip();
  if (Math.min(w, h) < 12) {
    context.fillStyle = ink.gold;
    context.globalAlpha = 0.35;
    const [line, post] = [Math.min(Math.max(1, h), 2), Math.min(Math.max(1, w), 2)];
    context.fillRect(plot.left, y + h / 2 - line / 2, plot.width, line);
    context.fillRect(x + w / 2 - post / 2, plot.top, post, plot.height);
    context.globalAlpha = 1;
  }
  const grow = Math.max(0, 7 - Math.min(w, h)) / 2;
  context.lineWidth = 4;
  context.strokeStyle = ink.paper;
  context.strokeRect(x - grow, y - grow, w + 2 * grow, h + 2 * grow);
  context.lineWidth = 2;
  context.strokeStyle = ink.gold;
  context.strokeRect(x - grow, y - grow, w + 2 * grow, h + 2 * grow);
  context.restore();
}

// one exact row as bars under the plot, cell above cell; many to a pixel: the largest of them
export function drawProfile(context, plot, row, stage, ink, height, signed = stage !== "weights") {
  const [, , left, right] = plot.window;
  const base = plot.top + plot.height + 10;
  let most = signed ? 1e-9 : 0;
  for (let n = left; n < right; n++) if (Number.isFinite(row[n])) most = Math.max(most, Math.abs(row[n]));
  const [zero, tall] = signed ? [base + height / 2, height / 2] : [base + height, height];
  context.fillStyle = ink.accent;
  const bars = Math.min(right - left, Math.floor(plot.width));
  const wide = plot.width / bars;
  for (let bar = 0; bar < bars; bar++) {
    const from = left + Math.floor((bar * (right - left)) / bars);
    const to = Math.max(from + 1, left + Math.floor(((bar + 1) * (right - left)) / bars));
    let value = 0;
    for (let n = from; n < to; n++) if (Number.isFinite(row[n]) && Math.abs(row[n]) > Math.abs(value)) value = row[n];
    const length = most ? (value / most) * tall : 0;
    context.fillRect(plot.left + bar * wide, zero - Math.max(length, 0), Math.max(wide - (wide > 4 ? 1 : 0), 1), Math.abs(length));
  }
  context.fillStyle = ink.frame;
  context.fillRect(plot.left, zero, plot.width, 1);
  context.fillStyle = ink.muted;
  context.font = `12px ${ink.font}`;
  context.textAlign = "right";
  context.textBaseline = "middle";
  context.fillText(digits(most, 3), plot.left - 8, base + 5, plot.left - 10);
  context.fillText(stage, plot.left - 8, base + height - 6, plot.left - 10);
}
