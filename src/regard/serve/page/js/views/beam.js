// Beam view: the tree of hypotheses of a beam search, step by step.

import * as api from "../api.js";
import { digits, drawing, element, figure, replace, say, shortened, token } from "../dom.js";
import { store } from "../store.js";
import { View } from "../view.js";
import { clamp, listField, put } from "./parts.js";

const [WIDE, HIGH, BOX, TALL] = [132, 54, 104, 38];
const WIDTHS = [1, 2, 3, 4, 5, 8, 12, 16];

class Beam extends View {
  #field = listField("Hypotheses", [["", "default"], ...WIDTHS.map((n) => [n, String(n)])], "", (value) =>
    store.go({ beam: value ? Number(value) : null }),
  );
  #tree = element("div", { class: "beam", tabindex: "0", role: "application", "aria-roledescription": "beam tree" });
  #card = element("div", { class: "beam-card" });
  #key = element("p", { class: "muted small beam-key" });
  #steps = null;
  #at = [0, 0];

  connectedCallback() {
    if (this.firstChild) return;
    this.append(element("div", { class: "view-head" }, this.#key, this.#field), this.#tree, this.#card);
    this.#tree.addEventListener("keydown", (event) => this.key(event));
    this.#tree.addEventListener("click", ({ target }) => {
      const node = target.closest("[data-place]");
      if (node) this.point(node.dataset.place.split(",").map(Number));
    });
  }

  show(trace, state) {
    put(this.#field, state.beam ?? "");
    this.trace = trace;
    this.writes = trace.options.includes("more");
    this.greedy = this.writes && !state.beam; // then the tree is of what a beam would have kept
    if (this.fresh("key", this.writes, this.greedy))
      replace(
        this.#key,
        element("span", { class: "key-chosen" }, `path to ${this.greedy ? "the best hypothesis" : "the output"}`),
        this.writes ? null : element("span", { class: "key-ended" }, "finished (</s>)"),
        element("span", { class: "key-text" }, "numbers are log-probabilities in nats; finished ones are ranked by nats per token"),
        this.greedy ? element("span", {}, "Decoded greedily; beam search with width 4 would keep these hypotheses.") : null,
      );
    if (this.fresh("trace", trace.id)) this.load(trace);
  }

  async load(trace) {
    this.#steps = null;
    replace(this.#card);
    const answer = await this.ask(api.beam(trace.id));
    if (!answer || trace !== this.trace) return undefined;
    if (!answer.steps.length) {
      this.dataset.painted = trace.id;
      const words = "No tokens were generated, so there is no beam; generate some under Generation.";
      return replace(this.#tree, element("p", { class: "empty" }, words));
    }
    this.#steps = answer.steps;
    this.draw();
    const last = this.#steps.findLastIndex((step) => step.some((one) => one.chosen));
    this.point([Math.max(0, last), Math.max(0, this.#steps[last]?.findIndex((one) => one.chosen) ?? 0)], false);
    this.dataset.painted = trace.id;
    return undefined;
  }

  draw() {
    // so many steps as fit are in sight without scrolling
    const fits = Math.floor((this.#tree.clientWidth - 10) / this.#steps.length);
    this.wide = clamp(fits, BOX + 14, WIDE);
    const rows = Math.max(...this.#steps.map((step) => step.length), 1);
    const links = [];
    const nodes = [];
    this.#steps.forEach((step, n) => {
      step.forEach((one, place) => {
        const [x, y] = [this.wide * n + 8, HIGH * place + 8];
        if (one.parent !== null) {
          const from = [x - this.wide + BOX, HIGH * one.parent + 8 + TALL / 2];
          const [to, bend] = [y + TALL / 2, (this.wide - BOX) / 2 + 4];
          const link = drawing("path", {
            class: one.chosen ? "link chosen" : "link",
            d: `M${from} C${from[0] + bend},${from[1]} ${x - bend},${to} ${x},${to}`,
          });
          if (one.chosen) links.push(link);
          else links.unshift(link); // the chosen way is drawn over the others
        }
        nodes.push(
          drawing(
            "g",
            {
              class: `node${one.chosen ? " chosen" : ""}${one.finished ? " ended" : ""}`,
              "data-place": `${n},${place}`,
              transform: `translate(${x} ${y})`,
            },
            drawing("title", {}, `${one.token}: log-probability ${one.log_probability}`),
            drawing("rect", { width: BOX, height: TALL, rx: one.finished ? 2 : 8 }),
            one.finished ? drawing("path", { class: "end", d: `M${BOX - 5},4 V${TALL - 4}` }) : null,
            drawing("text", { x: 9, y: 16, class: "name" }, shortened(one.token, 12)),
            drawing("text", { x: 9, y: 31, class: "score" }, digits(one.log_probability, 4)),
          ),
        );
      });
    });
    const size = { width: this.wide * this.#steps.length + 8, height: HIGH * rows + 8 };
    replace(this.#tree, drawing("svg", { ...size, "aria-hidden": "true" }, links, nodes));
  }

  // --- where one is ---

  get node() {
    return this.#steps[this.#at[0]][this.#at[1]];
  }

  // the way from the first step to a node: [step, place] of each
  way([step, place]) {
    const found = [];
    for (let n = step, at = place; n >= 0 && at !== null; n--) {
      found.unshift([n, at]);
      at = this.#steps[n][at].parent;
    }
    return found;
  }

  point(at, follow = true) {
    this.#at = at;
    const way = this.way(at);
    const on = new Set(way.map(String));
    for (const node of this.#tree.querySelectorAll(".node")) {
      node.classList.toggle("way", on.has(node.dataset.place));
      node.classList.toggle("here", node.dataset.place === String(at));
    }
    const [left, top] = [this.wide * at[0], HIGH * at[1]];
    const { clientWidth: w, clientHeight: h } = this.#tree;
    if (follow)
      this.#tree.scrollTo(
        clamp(this.#tree.scrollLeft, left + this.wide - w + 24, left - 24),
        clamp(this.#tree.scrollTop, top + HIGH - h + 8, top - 8),
      );
    const tokens = way.map(([n, place]) => this.#steps[n][place].token);
    const { log_probability: sure, score, finished, chosen } = this.node;
    const way_to = this.greedy ? "on the path to the best hypothesis" : "on the path to the output";
    const state = [finished ? "ended" : "open", chosen ? way_to : ""].filter(Boolean).join(", ");
    const where = `Step ${at[0] + 1} of ${this.#steps.length}, ${at[1] + 1} of ${this.#steps[at[0]].length}`;
    replace(
      this.#card,
      element(
        "p",
        { class: "headline" },
        tokens.map((one) => [token(one), " "]),
      ),
      element(
        "p",
        { class: "row small" },
        element("span", { class: "muted" }, where),
        element("span", {}, "log-probability ", figure(sure), " nats"),
        finished ? element("span", {}, "ranked by ", figure(score), " nats per token") : null,
        element("span", { class: "muted" }, state),
      ),
    );
    const text = `${where}: “${shortened(this.node.token, 40)}”, log-probability ${digits(sure)} nats${finished ? `, ranked by ${digits(score)} nats per token` : ""}, ${state}. ${shortened(tokens.join(" "), 200)}`;
    this.#tree.setAttribute("aria-label", text);
    if (document.activeElement === this.#tree) say(text);
  }

  key(event) {
    if (!this.#steps || event.ctrlKey || event.metaKey || event.altKey) return;
    const [step, place] = this.#at;
    const children = (this.#steps[step + 1] ?? []).map((one, n) => [one, n]).filter(([one]) => one.parent === place);
    const best = children.find(([one]) => one.chosen) ?? children[0];
    const to = {
      ArrowUp: [step, place - 1],
      ArrowDown: [step, place + 1],
      ArrowLeft: this.node.parent === null ? null : [step - 1, this.node.parent],
      ArrowRight: best ? [step + 1, best[1]] : null,
      Home: [0, 0],
      End: [this.#steps.length - 1, 0],
    };
    if (!(event.key in to)) return;
    event.preventDefault();
    const next = to[event.key];
    if (next && this.#steps[next[0]]?.[next[1]]) this.point(next);
  }
}

customElements.define("regard-beam", Beam);
