// Canvas painting: matrices of bytes or floats as pixels, with colour scales for light and dark.

import { digits, h } from "./dom.js";

// lightness goes one way all along, so that the order survives a grey printer and every kind of colour blindness;
// orange and blue differ for all of them
const STOPS = {
  light: {
    weights: ["#fbfdff", "#cfe2f3", "#86b3dc", "#3a74b4", "#1f4e8c", "#0c2347"],
    signed: ["#7a2e05", "#c85a17", "#f2b27a", "#fdfcfa", "#93bce0", "#2f69ad", "#0f2f5f"],
    hidden: "#ebe7e0",
    hatch: "#d3ccc1",
  },
  dark: {
    weights: ["#141a23", "#1b3350", "#26588f", "#4f8fce", "#9cc8ee", "#f2f9ff"],
    signed: ["#ffd9b8", "#f09a4e", "#9c4d13", "#171c25", "#285e9e", "#7db3e4", "#dcefff"],
    hidden: "#2b2a2c",
    hatch: "#403d3d",
  },
};
// of several heads: each pair at least 20 apart in CIELAB to every kind of eye, each at least 3 : 1 on the paper
const HEADS = {
  light: ["#6309fc", "#569423", "#cd3172", "#b45ed7", "#4d1401", "#080745"],
  dark: ["#56b4e9", "#f5793a", "#ece83a", "#a94ff0", "#2a8a78", "#f9b8c4"],
};
const system = matchMedia("(prefers-color-scheme: dark)");
const tables = new Map();

export function dark() {
  const chosen = document.documentElement.dataset.theme;
  return chosen ? chosen === "dark" : system.matches;
}

export function onSystemTheme(f) {
  system.addEventListener("change", f);
}

export const headColours = () => HEADS[dark() ? "dark" : "light"];

const colours = () => STOPS[dark() ? "dark" : "light"];
const stops = (palette) => colours()[palette === "roots" ? "signed" : palette];

// weights by their roots, those that may be below 0 to both sides; other numbers from -most to most
const root = (weight) => Math.sign(weight) * Math.sqrt(Math.min(Math.abs(weight), 1));
const SHARES = { weights: (x) => Math.max(root(x), 0), roots: (x) => (root(x) + 1) / 2 };
export const shareIn = (palette, most = 1) => SHARES[palette] ?? ((x) => (x / most + 1) / 2);
export const paletteOf = (site) => (site.signed ? "roots" : "weights");
export const reach = (range) => (range && Math.max(...range.map(Math.abs))) || 1;
export function shade(palette, value, most) {
  const share = shareIn(palette, most)(value);
  return { background: colour(palette, share), color: readable(palette, share) };
}

// the page's own colours, for what is drawn beside a map
export function inks() {
  const style = getComputedStyle(document.documentElement);
  const of = (name) => style.getPropertyValue(`--${name}`).trim();
  const { hidden, hatch } = colours();
  const names = ["ink", "muted", "frame", "paper", "accent", "gold", "font"];
  return { ...Object.fromEntries(names.map((name) => [name, of(name)])), hidden, hatch };
}

export function rgb(text) {
  return [1, 3, 5].map((at) => parseInt(text.slice(at, at + 2), 16));
}

export const opaque = ([r, g, b]) => ((255 << 24) | (b << 16) | (g << 8) | r) >>> 0;

function between(stops, share) {
  const at = Math.min(Math.max(share, 0), 1) * (stops.length - 1);
  const low = Math.min(Math.floor(at), stops.length - 2);
  const [a, b] = [rgb(stops[low]), rgb(stops[low + 1])];
  return a.map((from, n) => Math.round(from + (b[n] - from) * (at - low)));
}

// 256 colours. "weights": of √weight. Others: byte 0 is hidden, 1…255 go from range[0] to range[1], 0 in the middle
export function table(palette, range = null) {
  const key = `${palette} ${dark()} ${range}`;
  if (tables.has(key)) return tables.get(key);
  if (tables.size > 64) tables.clear();
  const { hidden } = colours();
  const found = new Uint32Array(256);
  const [low, high] = range ?? [-1, 1];
  const share = shareIn("signed", reach(range));
  for (let n = 0; n < 256; n++) {
    const at = palette === "weights" ? n / 255 : share(low + ((n - 1) / 254) * (high - low));
    found[n] = opaque(n || palette === "weights" ? between(stops(palette), at) : rgb(hidden));
  }
  tables.set(key, found);
  return found;
}

export function colour(palette, share) {
  return `rgb(${between(stops(palette), share).join(" ")})`;
}

// black or white, whichever stands out more: by WCAG's luminance one of them always does, by 4.58 : 1
export function readable(palette, share) {
  const linear = (part) => (part / 255 <= 0.04045 ? part / 3294.6 : ((part / 255 + 0.055) / 1.055) ** 2.4);
  const [r, g, b] = between(stops(palette), share).map(linear);
  return 0.2126 * r + 0.7152 * g + 0.0722 * b > 0.179 ? "#000000" : "#ffffff";
}

// the server's bytes to weights
export const decoded = (bytes, site) => Float32Array.from(bytes, site.signed ? (byte) => ((byte - 128) * Math.abs(byte - 128)) / 16129 : (byte) => (byte / 255) ** 2);

// floats to the bytes that it would send
export function coded(values, palette) {
  const bytes = new Uint8Array(values.length);
  if (palette !== "signed") {
    const [share, least] = [shareIn(palette), Number(palette === "roots")];
    for (let n = 0; n < values.length; n++) bytes[n] = least + Math.round((255 - least) * share(values[n]));
    return { bytes, range: null };
  }
  let [low, high] = [Infinity, -Infinity];
  for (const value of values) {
    if (Number.isFinite(value)) [low, high] = [Math.min(low, value), Math.max(high, value)];
  }
  if (low > high) [low, high] = [0, 0];
  const wide = high - low || 1;
  for (let n = 0; n < values.length; n++) {
    bytes[n] = Number.isFinite(values[n]) ? 1 + Math.round((254 * (values[n] - low)) / wide) : 0;
  }
  return { bytes, range: [low, high] };
}

// one pixel a cell, to be drawn at any size; where `visible` is 0, and at byte 0 of signed numbers, the cell is hidden:
// dotted, so that it cannot be taken for a 0 however small it is drawn
export function sheet(bytes, rows, columns, palette = "weights", range = null, visible = null) {
  const canvas = new OffscreenCanvas(columns, rows);
  const image = new ImageData(columns, rows);
  const pixels = new Uint32Array(image.data.buffer);
  const shades = table(palette, range);
  const { hidden, hatch: dot } = colours();
  const unseen = [hidden, dot].map((text) => opaque(rgb(text)));
  const shown = visible ?? (palette === "weights" ? null : bytes);
  for (let n = 0; n < pixels.length; n++) {
    const dotted = (n % columns) + Math.floor(n / columns);
    pixels[n] = shown && shown[n] === 0 ? unseen[Number(dotted % 3 === 0)] : shades[bytes[n]];
  }
  canvas.getContext("2d").putImageData(image, 0, 0);
  return canvas;
}

// a canvas of so many CSS pixels, sharp on every screen
export function fit(canvas, width, height) {
  const ratio = Math.min(devicePixelRatio || 1, 3);
  const [w, h] = [Math.max(1, Math.round(width * ratio)), Math.max(1, Math.round(height * ratio))];
  if (canvas.width !== w || canvas.height !== h) [canvas.width, canvas.height] = [w, h];
  canvas.style.width = `${width}px`;
  canvas.style.height = `${height}px`;
  const context = canvas.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, width, height);
  context.imageSmoothingEnabled = false;
  return context;
}

export function hatch(context, x, y, width, height, { hidden, hatch: line }) {
  context.save();
  context.beginPath();
  context.rect(x, y, width, height);
  context.clip();
  context.fillStyle = hidden;
  context.fillRect(x, y, width, height);
  context.strokeStyle = line;
  context.lineWidth = 1;
  context.beginPath();
  for (let at = -height; at < width; at += 6) {
    context.moveTo(x + at, y + height);
    context.lineTo(x + at + height, y);
  }
  context.stroke();
  context.restore();
}

// what the colours mean, and what a pixel is of several cells
export function legend(palette, range = null, pooled = false, name = palette === "signed" ? "" : "weight") {
  const bar = h.canvas({ class: "legend-bar", "aria-hidden": "true" });
  const context = fit(bar, 160, 10);
  const most = reach(range);
  for (let x = 0; x < 160; x++) {
    context.fillStyle = colour(palette, x / 159);
    context.fillRect(x, 0, 1, 10);
  }
  const marks = { weights: [0, 0.05, 0.25, 0.5, 1], roots: [-1, -0.25, 0, 0.25, 1] }[palette] ?? [-most, 0, most];
  const place = shareIn(palette, most);
  const scale = h.span({ class: "legend-scale" });
  for (const value of marks) {
    const at = { left: `${100 * place(value)}%` };
    scale.append(h.span({ style: at }, digits(value, palette === "signed" ? 3 : 2)));
  }
  const strip = h.span({ class: "legend" }, name ? h.span({ class: "muted legend-name" }, name) : null, bar, scale);
  const note = `each pixel is the maximum ${palette === "signed" ? "score" : "weight"} (max-pooled)`;
  return pooled ? h.span({ class: "keys" }, strip, h.span({ class: "muted small pooled" }, note)) : strip;
}

export const legends = (palettes, pooled) => [...new Set(palettes)].map((palette) => legend(palette, null, pooled));
