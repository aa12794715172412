// Application shell: header, tabs, side panel, status line and errors.

import * as api from "./api.js";
import { button, element, figure, h, renew, replace, say, shortened, speakThrough, token } from "./dom.js";
import { listen } from "./keys.js";
import { dark, onSystemTheme } from "./paint.js";
import { store } from "./store.js";
import { editLines, withoutLast } from "./side.js";
import { wordStrip } from "./words.js";
import { branchText, fitting, siteOf } from "./view.js";
import { GROUPS, made, VIEWS, viewOf } from "./views/index.js";

const at = (id) => document.getElementById(id);
const ASKED = ["model", "text", "question", "checkpoint", "edits", "target", "beam", "more", "sampling"];
const ENDS = ["model", "text", "question", "target", "beam", "more", "sampling"]; // with another of these a branch is of another text
const FORGOTTEN = /ask again/;

let models = [];
let trace = null;
let upload = null; // {name, field, data}: a picture or a sound is too large for the address
let asking = 0;
let lost = null; // a model of the address that is not there
let lastForgotten = -Infinity;
let came = 0; // when the trace did
let traced = ""; // of what it is: the model, the text, the question
const elements = new Map(); // view → promise of its element
const missing = new Set(); // views that could not be loaded
const visited = new Map(); // group → the view of it that was open last
const side = element("regard-side");

// --- the trace ---

async function run() {
  const { state } = store;
  const number = ++asking;
  const body = Object.fromEntries(ASKED.filter((name) => given(state[name])).map((name) => [name, state[name]]));
  if (upload && upload.name === state.text) body[upload.field] = upload.data;
  const subject = JSON.stringify([state.model, state.text, state.question]);
  busy(true);
  if (subject !== traced) replace(at("output")); // it is of another text
  say("Running the model…");
  try {
    const found = await api.trace(body, state.branches);
    if (number !== asking) return;
    [trace, came, traced] = [found, performance.now(), subject];
    problem(lost);
    lost = null;
    settle();
    showOutput();
    wordStrip(at("words"), trace);
    tabs();
    say(`Output: ${shortened(trace.output_text ?? "", 200)}`);
  } catch (reason) {
    if (number !== asking) return;
    problem(reason);
    if (state.branches && reason.status) {
      lost = reason;
      store.set({ branches: undefined }); // a branch that cannot be: the text without it
    } else if (subject !== traced) {
      [trace, traced] = [null, ""]; // nothing of the text before may stand under this one
      tabs();
    }
  } finally {
    if (number === asking) busy(false);
  }
  await show();
}

function given(value) {
  if (value === null || value === undefined || value === "") return false;
  return typeof value !== "object" || Object.keys(value).length > 0;
}

function settle() {
  const site = trace && siteOf(trace, store.state);
  if (!site) return;
  const patch = fitting(trace, store.state);
  const size = `${site.n_q} ${site.n_k}`;
  if (settle.size !== undefined && settle.size !== size) patch.window = null;
  settle.size = size;
  store.set(patch);
}

function showOutput() {
  const { output } = trace;
  const best = (output?.labels ?? []).map((label, n) => [label, output.probabilities[n]]);
  best.sort((a, b) => b[1] - a[1]);
  if (!store.state.question) at("question").value = trace.question ?? ""; // the one that was answered instead
  const others = best.slice(0, 4).map(([label, p]) => h.span({ class: "muted small" }, shortened(label), " ", figure(p, 3)));
  const unknown = (trace.unknown ?? []).slice(0, 5).map((word) => [" ", token(word)]);
  const edits = editLines(trace.edits ?? {}, "Take back", (left) => store.go({ edits: left }));
  const more = edits.length > 6 ? h.li(`and ${edits.length - 6} more`) : null;
  replace(
    at("output"),
    h.span({ class: "muted small" }, "output"),
    token(trace.output_text ?? "", { class: "token what" }),
    others,
    trace.sampling ? h.span({ class: "changed small" }, "drawn: ", Object.entries(trace.sampling).filter(([, value]) => value !== null).map(([name, value]) => `${name.replace("_", "-")} ${value}`).join(", ")) : null,
    trace.before ? h.span({ class: "changed small" }, "branch: ", branchText(trace)) : null,
    edits.length ? h.div({ class: "changed small edited" }, "edited: ", h.ul({ class: "edits" }, edits.slice(0, 6), more), button("Undo", () => store.undo(withoutLast(store.state.edits)), { class: "small quiet" }), button("Undo all", () => store.go({ edits: {} }), { class: "small quiet" })) : null,
    unknown.length ? h.span({ class: "changed small" }, "out of vocabulary:", unknown, "; mapped to <unk>") : null,
  );
}

// --- views ---

let turn = 0;

async function show() {
  const mine = ++turn;
  const view = viewOf(store.state.view);
  const panel = at("panel");
  const model = models.find((one) => one.name === store.state.model);
  const bare = Boolean(view.alone || view.plain) || !trace;
  document.querySelector(".body").classList.toggle("wide", bare);
  at("side").hidden = bare;
  at("output").hidden = Boolean(view.alone) || !trace;
  at("words").hidden = bare;
  panel.setAttribute("aria-labelledby", `tab-${view.name}`);
  replace(at("tells"), view.tells ?? "");
  replace(at("view-name"), view.label);
  at("view-name").hidden = bare; // such a view has a heading of its own
  // while another trace is on its way, the address may already speak of that one
  const state = trace ? { ...store.state, ...fitting(trace, store.state) } : store.state;
  if (trace) side.show(trace, state);
  if (!view.alone && !trace) return replace(panel, empty("There is nothing to show yet: choose a model, type a text and press Run."));
  if (!view.fits(trace, model)) return replace(panel, empty(view.needs));
  if (!elements.has(view.name)) elements.set(view.name, made(view));
  const node = await elements.get(view.name);
  if (mine !== turn) return undefined; // another view was opened meanwhile
  if (!node) {
    missing.add(view.name);
    return replace(panel, empty(`The view “${view.label}” could not be loaded; is \`regard serve\` still running? Then reload the page.`));
  }
  if (panel.firstChild !== node || panel.childNodes.length > 1) replace(panel, node);
  node.show(trace, state);
  return undefined;
}

const empty = (text) => h.p({ class: "empty" }, text);

function tabs() {
  const list = at("tabs");
  const had = list.contains(document.activeElement);
  const model = models.find((one) => one.name === store.state.model);
  const open = viewOf(store.state.view);
  const shown = VIEWS.filter((view) => view === open || view.fits(trace, model));
  const groups = GROUPS.filter((group) => shown.some((view) => view.group === group));
  const last = (group) => shown.find((view) => view.name === visited.get(group)) ?? shown.find((view) => view.group === group);
  visited.set(open.group, open.name);
  renew(
    at("groups"),
    "[aria-current]",
    groups.map((group) => button(group, () => store.go({ view: last(group).name }), {
        "aria-current": group === open.group ? "true" : null,
        data: { views: shown.filter((view) => view.group === group).map((view) => view.name).join(" ") },
      }),
    ),
  );
  replace(list, shown.filter((view) => view.group === open.group).map((view) =>
      h.button({
          type: "button",
          role: "tab",
          id: `tab-${view.name}`,
          title: `${view.label} (${view.key})`,
          "aria-selected": String(view === open),
          "aria-controls": "panel",
          tabindex: view === open ? "0" : "-1",
          on: { click: () => store.go({ view: view.name }) },
        },
        view.label,
      ),
    ),
  );
  const chosen = at(`tab-${open.name}`);
  if (had) chosen.focus();
  // on a phone the tabs scroll: the open one comes into sight
  list.scrollLeft = Math.max(0, chosen.offsetLeft - list.offsetLeft - (list.clientWidth - chosen.offsetWidth) / 2);
}

at("tabs").addEventListener("keydown", (event) => {
  const all = [...at("tabs").children];
  const here = all.indexOf(document.activeElement);
  const to = { ArrowLeft: here - 1, ArrowRight: here + 1, Home: 0, End: all.length - 1 }[event.key];
  if (to === undefined) return;
  event.preventDefault();
  all[(to + all.length) % all.length].click();
  at(`tab-${store.state.view}`)?.focus();
});

// --- what went wrong, and what is under way ---

function problem(reason) {
  const box = at("problem");
  box.hidden = !reason;
  if (!reason) return replace(box);
  say(""); // what was under way is not any more
  if (!(reason instanceof api.Problem)) console.error(reason);
  const sentence = reason instanceof api.Problem ? reason.message : "Something in the page broke; reload it.";
  const close = h.button({ type: "button", class: "quiet", on: { click: () => problem(null) } }, "Close");
  return replace(box, h.span(sentence), close);
}

document.addEventListener("problem", ({ detail }) => {
  const forgotten = detail.status === 404 && FORGOTTEN.test(detail.message);
  if (forgotten && (at("run").disabled || detail.sentAt < came)) return; // it is being requested, or came meanwhile
  if (!forgotten || performance.now() - lastForgotten < 5000) return problem(detail);
  lastForgotten = performance.now();
  run(); // the server keeps few traces: this one makes room for itself again
});
addEventListener("unhandledrejection", (event) => problem(event.reason));

function busy(yes) {
  at("panel").setAttribute("aria-busy", String(yes));
  at("run").disabled = yes;
}

// --- the header ---

function header() {
  const { state } = store;
  const model = models.find((one) => one.name === state.model);
  at("model").value = state.model;
  at("model").title = model?.what ?? "";
  if (document.activeElement !== at("text")) at("text").value = state.text;
  at("question").value = state.question;
  at("question-field").hidden = !model?.question;
  at("picture-field").hidden = !(model?.picture || model?.sound);
  replace(at("picture-label"), model?.sound ? "Upload a .wav file" : "Upload an image");
  at("picture").accept = model?.sound ? ".wav,audio/wav" : "image/png,image/jpeg";
  replace(at("text-label"), model?.picture ? "Image" : model?.sound ? "Sound" : "Text");
  const root = document.documentElement;
  if (state.theme) root.dataset.theme = state.theme;
  else delete root.dataset.theme;
  replace(at("theme"), dark() ? "Light" : "Dark");
  at("theme").setAttribute("aria-label", dark() ? "Use the light theme" : "Use the dark theme");
  document.title = `${viewOf(state.view).label} · ${state.model || "Regard"}`;
}

at("ask").addEventListener("submit", (event) => {
  event.preventDefault();
  const { state } = store;
  // edits name words and cells of the old text, which the new one need not have
  const patch = { text: at("text").value, question: at("question-field").hidden ? "" : at("question").value };
  if (patch.text !== state.text) patch.edits = {};
  // the cell that tells most of this text, not the place where the last one had it
  if (patch.text !== state.text && state.view === "start") Object.assign(patch, { site: "", head: 0, query: 0, key: 0, window: null });
  const again = patch.text === state.text && patch.question === state.question;
  if (again) run();
  else store.go(patch);
});
at("text").addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  at("ask").requestSubmit();
});
at("model").addEventListener("change", (event) => {
  const model = models.find((one) => one.name === event.target.value);
  const same = models.find((one) => one.name === store.state.model)?.task === model.task;
  at("text").value = same ? store.state.text : model.example;
  store.go({ model: model.name, text: at("text").value, question: model.question || "", edits: {}, checkpoint: null, site: "", head: 0, query: 0, key: 0, window: null });
});
at("picture").addEventListener("change", async (event) => {
  const [file] = event.target.files;
  if (!file) return;
  const bytes = new Uint8Array(await file.arrayBuffer());
  let text = "";
  for (let n = 0; n < bytes.length; n += 8192) text += String.fromCharCode(...bytes.subarray(n, n + 8192));
  const model = models.find((one) => one.name === store.state.model);
  upload = { name: file.name, field: model?.sound ? "sound" : "picture", data: btoa(text) };
  at("text").value = file.name;
  if (store.state.text === file.name) run();
  else store.go({ text: file.name, edits: {} });
});

const theme = () => store.set({ theme: dark() ? "light" : "dark" });
at("theme").addEventListener("click", theme);
at("skip").addEventListener("click", () => at("panel").focus());
onSystemTheme(() => {
  header();
  show();
});

// --- everything together ---

store.addEventListener("change", ({ detail: { changed } }) => {
  if (!store.state.model && models.length) return complete();
  const old = trace && store.state.branches && !changed.includes("branches") && changed.some((name) => ENDS.includes(name));
  if (old) return store.set({ branches: undefined });
  const asks = changed.some((name) => name === "branches" || ASKED.includes(name)); // then only the trace to come knows its sites
  if (!asks && changed.some((name) => ["site", "head"].includes(name))) settle();
  header();
  if (changed.includes("view")) {
    say(""); // it was about the view before
    for (const name of missing) elements.delete(name); // and may be there by now
    missing.clear();
    tabs();
  }
  return asks ? run() : show();
});

function step(name, list, by) {
  store.go({ [name]: list[(list.indexOf(store.state[name]) + by + list.length) % list.length] });
}

const dialog = at("keys");
listen(
  {
    view: (name) => store.go({ view: name }),
    text: () => at("text").focus(),
    head: (by) => trace && step("head", Array.from({ length: siteOf(trace, store.state)?.heads ?? 1 }, (_, n) => n), by),
    site: (by) => trace && step("site", trace.sites.filter((site) => site.shown).map((site) => site.name), by),
    theme,
  },
  dialog,
);
at("help").addEventListener("click", () => dialog.showModal());
at("side").append(side);
speakThrough(at("status"));

// a view paints for its width
let frame = 0;
new ResizeObserver(() => {
  cancelAnimationFrame(frame);
  frame = requestAnimationFrame(() => show());
}).observe(at("panel"));

// an address need not say everything
function complete() {
  const { state } = store;
  const model = models.find((one) => one.name === state.model) ?? models[0];
  if (state.model && model.name !== state.model) {
    lost = new api.Problem(`There is no model called “${shortened(state.model, 60)}”; this is ${model.name}.`);
  }
  store.set({ model: model.name, text: state.text || model.example, question: state.question || model.question || "" });
}

async function start() {
  try {
    ({ models } = await api.models());
  } catch (reason) {
    problem(reason);
  }
  replace(at("model"), models.map((one) => h.option({ value: one.name, title: one.what }, one.name)));
  header();
  tabs();
  busy(false);
  if (!models.length) return replace(at("panel"), empty("No trained model was found; train one with `regard train` and come back."));
  complete();
  if (!asking) await run(); // the address held all of it
  return undefined;
}

start();
