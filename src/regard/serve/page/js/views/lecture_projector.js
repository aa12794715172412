// Projector mode: full window, in the largest type that fits.

const [SMALLEST, ENOUGH, LARGEST] = [15, 17, 44]; // pixels; below ENOUGH only the width is worth a smaller type

// what lies behind is out of reach meanwhile
export function project(view) {
  const on = view.classList.toggle("projector");
  for (let node = view; node.parentElement && node !== document.body; node = node.parentElement) {
    for (const other of node.parentElement.children) if (other !== node) other.inert = on;
  }
  return on;
}

export function fit(view, stage) {
  if (!view.classList.contains("projector")) return view.style.removeProperty("font-size");
  view.scrollTo(0, 0);
  const foot = view.querySelector(".lecture-foot");
  // the question may lie below: nobody needs it while the cells are gone through
  const fits = (size) => {
    view.style.setProperty("font-size", `${size}px`);
    const high = size > ENOUGH && stage.getBoundingClientRect().bottom + foot.offsetHeight > view.clientHeight + 1;
    return !high && stage.scrollWidth <= stage.clientWidth + 1;
  };
  let size = LARGEST;
  while (size > SMALLEST && !fits(size)) size -= 1;
  return fits(size);
}
