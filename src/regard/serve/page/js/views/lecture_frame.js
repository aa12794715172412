// Frame of the lecture view: elements that stay while chapters change.

import { button, h, replace } from "../dom.js";
import { store } from "../store.js";
import { labels } from "../view.js";
import { maths } from "./lecture_tables.js";
import { CHAPTERS } from "./lecture_words.js";
import { listField, places } from "./parts.js";

const pressable = (title) => ({ class: "quiet", title, "aria-pressed": "false" });

// does: {chapter(n), mode(name), move(step), projector(), veil(), reset()}
export function frame(does) {
  const parts = {
    chapters: CHAPTERS.map(({ name, title }, n) => button(name, () => does.chapter(n), { class: "quiet", title })),
    example: button("Example", () => does.mode("example")),
    model: button("Loaded model", () => does.mode("model")),
    projector: button("Projector", () => does.projector(), pressable("Large type (p)")),
    veil: button("Reveal", () => does.veil(), pressable("Cells appear only as you step (h)")),
    reset: button("Reset", () => does.reset(), { hidden: true }),
    number: h.span({ class: "lecture-number", "aria-hidden": "true" }),
    title: h.h2({ tabindex: "-1" }),
    formula: h.p({ class: "lecture-formula" }),
    prose: h.p({ class: "lecture-prose" }),
    note: h.p({ class: "lecture-note muted" }),
    controls: h.div({ class: "lecture-controls row" }),
    problem: h.p({ class: "problem", role: "alert", hidden: true }),
    stage: h.div({ class: "lecture-stage", tabindex: "0", role: "region", "aria-label": "Matrices" }),
    sum: h.div({ class: "lecture-sum" }),
    live: h.p({ class: "hidden-text", role: "status", "aria-live": "polite" }),
    back: button("‹", () => does.move(-1), { "aria-label": "Step back", title: "←" }),
    count: h.span({ class: "lecture-count muted" }),
    next: button("›", () => does.move(1), { "aria-label": "Next step", title: "→" }),
    question: h.summary(),
    answer: h.p(),
  };
  parts.check = h.details({ class: "lecture-question" }, parts.question, parts.answer);
  const chapters = h.ol(parts.chapters.map((one) => h.li(one)));
  const modes = h.div({ class: "row", role: "group", "aria-label": "Numbers of" }, parts.example, parts.model);
  const node = h.div(
    { class: "lecture" },
    h.div(
      { class: "lecture-top" },
      h.nav({ class: "lecture-chapters", "aria-label": "Chapters" }, chapters),
      h.div({ class: "row" }, modes, parts.veil, parts.projector),
    ),
    h.div(
      { class: "lecture-top" },
      h.div({ class: "lecture-head" }, parts.number, h.div(parts.title, parts.formula)),
      parts.reset,
    ),
    parts.prose,
    parts.controls,
    parts.problem,
    parts.note,
    parts.stage,
    parts.check,
    h.div({ class: "lecture-foot" }, parts.sum, h.div({ class: "lecture-steps" }, parts.back, parts.count, parts.next)),
    parts.live,
  );
  return { node, parts };
}

// the words of a chapter; count: how many there are
export function tell(parts, chapter, count, about, stage) {
  const { title, formula, prose } = CHAPTERS[chapter];
  parts.chapters.forEach((one, n) => {
    one.hidden = n >= count;
    if (n !== chapter) {
      one.removeAttribute("aria-current");
      return;
    }
    const list = one.closest("ol"); // it scrolls on a phone
    list.scrollLeft = one.offsetLeft - list.offsetLeft - (list.clientWidth - one.offsetWidth) / 2;
    one.setAttribute("aria-current", "step");
  });
  parts.number.textContent = String(chapter + 1);
  parts.title.textContent = title;
  replace(parts.formula, ...maths(stage.formula || formula));
  replace(parts.prose, ...maths(prose));
  parts.prose.hidden = Boolean(about);
  const where = about && `${about.site}, head ${about.head}, query “${about.label}”: ${about.summary}.`;
  parts.note.textContent = [where, stage.note].filter(Boolean).join(" ");
  parts.note.hidden = !parts.note.textContent;
}

// the question folds up again when the chapter changes
export function ask(parts, chapter) {
  const { question, answer } = CHAPTERS[chapter];
  parts.check.open = false;
  replace(parts.question, ...maths(question));
  replace(parts.answer, ...maths(answer));
}

const MASKS = { full: "everybody", causal: "not ahead", before: "strictly before" };

// the switches of a chapter: change({name: value})
export function controls(names, given, change) {
  const pressed = (on) => ({ "aria-pressed": String(on) });
  const groups = {
    scale: () =>
      h.div(
        { class: "row", role: "group", "aria-label": "Scale" },
        button("divide by √d", () => change({ scaled: true }), pressed(given.scaled)),
        button("no scaling (second lecture)", () => change({ scaled: false }), pressed(!given.scaled)),
      ),
    mask: () =>
      h.div(
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
export function choosers(trace, about) {
  const sites = trace.sites.filter((site) => site.shown);
  const site = sites.find(({ name }) => name === about.site);
  if (!site) return [];
  const numbered = (count) => Array.from({ length: count }, (_, n) => [n, String(n)]);
  const queries = places(labels(trace, site.queries, Math.min(site.n_q, 200)));
  const names = sites.map(({ name }) => [name, name]);
  return [
    listField("Attention", names, about.site, (name) => store.set({ site: name, head: 0, query: 0 })),
    listField("Head", numbered(site.heads), about.head, (head) => store.set({ head: Number(head) })),
    listField("Query", queries, about.query, (query) => store.set({ query: Number(query) })),
  ];
}
