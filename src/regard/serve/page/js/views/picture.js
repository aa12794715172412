// Image export: the current view as SVG or PNG.

import { drawing } from "../dom.js";
import { inks } from "../paint.js";

const CONTROLS = "select, input, .pickers, .view-head .row, button:not(.options button, .frame), .hidden-text";
const STYLES = ["fill", "stroke", "stroke-width", "font-size", "font-weight", "font-family", "text-anchor"];
const [EDGE, HEAD] = [16, 44];

export async function save(view, caption, format, name) {
  const image = svgOf(view, caption);
  const text = new Blob([new XMLSerializer().serializeToString(image)], { type: "image/svg+xml" });
  const link = document.createElement("a");
  link.download = `${name}.${format}`;
  link.href = URL.createObjectURL(format === "svg" ? text : await png(image, text));
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}

// twice as many pixels as on the page: for print
async function png(image, text) {
  const [width, height] = ["width", "height"].map((side) => 2 * image.getAttribute(side));
  const canvas = new OffscreenCanvas(width, height);
  const source = new Image();
  source.src = URL.createObjectURL(text);
  await source.decode();
  canvas.getContext("2d").drawImage(source, 0, 0, width, height);
  URL.revokeObjectURL(source.src);
  return canvas.convertToBlob({ type: "image/png" });
}

export function svgOf(view, caption) {
  const { left, top, width, height } = view.getBoundingClientRect();
  const size = { width: Math.ceil(width + 2 * EDGE), height: Math.ceil(height + HEAD + EDGE) };
  const ink = inks();
  const found = drawing("svg", { ...size, viewBox: `0 0 ${size.width} ${size.height}` });
  found.append(drawing("rect", { ...size, fill: ink.paper }));
  found.append(drawing("text", { x: EDGE, y: 28, fill: ink.ink, "font-size": 15, "font-family": ink.font }, caption));
  const place = (box) => ({ x: box.left - left + EDGE, y: box.top - top + HEAD, width: box.width, height: box.height });
  const add = (node) => {
    if (node.nodeType === Node.TEXT_NODE) found.append(...words(node, place));
    if (node.nodeType !== Node.ELEMENT_NODE || node.matches(CONTROLS) || !node.checkVisibility()) return;
    const box = place(node.getBoundingClientRect());
    if (node instanceof SVGElement) return void found.append(styled(node, box));
    const { backgroundColor: fill } = getComputedStyle(node);
    if (!/^(transparent|rgba\(.*, 0\))$/.test(fill)) found.append(drawing("rect", { ...box, fill }));
    if (node instanceof HTMLCanvasElement) found.append(drawing("image", { ...box, href: node.toDataURL() }));
    node.childNodes.forEach(add);
  };
  add(view);
  return found;
}

// a drawing, its styles in it: the file has no style sheet
function styled(node, box) {
  const copy = node.cloneNode(true);
  const all = [node, ...node.querySelectorAll("*")];
  [copy, ...copy.querySelectorAll("*")].forEach((one, n) => {
    const style = getComputedStyle(all[n]);
    for (const name of STYLES) one.setAttribute(name, style.getPropertyValue(name));
  });
  for (const [name, value] of Object.entries(box)) copy.setAttribute(name, value);
  return copy;
}

// every word of a text where it stands
function words(node, place) {
  const style = getComputedStyle(node.parentElement);
  const font = { "font-size": style.fontSize, "font-weight": style.fontWeight, "font-family": style.fontFamily };
  return [...node.data.matchAll(/\S+/g)].flatMap(({ 0: word, index }) => {
    const range = document.createRange();
    range.setStart(node, index);
    range.setEnd(node, index + word.length);
    const { x, y, width, height } = place(range.getBoundingClientRect());
    if (!width) return [];
    return [drawing("text", { x, y: y + height / 2 + 0.35 * parseFloat(style.fontSize), fill: style.color, ...font }, word)];
  });
}
