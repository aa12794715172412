// Keyboard shortcuts. The dialog that lists them is in index.html.

import { h, replace } from "./dom.js";
import { VIEWS } from "./views/index.js";

const KEPT = "regard.single-keys";

export function singleKeys() {
  return localStorage.getItem(KEPT) !== "off";
}

// acts: {view(name), text(), head(step), site(step), theme()}
export function listen(acts, dialog) {
  listed(dialog);
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

// the dialog stands in index.html; which views there are, only the page knows
function listed(dialog) {
  const at = (id) => dialog.querySelector(`#${id}`);
  replace(at("keys-views"), VIEWS.map((view) => [h.dt(h.kbd(view.key)), h.dd(view.label)]));
  at("single-keys").checked = singleKeys();
  at("single-keys").addEventListener("change", ({ target }) => localStorage.setItem(KEPT, target.checked ? "on" : "off"));
  at("keys-close").addEventListener("click", () => dialog.close());
}
