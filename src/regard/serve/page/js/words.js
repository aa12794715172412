// Words of the input, each of which can be edited in place: another word stands there, and the text stays as it was.

import { button, h, renew, token } from "./dom.js";
import { store } from "./store.js";

const MOST = 60; // words of a longer text are edited under Interventions

export function wordStrip(node, trace, open = -1) {
  const words = trace.swappable ?? [];
  if (!words.length || words.length > MOST) return node.replaceChildren();
  const swaps = new Map((trace.edits?.swaps ?? []).map(({ word, to }) => [word, to]));
  const again = (at) => wordStrip(node, trace, at);
  const swap = (word, to) => {
    const { edits } = store.state;
    const others = (edits.swaps ?? []).filter((one) => one.word !== word);
    const swapped = to && to !== words[word] ? [...others, { word, to }] : others;
    const { swaps: _, ...rest } = edits;
    store.go({ edits: swapped.length ? { ...rest, swaps: swapped } : rest });
    again(-1);
  };
  const editor = (n) => {
    const input = h.input({ type: "text", value: swaps.get(n) ?? words[n], dir: "auto", "aria-label": `Another word instead of ${words[n]}`, size: String(Math.max(4, words[n].length + 2)) });
    input.addEventListener("keydown", (event) => {
      if (event.key === "Escape") again(-1);
      if (event.key === "Enter") swap(n, input.value.trim().split(/\s+/)[0]);
      if (["Escape", "Enter"].includes(event.key)) event.preventDefault();
    });
    input.addEventListener("blur", () => input.isConnected && again(-1));
    return input;
  };
  const show = (word, n) => {
    const to = swaps.get(n);
    const title = to === undefined ? "Click to put another word here" : `instead of ${word}; click to change it`;
    return n === open ? editor(n) : button(token(to ?? word, { title: null }), () => again(n), { class: to === undefined ? "word" : "word swapped", title, data: { word: String(n) } });
  };
  renew(node, open >= 0 ? "input" : "[data-word]", h.span({ class: "muted small" }, "input"), words.map(show));
  node.querySelector("input")?.select();
  node.querySelector("input")?.focus();
  return undefined;
}
