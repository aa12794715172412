// Bars of a vector: one for each dimension, on a canvas.

import { fit, inks } from "../paint.js";

const TALL = 68;

// blue above, orange below, the line of nothing between; `most` reaches to the edge
export function bars(canvas, values, most, width, at) {
  const context = fit(canvas, width, TALL);
  const ink = inks();
  const wide = width / values.length;
  values.forEach((value, n) => {
    const length = (value / most) * (TALL / 2 - 4);
    context.fillStyle = value < 0 ? ink.gold : ink.accent;
    context.fillRect(n * wide, TALL / 2 - Math.max(length, 0), Math.max(wide - (wide > 3 ? 1 : 0), 0.5), Math.abs(length));
  });
  context.fillStyle = ink.frame;
  context.fillRect(0, TALL / 2, width, 1);
  if (at < 0) return;
  context.strokeStyle = ink.ink;
  context.lineWidth = 1.5;
  context.strokeRect(at * wide - 1, 2, Math.max(wide, 4), TALL - 4);
}
