// Notebook widget (anywidget): the page in a frame, its requests to Python, its state to the widget's values and back.

function render({ model, el }) {
  const names = model.get("names");
  const frame = document.createElement("iframe");
  frame.setAttribute("sandbox", "allow-scripts allow-downloads"); // scripts run, but cannot reach the notebook
  frame.title = "Regard";
  frame.style.cssText = `width:100%;height:${model.get("height")}px;border:0`;
  let own = false; // whether a change comes from the page itself

  const post = (message) => frame.contentWindow?.postMessage(message, "*");
  const push = () => own || post({ kind: "state", state: Object.fromEntries(names.map((name) => [name, model.get(name)])) });
  const answer = (message, buffers = []) => post({ ...message, data: buffers[0] });

  function take(state) {
    own = true;
    for (const name of names) {
      const changed = JSON.stringify(model.get(name)) !== JSON.stringify(state[name]);
      if (changed && state[name] !== undefined && state[name] !== null) model.set(name, state[name]);
    }
    own = false;
    model.save_changes();
  }

  function listen({ source, data }) {
    if (source !== frame.contentWindow) return;
    if (data.kind === "state") take(data.state);
    else if (data.kind === "ready") push();
    else model.send(data);
  }

  addEventListener("message", listen);
  model.on("msg:custom", answer);
  for (const name of names) model.on(`change:${name}`, push);
  frame.srcdoc = model.get("page");
  el.append(frame);
  return () => {
    removeEventListener("message", listen);
    model.off("msg:custom", answer);
    for (const name of names) model.off(`change:${name}`, push);
  };
}

export default { render };
