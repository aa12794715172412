// Pattern parser for the input field: the first syntax error, or null. The server parses it again.

export const PARTS = {
  "Full()": "every key",
  "Causal()": "keys up to and including the query",
  "StrictCausal()": "keys before the query",
  "Window(8)": "keys fewer than 8 positions away",
  "Strided(8)": "every 8th position",
  "Block(16)": "its own block of 16",
  "Prefix(8)": "the first 8",
  "Global(1)": "the first token attends to all and is attended by all",
  "Random(2, seed=0)": "2 random positions",
};
const NAMES = Object.keys(PARTS).map((part) => part.split("(")[0]);

export function mistake(text) {
  const words = [];
  const pattern = /\s+|[A-Za-z_]\w*|\d+(?:\.\d+)?|[&|~(),=-]|[\s\S]/gu;
  for (const found of text.matchAll(pattern)) {
    const [word] = found;
    if (!/^\s/.test(word)) words.push({ word, at: found.index });
    if (!/^[\s\w&|~(),=-]/.test(word)) return { at: found.index, why: `unknown symbol “${word}”` };
  }
  let n = 0;
  const here = () => words[n]?.word;
  const stop = (why) => {
    throw { at: words[n]?.at ?? text.length, why };
  };

  function either() {
    one();
    while (here() === "&" || here() === "|") {
      n++;
      one();
    }
  }
  function one() {
    const word = here();
    if (word === undefined) stop("a pattern is missing here");
    if (word === "~") {
      n++;
      return one();
    }
    if (word === "(") {
      n++;
      either();
      return close();
    }
    if (!/^[A-Za-z_]/.test(word)) stop(`a pattern should stand here, not “${word}”`);
    if (!NAMES.includes(word)) stop(`no pattern is called “${word}”; there are ${NAMES.join(", ")}`);
    n++;
    if (here() !== "(") stop(`after ${word} comes “(”`);
    n++;
    for (let depth = 1; depth; n++) {
      if (here() === undefined) stop("a “)” is missing");
      depth += { "(": 1, ")": -1 }[here()] ?? 0;
    }
    return undefined;
  }
  function close() {
    if (here() !== ")") stop("a “)” is missing");
    n++;
  }

  try {
    either();
    if (n < words.length) stop(`“&” or “|” should stand here, not “${here()}”`);
  } catch (found) {
    if (found instanceof Error) throw found;
    return found;
  }
  return null;
}

// a & b | c means (a & b) | c: what is put together further needs brackets when the signs differ
export function joined(text, sign, part) {
  if (!text.trim()) return part;
  const other = sign === "&" ? "|" : "&";
  return `${text.includes(other) ? `(${text.trim()})` : text.trim()} ${sign} ${part}`;
}

export function negated(text) {
  if (!text.trim()) return "";
  const inner = text.trim().match(/^~\((.*)\)$/s)?.[1];
  if (inner !== undefined && !mistake(inner)) return inner;
  return `~(${text.trim()})`;
}
