// Stand-in for the server in a notebook's widget: requests go to the frame's parent, which hands them to Python.

(() => {
  const { first, names } = JSON.parse(document.getElementById("regard-data").textContent);
  const waiting = new Map(); // id → what to do with an answer
  let last = 0;

  const post = (message) => parent.postMessage(message, "*"); // the frame has no origin of its own
  const bytes = (data) => (data ? new Uint8Array(data.buffer ?? data, data.byteOffset ?? 0, data.byteLength) : new Uint8Array());

  function request(address, { method = "GET", body = null } = {}, stream = false) {
    const { pathname, searchParams } = new URL(address);
    const id = ++last;
    post({ kind: "request", id, stream, method, path: pathname.replace(/^.*?\/api\//, "/api/"), query: Object.fromEntries(searchParams), body });
    return id;
  }

  globalThis.fetch = (address, options = {}) =>
    new Promise((done) => {
      const id = request(address, options);
      waiting.set(id, ({ status, headers, data }) => {
        waiting.delete(id);
        done(new Response(bytes(data), { status, headers }));
      });
    });

  globalThis.EventSource = class extends EventTarget {
    #id = 0;
    #text = "";
    #read = new TextDecoder();

    constructor(address) {
      super();
      this.#id = request(address, {}, true);
      waiting.set(this.#id, ({ data, over }) => {
        this.#take(this.#read.decode(bytes(data), { stream: true }));
        if (over) waiting.delete(this.#id);
      });
    }

    #take(text) {
      const blocks = (this.#text + text).split("\n\n");
      this.#text = blocks.pop();
      for (const block of blocks) {
        const field = (name) => block.match(new RegExp(`^${name}: (.*)$`, "m"))?.[1];
        if (field("event")) this.dispatchEvent(new MessageEvent(field("event"), { data: field("data") ?? "" }));
      }
    }

    close() {
      if (waiting.delete(this.#id)) post({ kind: "close", id: this.#id });
    }
  };

  addEventListener("message", ({ source, data }) => {
    if (source !== parent) return;
    if (data.kind === "answer") waiting.get(data.id)?.(data);
    if (data.kind === "state") take(data.state);
  });

  // --- the state of the page, which Python reads and writes ---

  let store = null;
  const take = (state) => store?.set(Object.fromEntries(names.map((name) => [name, state[name]])));

  addEventListener("DOMContentLoaded", async () => {
    ({ store } = await import("regard/js/store.js"));
    const tell = () => post({ kind: "state", state: Object.fromEntries(names.map((name) => [name, store.state[name]])) });
    store.addEventListener("change", tell);
    post({ kind: "ready" });
  });

  // a file that the server would send
  document.addEventListener("click", async (event) => {
    const link = event.target.closest?.("a[href^='http://regard.invalid/']");
    if (!link) return;
    event.preventDefault();
    const answer = await fetch(link.href);
    const name = answer.headers.get("Content-Disposition")?.match(/filename="(.*)"/)?.[1] ?? "regard";
    const file = Object.assign(document.createElement("a"), { href: URL.createObjectURL(await answer.blob()), download: name });
    file.click();
    URL.revokeObjectURL(file.href);
  });

  // --- a frame of a notebook may neither keep nor remember anything ---

  try {
    localStorage.getItem("");
  } catch {
    Object.defineProperty(globalThis, "localStorage", { value: { getItem: () => null, setItem: () => {} } });
  }
  location.hash = `#${Object.entries(first).map(([name, value]) => `${name}=${encodeURIComponent(typeof value === "string" ? value : `~${JSON.stringify(value)}`)}`).join("&")}`;
  history.replaceState = history.pushState = () => {};
})();
