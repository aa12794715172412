// Corpus view: every head over many sentences, its strongest spans, the states of all tokens, the model's errors.

import * as api from "../api.js";
import { button, digits, figure, h, replace, say, shortened, table, token } from "../dom.js";
import { dark } from "../paint.js";
import { choices } from "../side.js";
import { store } from "../store.js";
import { followJob, View } from "../view.js";
import { count, listField, numberField, put } from "./parts.js";
import { Scatter } from "./scatter.js";

const SHOWN = [["heads", "Heads"], ["errors", "Errors"], ["states", "States"]];
const SOURCES = [["held-out", "held-out sentences of the run"], ["file", "a file"]];
// name → [title, what it says, factor]; the units are those of the view Heads
const COLUMNS = {
  entropy: ["entropy, nats", "0 where one key has all"],
  distance: ["distance, tokens", "between a query and its keys"],
  sink: ["sink, %", "the weight of the first key", 100],
  confidence: ["largest, %", "the largest weight of a query", 100],
  aer: ["AER, %", "alignment error rate against the known alignments, 0 if all links are found", 100],
};
const LEAST = ["aer", "entropy"]; // the smallest first
const MOST = 10000;

class Corpus extends View {
  #source = "held-out";
  #file = h.input({ type: "file", accept: ".txt,.tsv,.jsonl,.conllu,.gz" });
  #count = numberField("Sentences at most", [1, MOST], () => {});
  #pick = h.label({ class: "field" }, h.span("File: a sentence a line, .tsv of pairs, .conllu of tags"), this.#file);
  #form = h.form({ class: "pickers", on: { submit: (event) => this.send(event) } });
  #bar = h.progress({ "aria-label": "Progress", max: "1", value: 0 });
  #done = h.span({ class: "muted small number" });
  #busy = h.div({ class: "row above" }, this.#bar, this.#done, button("Stop", () => this.stop("Stopped; nothing was kept.")));
  #summary = h.h2({ class: "headline above" });
  #shown = h.fieldset({ class: "steps above" });
  #out = h.div({ class: "above corpus" });
  #found = new Map(); // id → result
  #stop = null;
  #sorted = "aer"; // where alignments are known, else by entropy

  connectedCallback() {
    if (this.firstChild) return;
    this.append(this.#form, this.#busy, this.#summary, this.#shown, this.#out);
    this.#busy.hidden = this.#pick.hidden = true;
    put(this.#count, 1000);
    const from = listField("Sentences", SOURCES, this.#source, (to) => {
      this.#source = to;
      this.#pick.hidden = to !== "file";
    });
    this.#form.append(from, this.#pick, this.#count, h.button({ type: "submit", class: "primary" }, "Compute"));
  }

  disconnectedCallback() {
    if (this.#stop) this.stale("request");
    this.stop();
  }

  show(trace, state) {
    this.now = { trace, state, ...read(state.corpus) };
    const { id, count: most } = this.now;
    if (!id && most && this.fresh("held-out", state.model, most)) this.choose({ count: most }); // the address asks for them
    else if ((id || !most) && this.fresh("request", id)) this.load(id);
    else if (this.#found.has(id) && this.fresh("drawn", id, state.corpus, this.#sorted, dark(), this.clientWidth)) this.draw();
  }

  set(patch) {
    const { id, count: most, shown, site, head, layer, point } = this.now;
    store.go({ corpus: { id, count: most, shown, site, head, layer, point, ...patch } });
  }

  async send(event) {
    event.preventDefault();
    const body = { count: Number(this.#count.lastChild.value) };
    if (this.#source === "file") {
      const [file] = this.#file.files;
      if (!file) return this.explain("Choose a file first.");
      Object.assign(body, { name: file.name, content: await file.text() });
    }
    return this.choose(body);
  }

  async choose(body) {
    const { state } = this.now;
    const made = await this.ask(api.corpus({ model: state.model, checkpoint: state.checkpoint, ...body }));
    if (made) this.set({ id: made.id, count: 0, site: "", head: 0, layer: "", point: null });
  }

  explain(text) {
    replace(this.#out, h.p({ class: "muted" }, text));
    say(text, this);
  }

  load(id) {
    this.stop();
    this.#summary.hidden = this.#shown.hidden = true;
    this.dataset.painted = id || "nothing yet";
    if (!id) return this.explain(this.why ?? "Press Compute for the means of every head, its strongest weights, the model's errors and its states.");
    if (this.#found.has(id)) return this.draw();
    replace(this.#out);
    delete this.why;
    delete this.dataset.painted;
    this.#stop = followJob(this, (handlers) => api.corpusStatistics(id, handlers), {
      busy: this.#busy,
      bar: this.#bar,
      count: this.#done,
      over: () => (this.#stop = null),
      result: (found) => {
        if (this.#found.size > 3) this.#found.delete(this.#found.keys().next().value);
        this.#found.set(id, found);
        this.draw();
      },
    });
    return undefined;
  }

  stop(why = "") {
    this.#stop?.();
    if (!why) return;
    this.why = why;
    this.set({ id: "", count: 0 });
  }

  draw() {
    const { id, shown } = this.now;
    const found = this.#found.get(id);
    const wrong = found.predictions ? [" · ", count(found.error_count), " of ", count(found.predictions), " predictions are wrong"] : [];
    const from = found.name === "held-out sentences" ? [" ", found.name] : [" sentences ", h.span({ class: "muted" }, shortened(found.name, 40))];
    replace(this.#summary, count(found.sentences.length), from, wrong);
    say(this.#summary.textContent, this);
    this.#summary.hidden = this.#shown.hidden = false;
    choices(this.#shown, h.legend({ class: "hidden-text" }, "What is shown"), "corpus-shown", shown, SHOWN, (to) => this.set({ shown: to }));
    replace(this.#out, this[shown](found));
    if (shown === "states") this.neighbours(found);
    this.dataset.painted = `${id} ${shown}`;
  }

  // a sentence in the page, and where to look in it
  open({ sentence, ...where }) {
    const found = this.#found.get(this.now.id);
    const { text, target } = found.sentences[sentence];
    store.go({ model: found.model, text, target: target ?? undefined, edits: {}, branches: undefined, window: null, view: "matrix", ...where });
  }

  link(text, where, label) {
    return h.button({ type: "button", class: "link small", "aria-label": label, title: "Open this sentence", dir: "auto", on: { click: () => this.open(where) } }, shortened(text, 60));
  }

  // --- heads ---

  heads(found) {
    const shown = Object.keys(COLUMNS).filter((name) => found.heads.some((one) => one[name] !== null));
    const by = shown.includes(this.#sorted) ? this.#sorted : "entropy";
    const value = (one) => (one[by] === null ? Infinity : LEAST.includes(by) ? one[by] : -one[by]);
    const ranked = [...found.heads].sort((a, b) => value(a) - value(b));
    const chosen = found.heads.find((one) => one.site === this.now.site && one.head === this.now.head) ?? ranked[0];
    const tags = found.heads.some((one) => one.tag_pairs.length);
    const line = (one) => [
      h.th({ scope: "row" }, button(`${one.site}, ${one.head}`, () => this.set({ site: one.site, head: one.head }), { class: "link small", "aria-pressed": String(one === chosen), data: { site: one.site, head: String(one.head) } })),
      ...shown.map((name) => (one[name] === null ? h.td({ class: "right muted" }, "–") : figure((COLUMNS[name][2] ?? 1) * one[name], 3))),
      h.td(one.sinks.length ? [token(shortened(one.sinks[0][0], 12)), " ", figure(one.sinks[0][1], 2)] : null),
      tags ? h.td(one.tag_pairs.length ? [`${one.tag_pairs[0].query} → ${one.tag_pairs[0].key} `, figure(one.tag_pairs[0].weight, 2)] : null) : null,
    ].filter((cell) => cell !== null);
    const titles = ["head", ...shown.map((name) => COLUMNS[name][0]), "sink token", ...(tags ? ["parts of speech"] : [])];
    const node = table(titles, ranked.map(line), { class: "plain" });
    const marks = [...node.tHead.rows[0].cells];
    shown.forEach((name, n) => {
      const order = LEAST.includes(name) ? "ascending" : "descending";
      const sort = () => {
        this.#sorted = name;
        this.draw();
        this.querySelector(`[data-sort=${name}]`)?.focus();
      };
      const sign = name !== by ? "" : order === "ascending" ? " ↑" : " ↓";
      replace(marks[n + 1], button(`${COLUMNS[name][0]}${sign}`, sort, { class: "link small", title: `${COLUMNS[name][1]}; click to sort`, data: { sort: name } }));
      if (name === by) marks[n + 1].setAttribute("aria-sort", order);
    });
    return h.div({ class: "beside" }, h.div({ class: "sideways", tabindex: "0", role: "region", "aria-label": "Heads" }, node), this.card(found, chosen));
  }

  card(found, one) {
    const where = { site: one.site, head: one.head };
    const span = (each) => {
      const text = found.sentences[each.sentence].text;
      const label = `${each.query_token} to ${each.key_token}, ${digits(each.weight, 3)}: ${text}`;
      return h.li(token(each.query_token), " → ", token(each.key_token), " ", figure(each.weight), " ", this.link(text, { ...each, ...where, weight: undefined, query_token: undefined, key_token: undefined }, label));
    };
    const pair = (each) => [`${each.query} → ${each.key}`, figure(each.weight, 3), figure(each.even, 3)];
    return h.div(
      { class: "card" },
      h.section(h.h3(`${one.site}, head ${one.head}`), one.aer === null ? null : h.p({ class: "small" }, "alignment error (AER) ", figure(100 * one.aer, 3), " %", one.shift ? ", read one token later" : "")),
      h.section(h.h3(`Its ${one.spans.length} strongest weights, query → key`), h.ol({ class: "spans scroll", tabindex: "0", "aria-label": "Strongest weights" }, one.spans.map(span))),
      one.tag_pairs.length ? h.section(h.h3("Parts of speech it links"), table(["query → key", "weight", "if uniform"], one.tag_pairs.map(pair))) : null,
      h.section(h.h3("Tokens that get most"), table(["token", "share of all weight"], one.sinks.map(([name, share]) => [token(name), figure(share, 3)]))),
    );
  }

  // --- errors ---

  errors(found) {
    if (!found.predictions) return h.p({ class: "muted" }, "Nothing says what was wanted: give pairs (.tsv), tags (.conllu) or labels (.tsv).");
    if (!found.errors.length) return h.p({ class: "muted" }, "Every prediction is the wanted one.");
    const query = found.heads.find((one) => one.spans.length);
    const line = (one) => [
      this.link(found.sentences[one.sentence].text, { sentence: one.sentence, query: one.row, ...(query && { site: query.site, head: query.head }) }, `Open: ${found.sentences[one.sentence].text}`),
      token(one.wanted),
      token(one.predicted),
      figure(one.wanted_probability, 3),
      figure(one.predicted_probability, 3),
      figure(one.loss, 4),
    ];
    return h.div({ class: "sideways", tabindex: "0", role: "region", "aria-label": "Errors" }, table(["sentence", "wanted", "predicted", "p of the wanted", "p of the predicted", "loss, nats"], found.errors.map(line)));
  }

  // --- states ---

  states(found) {
    const names = Object.keys(found.layers).filter((name) => found.layers[name].points.length);
    if (!names.length) return h.p({ class: "muted" }, "This model has no stack of layers, so no states are kept.");
    const name = names.includes(this.now.layer) ? this.now.layer : names[0];
    const layer = found.layers[name];
    this.layer = name;
    const few = layer.states > layer.points.length ? `${layer.points.length} of ${layer.states} states` : `${layer.states} states`;
    const plot = new Scatter(layer.points, {
      titles: layer.variance.map((share, n) => `component ${n + 1}, ${digits(100 * share, 3)} % of variance`),
      label: `States behind ${name}`,
      chosen: this.now.point,
      width: Math.min(760, Math.max(240, this.clientWidth - (this.clientWidth > 940 ? 320 : 0))),
      choose: (point) => this.set({ layer: name, point }),
    });
    this.near = h.div({ class: "card" });
    const pick = listField("States behind", names.map((one) => [one, `${one} (${found.layers[one].axis})`]), name, (to) => this.set({ layer: to, point: null }));
    return [
      h.div({ class: "pickers" }, pick, h.p({ class: "muted small" }, `A dot is the state of one token on the first two principal components: ${few}. Click one for its nearest neighbours.`)),
      h.div({ class: "beside above" }, plot.node, this.near),
    ];
  }

  async neighbours(found) {
    const { id, point } = this.now;
    const { layer, near } = this;
    if (!layer || !near) return;
    if (point === null) return replace(near, h.p({ class: "muted small" }, "No state is chosen: click a dot, or use the arrow keys and Enter."));
    const here = found.layers[layer].points.find((one) => one[2] === point);
    const answer = await this.ask(api.neighbours(id, layer, point));
    if (!answer || this.near !== near) return undefined;
    const line = ([alike, , sentence, position, name]) => [figure(alike, 4), token(name), this.link(found.sentences[sentence].text, { sentence, query: position }, `Open: ${found.sentences[sentence].text}`)];
    return replace(
      near,
      here ? h.section(h.h3("Chosen"), h.p(token(here[5]), " ", h.span({ class: "muted small" }, here[6]), " ", this.link(found.sentences[here[3]].text, { sentence: here[3], query: here[4] }, `Open: ${found.sentences[here[3]].text}`))) : null,
      h.section(h.h3("Nearest states"), table(["cosine", "token", "sentence"], answer.neighbours.map(line))),
    );
  }
}

// what the address says of it
function read(corpus) {
  const { id, count: most, shown, site, head, layer, point } = corpus && typeof corpus === "object" ? corpus : {};
  const text = (value) => (typeof value === "string" ? value : "");
  return {
    id: text(id),
    count: Number.isInteger(most) && most > 0 && most <= MOST ? most : 0, // of held-out sentences
    shown: SHOWN.some(([name]) => name === shown) ? shown : "heads",
    site: text(site),
    head: Number.isInteger(head) ? head : 0,
    layer: text(layer),
    point: Number.isInteger(point) && point >= 0 ? point : null,
  };
}

customElements.define("regard-corpus", Corpus);
