// Scatter plot: points with two coordinates, coloured by kind, walked through by the arrow keys.

import { digits, drawing, h, pointer, say } from "../dom.js";
import { headColours } from "../paint.js";

const SIDE = { top: 8, right: 8, bottom: 34, left: 34 };

// points: [x, y, number, …, name, kind]; choose(number)
export class Scatter {
  constructor(points, { titles, label, chosen, width, choose }) {
    [this.points, this.choose] = [points, choose];
    this.size = [width, Math.round(width * 0.66)];
    const ends = [0, 1].map((n) => points.reduce(([low, high], one) => [Math.min(low, one[n]), Math.max(high, one[n])], [Infinity, -Infinity]));
    const [w, t] = this.size;
    const span = [[SIDE.left, w - SIDE.right], [t - SIDE.bottom, SIDE.top]];
    this.at = (one) => [0, 1].map((n) => span[n][0] + ((one[n] - ends[n][0]) / (ends[n][1] - ends[n][0] || 1)) * (span[n][1] - span[n][0]));
    const counts = new Map();
    for (const one of points) counts.set(one.at(-1), (counts.get(one.at(-1)) ?? 0) + 1);
    const kinds = [...counts.keys()].filter(Boolean).sort((a, b) => counts.get(b) - counts.get(a));
    const colours = headColours();
    const colour = (kind) => colours[kinds.indexOf(kind)] ?? "var(--muted)";
    this.cursor = Math.max(0, points.findIndex((one) => one[2] === chosen));
    this.ring = drawing("circle", { class: "ring", r: 7 });
    const text = (attributes, words) => drawing("text", attributes, words);
    this.svg = drawing(
      "svg",
      { viewBox: `0 0 ${w} ${t}`, class: "scatter", tabindex: "0", role: "application", "aria-roledescription": "scatter plot", "aria-label": `${label}: ${points.length} dots; arrow keys walk, Enter chooses` },
      drawing("path", { class: "axis", d: `M${SIDE.left},${SIDE.top} V${t - SIDE.bottom} H${w - SIDE.right}` }),
      points.map((one) => {
        const [x, y] = this.at(one);
        return drawing("circle", { cx: x.toFixed(1), cy: y.toFixed(1), r: 3, style: { fill: colour(one.at(-1)) } });
      }),
      this.ring,
      text({ x: SIDE.left, y: t - 18 }, digits(ends[0][0], 2)),
      text({ x: w - SIDE.right, y: t - 18, "text-anchor": "end" }, digits(ends[0][1], 2)),
      text({ x: w / 2, y: t - 4, "text-anchor": "middle" }, titles[0]),
      text({ x: SIDE.left - 4, y: SIDE.top + 10, "text-anchor": "end" }, digits(ends[1][1], 2)),
      text({ x: SIDE.left - 4, y: t - SIDE.bottom, "text-anchor": "end" }, digits(ends[1][0], 2)),
      drawing("text", { transform: `translate(10 ${t / 2}) rotate(-90)`, "text-anchor": "middle" }, titles[1]),
    );
    this.svg.addEventListener("click", (event) => this.pick(this.nearest(this.place(event))));
    this.svg.addEventListener("pointermove", (event) => this.move(this.nearest(this.place(event))));
    this.svg.addEventListener("keydown", (event) => this.key(event));
    this.text = h.p({ class: "small" });
    const legend = kinds.map((kind, n) => h.span({ class: "row small" }, h.span({ class: "swatch", style: { background: colours[n] ?? "var(--muted)" } }), kind));
    const others = kinds.length > colours.length ? [...legend.slice(0, colours.length), h.span({ class: "row small" }, h.span({ class: "swatch", style: { background: "var(--muted)" } }), "others")] : legend;
    this.node = h.div(this.svg, this.text, h.div({ class: "keys" }, others));
    this.ring.style.display = chosen === null ? "none" : "";
    if (chosen !== null) this.move(this.cursor);
  }

  place(event) {
    const [x, y] = pointer(this.svg, event);
    const scale = this.size[0] / (this.svg.getBoundingClientRect().width || 1);
    return [x * scale, y * scale];
  }

  // the dot next to a place; with a way, only those that lie that way
  nearest([x, y], way = null) {
    let [best, least] = [this.cursor, Infinity];
    this.points.forEach((one, n) => {
      const [dx, dy] = [this.at(one)[0] - x, this.at(one)[1] - y];
      if (way && (n === this.cursor || dx * way[0] + dy * way[1] <= Math.abs(dx * way[1] + dy * way[0]))) return;
      const far = dx * dx + dy * dy;
      if (far < least) [best, least] = [n, far];
    });
    return best;
  }

  move(n) {
    this.cursor = n;
    const [x, y] = this.at(this.points[n]);
    this.ring.setAttribute("cx", x);
    this.ring.setAttribute("cy", y);
    this.ring.style.display = "";
    const [px, py] = this.points[n];
    const [name, kind] = this.points[n].slice(-2);
    this.text.textContent = `${name}${kind ? `, ${kind}` : ""}: ${digits(px, 3)}, ${digits(py, 3)}`;
  }

  pick(n) {
    this.move(n);
    this.choose(this.points[n][2]);
  }

  key(event) {
    const way = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key];
    if (!way && event.key !== "Enter") return;
    event.preventDefault();
    if (!way) return this.pick(this.cursor);
    this.move(this.nearest(this.at(this.points[this.cursor]), way));
    say(this.text.textContent, this.svg);
    return undefined;
  }
}
