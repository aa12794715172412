// Lecture view: the worked example, or one query of the loaded model, chapter by chapter and cell by cell.

import { lecture, Problem } from "../api.js";
import { replace } from "../dom.js";
import { same, store } from "../store.js";
import { latest, siteOf, View } from "../view.js";
import { requestOf, placeIn, written } from "./lecture_address.js";
import { stages } from "./lecture_example.js";
import { ask, choosers, controls, frame, renew, tell } from "./lecture_frame.js";
import { pressed } from "./lecture_keys.js";
import { modelStages } from "./lecture_model.js";
import { edited, numberOf } from "./lecture_numbers.js";
import { fit, project } from "./lecture_projector.js";
import { explain } from "./lecture_sum.js";
import { block, fill, placeOf, sameShape, specs, widen } from "./lecture_tables.js";

const HINT = "→ goes from cell to cell and ↓ to the next chapter; or point at any cell to see how it is made.";
const TYPING = 250; // milliseconds without a key before a number is taken

export class Lecture extends View {
  #at = { mode: "example", chapter: 0, step: 0 };
  #numbers = {}; // inputs that are not the lectures'
  #answers = {}; // of the server, by mode
  #stages = [];
  #tables = new Map();
  #cells = []; // the steps of this chapter
  #run = latest();
  #timer = 0;
  #edits = []; // not yet computed
  #request = null; // of the model, last
  #trace = null;

  static fits() {
    return true;
  }

  constructor() {
    super();
    const { node, parts } = frame({
      chapter: (n) => this.#go({ chapter: n, step: 0 }),
      mode: (mode) => this.#go({ mode, chapter: Math.min(this.#at.chapter, 8), step: 0 }),
      move: (by) => this.#move(by),
      projector: () => this.#project(),
      veil: () => this.#veil(),
      reset: () => this.#change(null),
    });
    this.frame = node;
    this.parts = parts;
    parts.stage.addEventListener("focusin", (event) => this.#focused(event.target));
    parts.stage.addEventListener("mouseover", ({ target }) => this.#point(target.closest("td[data-table]")));
    parts.stage.addEventListener("mouseleave", () => this.#point());
  }

  connectedCallback() {
    if (!this.frame.isConnected) this.append(this.frame);
    document.addEventListener("keydown", this.#key);
    addEventListener("resize", this.#resized);
  }

  disconnectedCallback() {
    document.removeEventListener("keydown", this.#key);
    removeEventListener("resize", this.#resized);
    if (this.classList.contains("projector")) this.#project();
  }

  show(trace, state) {
    this.#trace = trace;
    const site = trace && siteOf(trace, state);
    const { at, numbers } = placeIn(state, site);
    this.parts.model.disabled = !site;
    this.#at = at;
    const known = this.#answers.example && same(numbers, this.#numbers);
    if (this.fresh("numbers", numbers) && !known) this.#run(() => this.#compute(numbers));
    const request = at.mode === "model" && requestOf(trace, site, state);
    if (request && this.fresh("model", request)) this.#load(request);
    this.#draw();
  }

  // --- numbers ---

  async #compute(numbers) {
    try {
      this.#answers.example = await lecture(numbers);
      this.#numbers = numbers;
      this.#complain("");
    } catch (problem) {
      if (!(problem instanceof Problem)) throw problem;
      this.#complain(problem.message);
      if (this.#answers.example) return;
      this.#answers.example = await this.ask(lecture({})); // numbers in the address that cannot be used
    }
    store.set({ numbers: Object.keys(this.#numbers).length ? this.#numbers : undefined });
    this.#draw();
  }

  async #load(request) {
    this.#request = request;
    const found = await this.ask(lecture(request));
    if (this.#request !== request) return; // another query was chosen meanwhile
    this.#answers.model = found;
    this.#draw();
  }

  // edits made while the server computes wait for it, and then go together
  #change(edit) {
    this.#edits.push(edit);
    this.#run(async () => {
      const edits = this.#edits.splice(0);
      if (edits.length) await this.#compute(edited(this.#numbers, this.#answers.example.given, edits));
    });
  }

  #typed(name, i, j, text, final) {
    clearTimeout(this.#timer);
    this.last = this.#tables.get(name)?.cells[i][j].firstChild;
    const number = numberOf(text);
    if (this.#answers.example.given[name][i][j] === number) return this.#complain("");
    const change = () => this.#change({ name, i, j, value: () => number });
    if (final) change();
    else if (typeof number === "number") this.#timer = setTimeout(change, TYPING);
    return undefined;
  }

  #switched(i, j) {
    this.last = null;
    this.#change({ name: "mask", i, j, value: (old) => 1 - old });
  }

  #complain(sentence) {
    for (const input of this.parts.stage.querySelectorAll("input[aria-invalid]")) input.removeAttribute("aria-invalid");
    if (sentence) this.last?.setAttribute("aria-invalid", "true");
    this.parts.problem.textContent = sentence;
    this.parts.problem.hidden = !sentence;
  }

  // --- drawing ---

  #draw() {
    const { mode } = this.#at;
    const data = this.#answers[mode];
    const { parts } = this;
    parts.example.setAttribute("aria-pressed", String(mode === "example"));
    parts.model.setAttribute("aria-pressed", String(mode === "model"));
    parts.reset.hidden = mode !== "example" || !Object.keys(this.#numbers).length;
    if (!data) return;
    this.#stages = mode === "example" ? stages(data) : modelStages(data);
    const chapter = Math.max(0, Math.min(this.#at.chapter, this.#stages.length - 1));
    const stage = this.#stages[chapter];
    this.#words(chapter, stage, data);
    const wanted = specs(stage);
    const kept = [...this.#tables.values()].map(({ spec }) => spec);
    const still = !this.fresh("chapter", mode, chapter) && wanted.length === kept.length;
    if (still && wanted.every((spec, n) => sameShape(spec, kept[n]))) {
      for (const spec of wanted) fill(this.#tables.get(spec.id), spec);
    } else {
      this.#build(stage);
    }
    if (widen(parts.stage, this.#tables)) fit(this, parts.stage);
    const cellsOf = (id) => this.#tables.get(id).cells.flatMap((line, i) => line.map((_, j) => ({ table: id, i, j })));
    this.#cells = stage.walk.flatMap(cellsOf);
    this.#at = { mode, chapter, step: Math.max(0, Math.min(this.#at.step, this.#cells.length + 1)) };
    this.#point();
  }

  #words(chapter, stage, data) {
    const { parts } = this;
    tell(parts, chapter, this.#stages.length, data.about, stage);
    if (this.fresh("words", chapter, this.#at.mode)) ask(parts, chapter);
    const change = (patch) => this.#change({ patch });
    const made = data.given ? controls(stage.controls ?? [], data.given, change) : choosers(this.#trace, data.about);
    renew(parts.controls, made);
  }

  #build(stage) {
    this.#tables = new Map();
    const does = { typed: (...what) => this.#typed(...what), switched: (i, j) => this.#switched(i, j) };
    const blocks = stage.blocks.map((spec) => block(spec, does, this.#tables));
    replace(this.parts.stage, blocks);
    this.parts.stage.classList.toggle("lecture-alone", this.#tables.size === 1);
    // a crossing has a free corner, where the words fit
    const corner = this.parts.stage.querySelector(".lecture-left");
    if (["cross", "beside"].includes(stage.blocks[0].kind)) corner.prepend(this.parts.prose, this.parts.note);
    else this.parts.controls.before(this.parts.prose, this.parts.note);
    this.parts.stage.scrollTo(0, 0);
    this.parts.stage.style.removeProperty("--cell");
  }

  // --- where we are ---

  #go(to, focus = null) {
    this.#at = { ...this.#at, ...to };
    const late = this.#at.mode === "model" && !this.#answers.model;
    if (!late) this.#draw(); // which finds the last step of a chapter
    store.set({ lecture: written(this.#at) });
    if (late) this.show(this.#trace, store.state);
    if (focus === "title") this.parts.title.focus();
  }

  #move(by, focus = false) {
    const { chapter, step } = this.#at;
    const next = step + by;
    if (next < 0) return chapter > 0 && this.#go({ chapter: chapter - 1, step: Infinity }, focus && "title");
    if (next > this.#cells.length + 1) {
      return chapter + 1 < this.#stages.length && this.#go({ chapter: chapter + 1, step: 0 }, focus && "title");
    }
    this.#go({ step: next });
    if (focus) return this.#focusStep();
    const here = this.#cells[next - 1] ?? null;
    this.parts.live.textContent = this.#explain(here, "And a question.");
    return here && this.#td(here).scrollIntoView({ block: "nearest", inline: "nearest" });
  }

  #td({ table, i, j }) {
    return this.#tables.get(table).cells[i][j];
  }

  #focusStep() {
    const { step } = this.#at;
    const here = this.#cells[step - 1];
    if (here) this.#td(here).focus();
    else (step ? this.parts.question : this.parts.title).focus();
  }

  #chapter(by) {
    const next = this.#at.chapter + by;
    if (next >= 0 && next < this.#stages.length) this.#go({ chapter: next, step: 0 }, "title");
  }

  // the arithmetic of the cell under the pointer, or of the step we are at
  #point(under = null) {
    const { step } = this.#at;
    const here = this.#cells[step - 1] ?? null;
    const asking = step > this.#cells.length;
    const all = this.#cells.length;
    this.parts.count.textContent = asking ? "question" : step ? `cell ${step} of ${all}` : all ? `${all} cells` : "";
    this.parts.check.classList.toggle("lecture-now", asking);
    this.parts.back.disabled = !step && !this.#at.chapter;
    this.parts.next.disabled = asking && this.#at.chapter + 1 === this.#stages.length;
    this.#explain(under ? placeOf(under) : here, asking ? "And a question." : HINT);
    for (const [n, one] of this.#cells.entries()) {
      this.#td(one).classList.toggle("lecture-later", !asking && n >= step);
    }
  }

  #explain(here, otherwise) {
    return explain(this.parts.sum, this.#tables, here, otherwise);
  }

  #focused(target) {
    const td = target.closest("td[data-table]");
    if (!td) return;
    const here = placeOf(td);
    const n = this.#cells.findIndex(({ table, i, j }) => table === here.table && i === here.i && j === here.j);
    if (n >= 0 && n + 1 !== this.#at.step) this.#go({ step: n + 1 });
    this.parts.live.textContent = this.#explain(here);
  }

  // --- keys ---

  #key = (event) =>
    pressed(event, this, {
      step: (target, by) => this.#step(target, by),
      chapter: (by) => this.#chapter(by),
      first: () => this.#go({ step: 0 }, "title"),
      last: () => {
        this.#go({ step: Infinity });
        this.#focusStep();
      },
      title: () => this.parts.title.focus(),
      projector: () => this.#project(),
      veil: () => this.#veil(),
    });

  #resized = () => fit(this, this.parts.stage);

  // in a table that is not among the steps, the arrows go through its own cells
  #step(target, by) {
    const td = target.closest("td[data-table]");
    const made = td && this.#tables.get(td.dataset.table);
    if (!made || this.#cells.some(({ table }) => table === made.spec.id)) return this.#move(by, true);
    const flat = made.cells.flat();
    const next = flat[flat.indexOf(td) + by];
    (next?.querySelector("button") ?? next)?.focus();
  }

  #veil() {
    const on = this.classList.toggle("veil");
    this.parts.veil.setAttribute("aria-pressed", String(on));
  }

  #project() {
    this.parts.projector.setAttribute("aria-pressed", String(project(this)));
    fit(this, this.parts.stage);
  }
}

customElements.define("regard-lecture", Lecture);
