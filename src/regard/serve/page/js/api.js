// HTTP client: one function per endpoint; errors become a Problem with one sentence.

const BASE = new URL("../../api/", import.meta.url); // relative, so that the page also works under a proxy's prefix
const MOST = 32 * 2 ** 20; // bytes of answers kept
export const CELLS = 65536; // numbers that the server gives exactly in one answer
const kept = new Map(); // address → {answer: promise, size}; the oldest first
let size = 0;

export class Problem extends Error {
  constructor(sentence, status = 0, sentAt = performance.now()) {
    super(sentence);
    Object.assign(this, { status, sentAt }); // when it was sent
  }
}

async function ask(path, options = {}) {
  const from = performance.now();
  let response;
  try {
    response = await fetch(new URL(path, BASE), options);
  } catch (reason) {
    if (reason.name === "AbortError") throw reason;
    throw new Problem("The server does not answer; is `regard serve` still running?");
  }
  if (response.ok) return response;
  const body = await response.json().catch(() => ({}));
  throw new Problem(body.error || `The server answered ${response.status} to ${path}.`, response.status, from);
}

function remembered(path, reader) {
  const found = kept.get(path);
  if (found) {
    kept.delete(path);
    kept.set(path, found);
    return found.answer;
  }
  const entry = { size: 0, answer: ask(path).then(reader) };
  kept.set(path, entry);
  entry.answer.then(
    (answer) => {
      entry.size = answer?.data?.byteLength ?? 1000;
      size += entry.size;
      for (const [old, { size: bytes }] of kept) {
        if (size <= MOST || old === path) break;
        kept.delete(old);
        size -= bytes;
      }
    },
    () => kept.delete(path),
  );
  return entry.answer;
}

const json = (response) => response.json();
const numbers = (header) => (header ? header.split(",").map(Number) : null);

async function octets(response) {
  return { data: new Uint8Array(await response.arrayBuffer()), ...about(response) };
}

async function floats(response) {
  return { data: new Float32Array(await response.arrayBuffer()), ...about(response) };
}

function about(response) {
  return { shape: numbers(response.headers.get("X-Shape")), range: numbers(response.headers.get("X-Range")) };
}

function post(path, body) {
  return ask(path, {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify(body),
  }).then(json);
}

function query(values) {
  const some = Object.entries(values).filter(([, value]) => value !== undefined && value !== null && value !== "");
  return some.length ? `?${new URLSearchParams(some)}` : "";
}

const part = encodeURIComponent;
const traces = (id) => `traces/${part(id)}`;
const site = (id, name) => `${traces(id)}/sites/${part(name)}`;
const head = (id, name, number) => `${site(id, name)}/heads/${number}`;
const frame = (window) => ({ top: window[0], bottom: window[1], left: window[2], right: window[3] });

export const models = () => ask("models").then(json);
// with branches, [step, token] one after the other, the last of them: it knows the trace before it, and where it left it
export async function trace(body, branches = []) {
  let found = await post("traces", body);
  for (const at of branches) found = { ...(await post(`${traces(found.id)}/branch`, { step: at[0], token: at[1] })), before: found, at };
  return found;
}
export const statistics = (id) => remembered(`${traces(id)}/statistics`, json);
export const map = (id, name, number, window, rows, columns, stage = "weights") =>
  remembered(
    `${head(id, name, number)}/map${query({ rows, columns, ...frame(window), stage: stage === "weights" ? "" : stage })}`,
    octets,
  );
export const cells = (id, name, number, window, stage = "weights") =>
  remembered(`${head(id, name, number)}/cells${query({ stage, ...frame(window) })}`, floats);
// the same for any window: so many rows at a time as one answer may hold
export async function block(id, name, number, [top, bottom, left, right]) {
  const wide = right - left;
  const band = Math.max(1, Math.floor(CELLS / wide));
  const starts = Array.from({ length: Math.ceil((bottom - top) / band) }, (_, n) => top + n * band);
  const ask = (row) => cells(id, name, number, [row, Math.min(row + band, bottom), left, right]);
  const all = new Float32Array((bottom - top) * wide);
  for (const [n, { data }] of (await Promise.all(starts.map(ask))).entries()) all.set(data, n * band * wide);
  return all;
}
export const row = (id, name, number, i, stage = "weights") =>
  remembered(`${head(id, name, number)}/rows/${i}${query({ stage })}`, floats);
export const column = (id, name, number, j, stage = "weights") =>
  remembered(`${head(id, name, number)}/columns/${j}${query({ stage })}`, floats);
export const pair = (id, name, number, i, j) =>
  remembered(`${head(id, name, number)}/pair${query({ query: i, key: j })}`, json);
export const rowTerms = (id, name, number, i) => remembered(`${head(id, name, number)}/row${query({ query: i })}`, json);
export const check = (id, name, number) => remembered(`${head(id, name, number)}/check`, json);
export const gate = (id, name) => remembered(`${site(id, name)}/gate`, floats);
// with a sampling {temperature, top_k, top_p}: as tokens would be drawn
const drawnBy = (sampling) => ({ sampling: sampling && JSON.stringify(sampling) });
export const next = (id, step, sampling = null) => remembered(`${traces(id)}/next/${step}${query(drawnBy(sampling))}`, floats);
export const nextTokens = (id, step, count = 20, sampling = null) =>
  remembered(`${traces(id)}/next/${step}/tokens${query({ count, ...drawnBy(sampling) })}`, json);
export const beam = (id) => remembered(`${traces(id)}/beam`, json);
export const compare = (before, after) => post("compare", { before, after });
export const patterns = (pattern, length) => post("patterns", { pattern, length });
export const positions = (values) => remembered(`positions${query(values)}`, floats);
export const lecture = (values = {}) => post("lecture", values);
export const checkpoints = (model) => ask(`models/${part(model)}/checkpoints`).then(json);
export const exportUrl = (id, values) => new URL(`${traces(id)}/export${query(values)}`, BASE).href;

// small pictures of all heads, site after site as the server finds them: found(number of the site, {data, shape})
export async function overview(id, size, found) {
  const response = await ask(`${traces(id)}/overview${query({ size })}`);
  const shapes = response.headers.get("X-Shape").split(";").map(numbers);
  const ends = [0];
  for (const [heads, rows, columns] of shapes) ends.push(ends.at(-1) + heads * rows * columns);
  const all = new Uint8Array(ends.at(-1));
  const reader = response.body.getReader();
  let [filled, next] = [0, 0];
  while (next < shapes.length) {
    const { value, done } = await reader.read().catch(() => ({ done: true }));
    if (done) throw new Problem("The server stopped in the middle of its answer; ask again.");
    all.set(value, filled);
    filled += value.length;
    for (; next < shapes.length && filled >= ends[next + 1]; next++) {
      found(next, { data: all.subarray(ends[next], ends[next + 1]), shape: shapes[next] });
    }
  }
}

// events of a stream, by name; "done" or "result" is the last. Gives a function that stops it
function listen(path, acts) {
  const stream = new EventSource(new URL(path, BASE));
  const last = ["done", "result"];
  for (const [name, act] of Object.entries(acts).filter(([name]) => name !== "problem")) {
    stream.addEventListener(name, (event) => {
      if (last.includes(name)) stream.close();
      act(JSON.parse(event.data));
    });
  }
  stream.addEventListener("error", (event) => {
    stream.close();
    acts.problem(new Problem(event.data ? JSON.parse(event.data).error : "The stream broke off; ask again."));
  });
  return () => stream.close();
}

// {token, done, problem}: token by token
export const generate = (values, acts) => listen(`generate${query(values)}`, acts);
// {progress, result, problem}: what a method finds of a prediction
export const explain = (id, values, acts) => listen(`${traces(id)}/explain${query(values)}`, acts);
// the sentences of a file, or held-out ones; their statistics: {progress, result, problem}; the states most alike
export const corpus = (body) => post("corpora", body);
export const corpusStatistics = (id, acts) => listen(`corpora/${part(id)}/statistics`, acts);
export const neighbours = (id, layer, state) => remembered(`corpora/${part(id)}/neighbours${query({ layer, state })}`, json);
