// Attention overlay: weights of patches drawn over an image.

import { Problem } from "../api.js";
import { fit } from "../paint.js";

// nothing to vermilion, over a picture in grey: what weighs nothing is not covered (as in see/plots/layout.py)
const GLOW = [
  [245, 158, 26, 0],
  [242, 120, 5, 0.62],
  [204, 51, 0, 0.92],
];
const FADED = [0.52, 0.97];

export function glow(share) {
  const at = Math.min(Math.max(share, 0), 1) * (GLOW.length - 1);
  const low = Math.min(Math.floor(at), GLOW.length - 2);
  return GLOW[low].map((from, n) => from + (GLOW[low + 1][n] - from) * (at - low));
}

export function loaded(url) {
  return new Promise((resolve, reject) => {
    const image = new Image();
    image.addEventListener("load", () => resolve(image));
    image.addEventListener("error", () => reject(new Problem("The image of this trace was evicted; ask again.", 404)));
    image.src = url;
  });
}

export function faded(image) {
  const canvas = new OffscreenCanvas(image.naturalWidth, image.naturalHeight);
  const context = canvas.getContext("2d");
  context.drawImage(image, 0, 0);
  const pixels = context.getImageData(0, 0, canvas.width, canvas.height);
  for (let n = 0; n < pixels.data.length; n += 4) {
    const [r, g, b] = pixels.data.subarray(n, n + 3);
    const grey = 255 * FADED[0] + (0.299 * r + 0.587 * g + 0.114 * b) * (FADED[1] - FADED[0]);
    pixels.data.fill(grey, n, n + 3);
  }
  context.putImageData(pixels, 0, 0);
  return canvas;
}

// picture: {image, grey}; patches: {weights, most, rows, columns}; strength 0…1
export function lay(canvas, { image, grey }, { weights, most, rows, columns }, strength, [width, height], lines) {
  const context = fit(canvas, width, height);
  context.drawImage(image, 0, 0, width, height);
  context.globalAlpha = strength;
  context.drawImage(grey, 0, 0, width, height);
  context.globalAlpha = 1;
  const [w, h] = [width / columns, height / rows];
  for (let n = 0; n < rows * columns; n++) {
    const [r, g, b, alpha] = glow(most ? weights[n] / most : 0);
    context.fillStyle = `rgb(${r} ${g} ${b} / ${alpha * strength})`;
    context.fillRect((n % columns) * w, Math.floor(n / columns) * h, w, h);
  }
  if (lines) {
    context.fillStyle = "rgb(255 255 255 / 45%)";
    for (let x = 1; x < columns; x++) context.fillRect(x * w - 0.5, 0, 1, height);
    for (let y = 1; y < rows; y++) context.fillRect(0, y * h - 0.5, width, 1);
  }
  return context;
}
