// Keyboard shortcuts of the lecture view.

import { singleKeys } from "../keys.js";

// does: {step(target, by), chapter(by), first(), last(), title(), projector(), veil()}
export function pressed(event, view, does) {
  const { key, target } = event;
  const ours = view.contains(target) || target === document.body || target === view.parentElement;
  if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey || !ours || !view.checkVisibility())
    return;
  const act = target.matches("input, select") ? typing(key, target, does) : walking(key, target, does, view);
  if (!act) return;
  event.preventDefault();
  act();
}

function typing(key, target, does) {
  return key === "Escape" && target.matches("input") ? does.title : null;
}

function walking(key, target, does, view) {
  const single = singleKeys() ? { p: does.projector, h: does.veil } : {};
  const large = view.classList.contains("projector") ? { Escape: does.projector } : {};
  const arrows = {
    ArrowRight: () => does.step(target, 1),
    ArrowLeft: () => does.step(target, -1),
    ArrowDown: () => does.chapter(1),
    ArrowUp: () => does.chapter(-1),
    Home: does.first,
    End: does.last,
  };
  return { ...arrows, ...single, ...large }[key];
}
