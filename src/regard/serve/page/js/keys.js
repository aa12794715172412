// A key pressed anywhere in; what it does to the page out, and the list of all keys as a dialog.

import { element } from "./dom.js";
import { VIEWS } from "./views/index.js";

const KEPT = "regard.single-keys";

const SECTIONS = [
  [
    "Anywhere",
    [
      [["?"], "these keys"],
      [["/"], "the text"],
      [["["], "the head before"],
      [["]"], "the next head"],
      [["{"], "the site before"],
      [["}"], "the next site"],
      [["d"], "light or dark"],
    ],
  ],
  [
    "In a picture",
    [
      [["arrows"], "move the cursor"],
      [["Home", "End"], "the ends of a row"],
      [["Enter"], "open what is under it"],
      [["+", "−"], "closer, further"],
      [["0"], "all of it"],
      [["Shift", "arrows"], "move the window"],
    ],
  ],
];

export function singleKeys() {
  return localStorage.getItem(KEPT) !== "off";
}

// acts: {view(name), text(), head(step), site(step), theme()}
export function listen(acts, dialog) {
  addEventListener("keydown", (event) => {
    if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey || dialog.open) return;
    if (writing(event.target) || !singleKeys()) return;
    const act = actOf(event.key, acts, dialog);
    if (!act) return;
    event.preventDefault();
    act();
  });
}

function writing(node) {
  return node.closest?.("textarea, select, input:not([type=radio], [type=checkbox], [type=range]), [contenteditable]");
}

function actOf(key, acts, dialog) {
  const view = VIEWS.find((one) => one.key === key);
  if (view) return () => acts.view(view.name);
  const others = {
    "?": () => dialog.showModal(),
    "/": acts.text,
    "[": () => acts.head(-1),
    "]": () => acts.head(1),
    "{": () => acts.site(-1),
    "}": () => acts.site(1),
    d: acts.theme,
  };
  return others[key];
}

export function dialogOfKeys() {
  const views = ["Views", VIEWS.map((view) => [[view.key], view.label])];
  const box = element("input", {
    type: "checkbox",
    checked: singleKeys(),
    on: { change: (event) => localStorage.setItem(KEPT, event.target.checked ? "on" : "off") },
  });
  const close = element("button", { type: "button", class: "primary", on: { click: () => dialog.close() } }, "Close");
  const dialog = element(
    "dialog",
    { "aria-labelledby": "keys-title" },
    element("h2", { id: "keys-title" }, "Keys"),
    element("div", { class: "columns" }, [...SECTIONS, views].map(section)),
    element("div", { class: "row apart" }, element("label", { class: "row" }, box, "single keys work"), close),
  );
  return dialog;
}

function section([title, keys]) {
  const lines = keys.flatMap(([names, what]) => [
    element("dt", {}, names.flatMap((name, n) => [n ? " " : "", element("kbd", {}, name)])),
    element("dd", {}, what),
  ]);
  return element("section", {}, element("h3", {}, title), element("dl", {}, lines));
}
