// Registry of the views: tab, shortcut, which traces it fits, and its module, loaded on demand.

const seen = (trace) => trace?.sites.some((site) => site.shown) ?? false;
const gated = (trace) => trace?.sites.some((site) => site.kind === "gate") ?? false;
const always = () => true;
const NOTHING = "This model has no attention layer to show; choose another model.";
const WRITES = "This model generates no tokens; choose a translation or language model.";

export const VIEWS = [
  { name: "overview", label: "Overview", key: "1", load: () => import("./overview.js"), fits: seen, needs: NOTHING },
  { name: "matrix", label: "Matrix", key: "2", load: () => import("./matrix.js"), fits: seen, needs: NOTHING },
  { name: "lines", label: "Lines", key: "3", load: () => import("./lines.js"), fits: seen, needs: NOTHING },
  {
    name: "alignment",
    label: "Alignment",
    key: "4",
    load: () => import("./alignment.js"),
    fits: (trace) => seen(trace) && Object.values(trace.words ?? {}).some((words) => words.length > 0),
    needs: "This input has no words to align; choose a model that reads text.",
  },
  { name: "pair", label: "Pair", key: "5", load: () => import("./pair.js"), fits: seen, needs: NOTHING },
  {
    name: "generation",
    label: "Generation",
    key: "6",
    load: () => import("./generation.js"),
    fits: (trace) => trace !== null && trace.steps > 0,
    needs: WRITES,
  },
  {
    name: "beam",
    label: "Beam",
    key: "7",
    load: () => import("./beam.js"),
    fits: (trace) => trace !== null && trace.steps > 0,
    needs: WRITES,
  },
  {
    name: "overlay",
    label: "Image",
    key: "p",
    load: () => import("./overlay.js"),
    fits: (trace) => trace !== null && Boolean(trace.picture) && (trace.picture.rows > 0 || !gated(trace)),
    needs: "This model has no attention over image patches; choose one that does.",
  },
  {
    name: "gates",
    label: "Gates",
    key: "g",
    load: () => import("./gates.js"),
    fits: (trace) => gated(trace),
    needs: "This model has no gates (channel, spatial or word attention).",
  },
  { name: "whatif", label: "Interventions", key: "w", load: () => import("./whatif.js"), fits: seen, needs: NOTHING },
  { name: "comparison", label: "Compare", key: "c", load: () => import("./comparison.js"), fits: seen, needs: NOTHING },
  {
    name: "training",
    label: "Training",
    key: "t",
    load: () => import("./training.js"),
    fits: (trace, model) => trace !== null && (model?.checkpoints ?? []).length > 1,
    needs: "This run has no earlier checkpoints; train with train.keep_checkpoints above 1.",
  },
  { name: "positions", label: "Positions", key: "8", load: () => import("./positions.js"), fits: always, alone: true },
  { name: "masks", label: "Masks", key: "9", load: () => import("./masks.js"), fits: always, alone: true },
  { name: "lecture", label: "Lecture", key: "l", load: () => import("./lecture.js"), fits: always, alone: true },
];

export function viewOf(name) {
  return VIEWS.find((view) => view.name === name) ?? VIEWS[0];
}

// a new element of that view; null when its file is not there
export async function made(view) {
  try {
    await view.load();
  } catch (reason) {
    if (!(reason instanceof TypeError)) throw reason; // only a file that cannot be had is forgiven
    return null;
  }
  return document.createElement(`regard-${view.name}`);
}
