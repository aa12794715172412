// Start: the cell that tells most, in a sentence and in its matrix, and four ways on.

import { button, figure, h, replace, token } from "../dom.js";
import { area, cellBox } from "../grid.js";
import { dark, legend } from "../paint.js";
import { store } from "../store.js";
import { latest, siteOf, View } from "../view.js";
import { Heat } from "./heat.js";
import { headOf, picture } from "./head.js";
import { VIEWS } from "./index.js";

const BESIDE = 170; // pixels for what is written beside a row

class Start extends View {
  #title = h.h2({ class: "lead" });
  #heat = new Heat({ move: ([query, key]) => store.set({ query, key }), open: () => store.go({ view: "pair" }), what: "attention matrix" });
  #row = h.span({ class: "callout", "aria-hidden": "true" });
  #column = h.span({ class: "callout", "aria-hidden": "true" });
  #key = h.p({ class: "muted small" });
  #legend = h.div();
  #ways = h.ul({ class: "ways" });
  #load = latest();

  connectedCallback() {
    if (this.firstChild) return;
    this.#heat.node.append(this.#row, this.#column);
    this.append(this.#title, h.div({ class: "beside" }, h.div(this.#heat.node, this.#key, this.#legend), h.nav({ "aria-label": "Ways on" }, this.#ways)));
  }

  show(trace, state) {
    const site = siteOf(trace, state);
    this.now = { trace, site, head: state.head, cell: [state.query, state.key] };
    if (this.fresh("ways", trace.id)) this.ways(trace);
    if (this.fresh("head", trace.id, site.name, state.head, this.appearance)) this.#load(() => this.load());
    else if (this.fresh("cell", this.now.cell)) this.point();
  }

  async load() {
    const { trace, site, head } = this.now;
    const found = await this.ask(headOf(trace, site, head));
    if (!found || this.now.trace !== trace || this.now.site !== site) return;
    this.found = found;
    const all = area(this.#heat.node, 175, 280);
    this.beside = all.width > 620 ? BESIDE : 0;
    const marks = (_, plot) => (this.plot = plot);
    this.#heat.draw({ ...picture(found, { ...all, width: all.width - this.beside }), marks });
    if (this.fresh("legend", dark(), found.palette)) replace(this.#legend, legend(found.palette));
    replace(this.#key, `${site.name}, head ${head}. Click another cell.`);
    this.fresh("cell", this.now.cell);
    this.point();
    this.dataset.painted = `${trace.id} ${site.name} ${head}`;
  }

  // the sentence, and what is written beside the row and under the column
  point() {
    if (!this.found) return;
    const { trace, site } = this.now;
    const { names, values, rows, columns, shape, weights } = this.found;
    const [i, j] = [Math.min(this.now.cell[0], rows - 1), Math.min(this.now.cell[1], columns - 1)];
    const [query, key] = [() => token(names.down[i]), () => token(names.across[j])];
    const at = Math.floor((i * shape[0]) / rows) * shape[1] + Math.floor((j * shape[1]) / columns);
    const weight = values ? values[i * columns + j] : weights[at];
    const share = h.strong(figure(100 * weight, 3), " %");
    const writes = site.queries === "written" && trace.axes.written;
    // some heads attend to what is written next, some to the source of the token before it
    const before = rows === shape[0] && i > 0 ? ["After ", token(names.down[i - 1]), ", to write "] : ["To write "];
    replace(
      this.#title,
      writes ? [...before, query(), ", this head gave ", share, " of its attention to ", key(), "."] : [query(), " gives ", share, " of its attention to ", key(), "."],
    );
    this.#heat.point([i, j]);
    this.#heat.tell(this.#title.textContent, `${site.name}, head ${this.now.head}. `);
    const [x, y, w, high] = cellBox(this.plot, i, j);
    replace(this.#row, "← attention of ", query());
    replace(this.#column, "↑ what attends to ", key());
    this.#row.hidden = !this.beside;
    for (const [node, left, top] of [[this.#row, this.plot.left + this.plot.width + 10, y + high / 2 - 11], [this.#column, x + w / 2 - 5, this.plot.top + this.plot.height + 6]]) {
      node.style.left = `${left}px`;
      node.style.top = `${top}px`;
    }
  }

  ways(trace) {
    const there = (view) => VIEWS.some((one) => one.name === view); // an exported page has fewer
    const way = (view, name, what) => there(view) && h.li(button([h.strong(name), h.span({ class: "muted small" }, what)], () => store.go({ view })));
    replace(
      this.#ways,
      way(there("row") ? "row" : "pair", "How is it computed?", "queries, keys, softmax"),
      trace.steps ? way("generation", "What was written?", "word by word") : way("explain", "What decided?", "effects, not weights"),
      way("whatif", "What if?", "switch heads off"),
      way("lecture", "The lecture", "from scratch"),
    );
  }
}

customElements.define("regard-start", Start);
