// What stays while chapters change: the frame of the lecture, made once, and the parts of it that are filled later.

import { element, replace, shortened } from "../dom.js";
import { store } from "../store.js";
import { labels } from "../view.js";
import { maths } from "./lecture_tables.js";
import { CHAPTERS } from "./lecture_words.js";

const button = (text, click, more = {}) => element("button", { type: "button", on: { click }, ...more }, text);

const pressable = (title) => ({ class: "quiet", title, "aria-pressed": "false" });

// does: {chapter(n), mode(name), move(step), projector(), veil(), reset()}
export function frame(does) {
  const parts = {
    chapters: CHAPTERS.map(({ name, title }, n) => button(name, () => does.chapter(n), { class: "quiet", title })),
    example: button("Example", () => does.mode("example")),
    model: button("Loaded model", () => does.mode("model")),
    projector: button("Projector", () => does.projector(), pressable("Large type (p)")),
    veil: button("Reveal", () => does.veil(), pressable("Cells appear only as you step (h)")),
    reset: button("The lectures' numbers again", () => does.reset(), { hidden: true }),
    number: element("span", { class: "lecture-number", "aria-hidden": "true" }),
    title: element("h2", { tabindex: "-1" }),
    formula: element("p", { class: "lecture-formula" }),
    prose: element("p", { class: "lecture-prose" }),
    note: element("p", { class: "lecture-note muted" }),
    controls: element("div", { class: "lecture-controls row" }),
    problem: element("p", { class: "problem", role: "alert", hidden: true }),
    stage: element("div", { class: "lecture-stage", tabindex: "0", role: "region", "aria-label": "Matrices" }),
    sum: element("div", { class: "lecture-sum" }),
    live: element("p", { class: "hidden-text", role: "status", "aria-live": "polite" }),
    back: button("‹", () => does.move(-1), { "aria-label": "Step back", title: "←" }),
    count: element("span", { class: "lecture-count muted" }),
    next: button("›", () => does.move(1), { "aria-label": "Next step", title: "→" }),
    question: element("summary", {}),
    answer: element("p", {}),
  };
  parts.asked = element("details", { class: "lecture-question" }, parts.question, parts.answer);
  const chapters = element(
    "ol",
    {},
    parts.chapters.map((one) => element("li", {}, one)),
  );
  const modes = element("div", { class: "row", role: "group", "aria-label": "Numbers of" }, parts.example, parts.model);
  const node = element(
    "div",
    { class: "lecture" },
    element(
      "div",
      { class: "lecture-top" },
      element("nav", { class: "lecture-chapters", "aria-label": "Chapters" }, chapters),
      element("div", { class: "row" }, modes, parts.veil, parts.projector),
    ),
    element(
      "div",
      { class: "lecture-top" },
      element("div", { class: "lecture-head" }, parts.number, element("div", {}, parts.title, parts.formula)),
      parts.reset,
    ),
    parts.prose,
    parts.controls,
    parts.problem,
    parts.note,
    parts.stage,
    parts.asked,
    element(
      "div",
      { class: "lecture-foot" },
      parts.sum,
      element("div", { class: "lecture-steps" }, parts.back, parts.count, parts.next),
    ),
    parts.live,
  );
  return { node, parts };
}

// the words of a chapter; count: how many there are
export function tell(parts, chapter, count, about, stage) {
  const { title, formula, prose } = CHAPTERS[chapter];
  parts.chapters.forEach((one, n) => {
    one.hidden = n >= count;
    if (n !== chapter) return one.removeAttribute("aria-current");
    const list = one.closest("ol"); // it scrolls on a phone
    list.scrollLeft = one.offsetLeft - list.offsetLeft - (list.clientWidth - one.offsetWidth) / 2;
    return one.setAttribute("aria-current", "step");
  });
  parts.number.textContent = String(chapter + 1);
  parts.title.textContent = title;
  replace(parts.formula, ...maths(stage.formula || formula));
  replace(parts.prose, ...maths(prose));
  parts.prose.hidden = Boolean(about);
  const where = about && `${about.site}, head ${about.head}, query “${about.label}”: ${about.said}.`;
  parts.note.textContent = [where, stage.note].filter(Boolean).join(" ");
  parts.note.hidden = !parts.note.textContent;
}

// the question folds up again when the chapter changes
export function ask(parts, chapter) {
  const { question, answer } = CHAPTERS[chapter];
  parts.asked.open = false;
  replace(parts.question, ...maths(question));
  replace(parts.answer, ...maths(answer));
}

const MASKS = { full: "everybody", causal: "not ahead", before: "strictly before" };

// the switches of a chapter: change({name: value})
export function controls(names, given, change) {
  const pressed = (on) => ({ "aria-pressed": String(on) });
  const groups = {
    scale: () =>
      element(
        "div",
        { class: "row", role: "group", "aria-label": "Scale" },
        button("divide by √d", () => change({ scaled: true }), pressed(given.scaled)),
        button("do not divide, as the second lecture", () => change({ scaled: false }), pressed(!given.scaled)),
      ),
    mask: () =>
      element(
        "div",
        { class: "row", role: "group", "aria-label": "Mask" },
        Object.entries(MASKS).map(([name, label]) =>
          button(label, () => change({ mask: name }), pressed(given.pattern === name)),
        ),
      ),
  };
  return names.map((name) => groups[name]());
}

// other switches in their place; the one in use keeps the focus
export function renew(node, made) {
  const all = () => [...node.querySelectorAll("button, select")];
  const place = all().indexOf(document.activeElement);
  node.hidden = !made.length;
  replace(node, made);
  all()[place]?.focus();
}

// which query of which head of which site
export function choosers(scene, about) {
  const sites = scene.sites.filter((site) => site.shown);
  const site = sites.find(({ name }) => name === about.site);
  if (!site) return [];
  const choose = (label, chosen, options, change) =>
    element(
      "label",
      { class: "field" },
      element("span", {}, label),
      element(
        "select",
        { on: { change: (event) => change(event.target.value) } },
        options.map(([value, text]) => element("option", { value, selected: value === chosen }, text)),
      ),
    );
  const numbered = (count) => Array.from({ length: count }, (_, n) => [n, String(n)]);
  const queries = labels(scene, site.queries, Math.min(site.n_q, 200)).map((text, n) => [n, `${n} ${shortened(text)}`]);
  return [
    choose(
      "Attention",
      about.site,
      sites.map(({ name }) => [name, name]),
      (name) => store.set({ site: name, head: 0, query: 0 }),
    ),
    choose("Head", about.head, numbered(site.heads), (head) => store.set({ head: Number(head) })),
    choose("Query", about.query, queries, (query) => store.set({ query: Number(query) })),
  ];
}
