// Registry of the views: tab, shortcut, which traces it fits, and its module, loaded on demand.

const seen = (trace) => trace?.sites.some((site) => site.shown) ?? false;
const gated = (trace) => trace?.sites.some((site) => site.kind === "gate") ?? false;
const always = () => true;
const NOTHING = "This model has no attention layer to show; choose another model.";
const WRITES = "This model generates no tokens; choose a translation or language model.";

export const GROUPS = ["Look", "Explain", "Change", "Compare", "Learn"];

// tells: what a mark is, what rows and columns are, what to click
export const VIEWS = [
  { name: "start", label: "Start", key: "s", group: "Look", load: () => import("./start.js"), fits: seen, needs: NOTHING, plain: true },
  {
    name: "overview",
    label: "Heads",
    key: "1",
    group: "Look",
    load: () => import("./overview.js"),
    fits: seen,
    needs: NOTHING,
    tells: "Each picture is one head: rows are queries, columns are keys, a stronger colour is more weight. Point at one to read it, click to open it; click on or off below it to switch it.",
  },
  {
    name: "matrix",
    label: "Matrix",
    key: "2",
    group: "Look",
    load: () => import("./matrix.js"),
    fits: seen,
    needs: NOTHING,
    tells: "A cell is the weight that the query of its row gives to the key of its column. Click a cell for its numbers; Enter computes it.",
  },
  {
    name: "lines",
    label: "Lines",
    key: "3",
    group: "Look",
    load: () => import("./lines.js"),
    fits: seen,
    needs: NOTHING,
    tells: "A line goes from a query (left) to a key (right), the thicker the larger the weight. Point at a token to see its lines alone.",
  },
  {
    name: "alignment",
    label: "Words",
    key: "4",
    group: "Look",
    load: () => import("./alignment.js"),
    fits: (trace) => seen(trace) && Object.values(trace.words ?? {}).some((words) => words.length > 0),
    needs: "This input has no words to align; choose a model that reads text.",
    tells: "The matrix between words: a cell adds up the pieces of its key and averages those of its query. Outlines are the known alignment.",
  },
  {
    name: "overlay",
    label: "Image",
    key: "p",
    group: "Look",
    load: () => import("./overlay.js"),
    fits: (trace) => trace !== null && Boolean(trace.picture) && (trace.picture.rows > 0 || !gated(trace)),
    needs: "This model has no attention over image patches; choose one that does.",
    tells: "The redder a patch, the more weight the chosen query gives it. Choose a query; click a patch to make it the query.",
  },
  {
    name: "gates",
    label: "Gates",
    key: "g",
    group: "Look",
    load: () => import("./gates.js"),
    fits: (trace) => gated(trace),
    needs: "This model has no gates (channel, spatial or word attention).",
    tells: "A bar is the weight of one channel, or a cell that of one place, between 0 and 1. Click one and switch it off.",
  },
  {
    name: "explain",
    label: "Effects",
    key: "e",
    group: "Explain",
    load: () => import("./explain.js"),
    fits: seen,
    needs: NOTHING,
    tells: "A weight says what was read; these methods run the model again and say what it did to one prediction. Choose a method and a prediction.",
  },
  {
    name: "model",
    label: "Model",
    key: "m",
    group: "Explain",
    load: () => import("./model.js"),
    fits: (trace) => seen(trace) && (trace.rows ?? []).length > 0,
    needs: "This model predicts nothing, so nothing can be followed to a logit; choose another model.",
    tells: "The residual stream at one position, from top to bottom: a box is a part of the model, a bar what it added to the logit. Click a part for its vector.",
  },
  {
    name: "row",
    label: "Row",
    key: "r",
    group: "Explain",
    load: () => import("./row.js"),
    fits: seen,
    needs: NOTHING,
    tells: "One query against all keys: a line is a key, a column a step of the formula; the last line adds up. Strips are the terms q·k by dimension, blue above 0. Click a key to take it apart.",
  },
  { name: "pair", label: "Pair", key: "5", group: "Explain", load: () => import("./pair.js"), fits: seen, needs: NOTHING, tells: "One query and one key: a bar is one dimension, up is positive. Point at a bar to read it; choose another pair by number." },
  {
    name: "whatif",
    label: "Interventions",
    key: "w",
    group: "Change",
    load: () => import("./whatif.js"),
    fits: seen,
    needs: NOTHING,
    tells: "Change a head, a weight, a mask, a word or the temperature. Bars are changes of the next token's probability.",
  },
  {
    name: "generation",
    label: "Generation",
    key: "6",
    group: "Change",
    load: () => import("./generation.js"),
    fits: (trace) => trace !== null && trace.steps > 0,
    needs: WRITES,
    tells: "Bars are the probabilities of the next token at one step, as it would be drawn; a mark is the model's own. Click a token above for its step, or below to go on with it instead.",
  },
  {
    name: "beam",
    label: "Beam",
    key: "7",
    group: "Change",
    load: () => import("./beam.js"),
    fits: (trace) => trace !== null && trace.steps > 0,
    needs: WRITES,
    tells: "A box is a hypothesis that beam search kept, a column is a step. Click one to read its log-probability in nats.",
  },
  {
    name: "corpus",
    label: "Corpus",
    key: "k",
    group: "Compare",
    load: () => import("./corpus.js"),
    fits: (trace, model) => seen(trace) && !model?.picture && !model?.sound && Object.values(trace.words ?? {}).some((words) => words.length > 0),
    needs: "A corpus is of sentences; choose a model that reads text.",
    tells: "A line is one head, a column its mean over many sentences. Click a head for its strongest weights, a weight to open its sentence.",
    plain: true,
  },
  {
    name: "comparison",
    label: "Compare",
    key: "c",
    group: "Compare",
    load: () => import("./comparison.js"),
    fits: seen,
    needs: NOTHING,
    tells: "Two heads of one or two models on the same text, and their difference: blue is more in the second. Click a cell for both numbers.",
  },
  {
    name: "training",
    label: "Training",
    key: "t",
    group: "Compare",
    load: () => import("./training.js"),
    fits: (trace, model) => trace !== null && (model?.checkpoints ?? []).length > 1,
    needs: "This run has no earlier checkpoints; train with train.keep_checkpoints above 1.",
    tells: "A picture is this head at one checkpoint. Click one, or play them in order; the curves are loss and entropy by training step.",
  },
  { name: "lecture", label: "Lecture", key: "l", group: "Learn", load: () => import("./lecture.js"), fits: always, alone: true },
  { name: "positions", label: "Positions", key: "8", group: "Learn", load: () => import("./positions.js"), fits: always, alone: true, tells: "A row is a position, a column a dimension (or another position); blue is above 0. Click a cell for its value." },
  { name: "masks", label: "Masks", key: "9", group: "Learn", load: () => import("./masks.js"), fits: always, alone: true, tells: "A filled cell: the query of its row may see the key of its column. Write a pattern, or put one together by the buttons." },
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
