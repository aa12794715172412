// State of the lecture in the URL hash, validated.

export function placeIn({ lecture, numbers }, site) {
  const [, chapter = "1", step = "0", on = ""] = /^(\d+)\.(\d+)(m?)$/.exec(lecture ?? "") ?? [];
  const at = { mode: on && site ? "model" : "example", chapter: Number(chapter) - 1, step: Number(step) };
  return { at, numbers: numbers && typeof numbers === "object" ? numbers : {} };
}

export function written({ mode, chapter, step }) {
  return `${chapter + 1}.${Number.isFinite(step) ? step : 0}${mode === "model" ? "m" : ""}`;
}

// which query of the loaded model
export function requestOf(trace, site, { head, query }) {
  return {
    trace: trace.id,
    site: site.name,
    head: Math.min(head, site.heads - 1),
    query: Math.min(query, site.n_q - 1),
  };
}
