// Sampler: temperature, top-k, top-p and seed of a draw, and a token that is forced.

import { button, h, replace } from "../dom.js";
import { clamp, field } from "./parts.js";

const USUAL = { temperature: 1, top_k: null, top_p: 1, seed: 0 };

export class Sampler {
  #values = { ...USUAL };
  #temperature = h.input({ type: "range", min: "0.1", max: "3", step: "0.05", on: { input: () => this.#moved("temperature", Number(this.#temperature.value)) } });
  #nucleus = h.input({ type: "range", min: "0.05", max: "1", step: "0.01", on: { input: () => this.#moved("top_p", Number(this.#nucleus.value)) } });
  #most = h.input({ type: "number", min: "0", max: "100000", step: "1", placeholder: "all", on: { input: () => this.#moved("top_k", Math.round(clamp(Number(this.#most.value) || 0, 0, 100000)) || null) } });
  #seed = h.input({ type: "number", min: "0", max: "999999999", step: "1", on: { input: () => this.#moved("seed", Math.round(clamp(Number(this.#seed.value) || 0, 0, 999999999))) } });
  #names = [h.span(), h.span()];
  #kept = h.span({ class: "muted small" });
  #greedy;
  #word = h.input({ type: "text", required: true, dir: "auto", "aria-label": "Token to go on with" });

  // change(values): a setting moved; sample(values | undefined): draw the output, or search for it again; force(text)
  constructor({ change, sample, force }) {
    this.change = change;
    this.#greedy = button("Search again", () => sample(undefined), { title: "The output as it was without drawing" });
    const draw = () => sample(this.#request());
    const another = () => {
      this.#values.seed += 1;
      draw();
    };
    const submit = (event) => {
      event.preventDefault();
      force(this.#word.value);
      this.#word.value = "";
    };
    const slider = (name, input) => h.label({ class: "field slider" }, name, input);
    this.node = h.div({ class: "sampler" },
      h.div({ class: "pickers" }, slider(this.#names[0], this.#temperature), slider(this.#names[1], this.#nucleus), field("Top-k", this.#most), field("Seed", this.#seed)),
      h.div({ class: "row" }, button("Draw the output", draw, { class: "primary small" }), button("Next seed", another, { class: "small" }), this.#greedy, this.#kept),
      h.form({ class: "row", on: { submit } }, h.label({ class: "row small" }, "Force a token", this.#word), h.button({ type: "submit", class: "small" }, "Go on with it")),
    );
  }

  #request() {
    const { top_k, ...rest } = this.#values;
    return top_k ? { ...rest, top_k } : rest;
  }

  #moved(name, value) {
    this.#values[name] = value;
    this.#label();
    this.change({ ...this.#values });
  }

  #label() {
    replace(this.#names[0], `Temperature ${this.#values.temperature}`);
    replace(this.#names[1], `Top-p ${this.#values.top_p}`);
  }

  tell(text) {
    replace(this.#kept, text);
  }

  // settings of the address, or of what was drawn
  show(given, drawn) {
    const { temperature, top_k, top_p, seed } = { ...USUAL, ...given };
    this.#values = { temperature, top_k, top_p, seed };
    this.#label();
    const put = (input, value) => {
      if (input !== document.activeElement || input.type === "range") input.value = String(value ?? "");
    };
    put(this.#temperature, temperature);
    put(this.#nucleus, top_p);
    put(this.#most, top_k);
    put(this.#seed, seed);
    this.#greedy.hidden = !drawn;
  }
}
