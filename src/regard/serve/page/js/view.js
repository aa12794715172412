// Base class of the views: `show(trace, state)`, change detection and requests.

import { Problem } from "./api.js";
import { shortened } from "./dom.js";
import { dark } from "./paint.js";

export class View extends HTMLElement {
  #shown = new Map();

  // true when these parts are others than last time under this name
  fresh(name, ...parts) {
    const key = JSON.stringify(parts);
    if (this.#shown.get(name) === key) return false;
    this.#shown.set(name, key);
    return true;
  }

  // what a picture depends on besides its numbers
  get appearance() {
    return [dark(), this.clientWidth, innerHeight, devicePixelRatio];
  }

  stale(name) {
    this.#shown.delete(name);
  }

  // the answer, or null: then the shell has said why, and asks again for a trace that the server forgot
  async ask(promise) {
    try {
      return await promise;
    } catch (problem) {
      if (!(problem instanceof Problem)) throw problem;
      this.#shown.clear(); // retried
      this.dispatchEvent(new CustomEvent("problem", { detail: problem, bubbles: true }));
      return null;
    }
  }
}

// Follows a job of the server: `busy` is shown after `delay` ms, with its bar and count; returns what stops it.
export function followJob(view, start, { busy, bar, count, delay = 0, result, over = () => {} }) {
  count.replaceChildren();
  bar.removeAttribute("value");
  const soon = setTimeout(() => (busy.hidden = false), delay); // what is done at once needs no bar
  const end = () => {
    clearTimeout(soon);
    busy.hidden = true;
    over();
  };
  const close = start({
    progress: ({ done, total, what }) => {
      bar.value = done / Math.max(total, 1);
      count.replaceChildren(`${done} of ${total} ${what}`);
    },
    result: (found) => {
      end();
      result(found);
    },
    problem: (reason) => {
      end();
      view.ask(Promise.reject(reason));
      view.dataset.painted = "refused";
    },
  });
  return () => {
    close();
    end();
  };
}

// Runs one task at a time; of those that came meanwhile only the last. For hovering and panning.
export function latest() {
  let running = false;
  let next = null;
  return async function start(task) {
    next = task;
    if (running) return;
    running = true;
    try {
      while (next) {
        const now = next;
        next = null;
        await now();
      }
    } finally {
      running = false;
    }
  };
}

// --- what a trace says about a site ---

export function siteOf(trace, state) {
  const shownSites = trace.sites.filter((site) => site.shown);
  return shownSites.find((site) => site.name === state.site) ?? shownSites[0] ?? null;
}

export const MOST_HEADS = 6; // as many colours as differ to every kind of eye

// the heads that are shown together, the chosen one among them: {site, head}; one alone, unless several are asked for
export function selectedHeads(trace, state) {
  const here = siteOf(trace, state);
  const mine = { site: here, head: state.head };
  if (!state.heads) return [mine];
  const alike = (one) => ["queries", "keys", "n_q", "n_k"].every((name) => one[name] === here[name]);
  const found = [];
  for (const [name, head] of state.heads) {
    const site = trace.sites.find((one) => one.shown && one.name === name);
    if (site && head >= 0 && head < site.heads && alike(site) && !found.some((one) => one.site === site && one.head === head)) found.push({ site, head });
  }
  const known = found.some(({ site, head }) => site === here && head === state.head);
  return known ? found.slice(0, MOST_HEADS) : [...found.slice(0, MOST_HEADS - 1), mine];
}

export const headName = ({ site, head }) => `${site.name}, head ${head}`;

// may a query of it not see a key: by its pattern, or by an edit?
export function hides(trace, site) {
  return Boolean(site.pattern && !/^(full|Full\(\))$/i.test(site.pattern)) || (trace.edits?.masks ?? []).some((one) => one.site === site.name);
}

export function isOff(trace, site, head) {
  return (trace.edits?.off ?? []).some((one) => one.site === site.name && one.head === head);
}

// the tokens of every step; the end of a text that could go on is open
export function written(trace) {
  const { written: ids, text = [] } = trace.axes;
  if (ids) return labels(trace, "written", trace.steps);
  return [...text.slice(text.length - trace.steps + 1), "…"];
}

// what a branch does otherwise than the trace before it
export function branchText({ before, at: [step], ...trace }) {
  const [was, is] = [before, trace].map((one) => shortened(written(one)[step] ?? "…"));
  return `“${is}” instead of “${was}” at step ${step + 1}`;
}

// a site, head or cell that the trace does not have becomes one that it has
export function fitting(trace, state) {
  const untold = !state.site && !state.head && !state.query && !state.key; // then the trace knows where one begins
  if (untold && trace.opening) return trace.opening;
  const site = siteOf(trace, state);
  if (!site) return {};
  return {
    site: site.name,
    head: Math.min(state.head, site.heads - 1),
    query: Math.min(state.query, site.n_q - 1),
    key: Math.min(state.key, site.n_k - 1),
  };
}

// what the page calls an axis: the tokens that a decoder gives, and those before them that it is given
export const axisName = (axis) => ({ written: "output", read: "prefix" })[axis] ?? axis;

// how many queries and keys a site has, and of what
export function sizeOf({ queries, keys, n_q, n_k }) {
  return queries === keys ? `${n_q} × ${n_k} ${axisName(keys)}` : `${n_q} ${axisName(queries)} × ${n_k} ${axisName(keys)}`;
}

// the labels of a side; an axis that the trace does not have is one place, called as the axis
export function labels(trace, axis, count) {
  const found = trace.axes[axis] ?? [];
  return Array.from({ length: count }, (_, n) => found[n] ?? (count === 1 ? axis : String(n)));
}

// words of an axis with their places; a token in no word stands for itself, with number null
export function groups(trace, axis, count) {
  const names = labels(trace, axis, count);
  const owner = new Array(count).fill(null);
  const found = [];
  (trace.words?.[axis] ?? []).forEach(([word, first, last], number) => {
    for (let place = first; place <= last && place < count; place++) owner[place] = [number, word];
  });
  for (let place = 0; place < count; place++) {
    const mine = owner[place];
    const before = found.at(-1);
    if (mine && before && before.number === mine[0]) before.places.push(place);
    else found.push({ number: mine ? mine[0] : null, label: mine ? mine[1] : names[place], places: [place] });
  }
  return found;
}

// the places of the largest values, the largest first
export function strongest(values, count, least) {
  const found = [];
  for (let n = 0; n < values.length; n++) {
    if (values[n] < least || (found.length === count && values[n] <= values[found.at(-1)])) continue;
    const at = found.findIndex((other) => values[other] < values[n]);
    found.splice(at < 0 ? found.length : at, 0, n);
    if (found.length > count) found.pop();
  }
  return found;
}
