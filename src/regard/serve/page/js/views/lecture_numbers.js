// Edited inputs of the worked example: those that differ from the lectures' own.

// edits: null (all as the lectures have it), {patch}, or one cell {name, i, j, value(old)}
export function edited(numbers, given, edits) {
  let now = numbers;
  for (const edit of edits) {
    if (!edit) now = {};
    else if (edit.patch) now = { ...now, ...edit.patch };
    else {
      const { name, i, j, value } = edit;
      const old = Array.isArray(now[name]) ? now[name] : given[name];
      const changed = (line, row) => line.map((cell, at) => (row === i && at === j ? value(cell) : cell));
      now = { ...now, [name]: old.map(changed) };
    }
  }
  return now;
}

// what cannot be read goes to the server as it was typed, which says what is wrong with it
export function numberOf(text) {
  const point = /,\d{3}$/.test(text.trim()) ? "," : "."; // 1,000 may be one or a thousand
  const clean = text.trim().replace(/^[−–]/, "-").replace(",", point);
  const value = clean === "" ? NaN : Number(clean);
  return Number.isFinite(value) ? value : text.slice(0, 40);
}
