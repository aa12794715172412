"""The microscope's speed with its real server and real models, and pictures of each of its views.

python benchmarks/microscope.py                              times and memory; writes results/microscope.json
python benchmarks/microscope.py --shots docs/pictures        every view, light and dark, as small PNG files

Models for the pictures are those of `regard train` in out/microscope; what is missing is trained first (minutes).
"""

import argparse
import statistics
from pathlib import Path
from typing import Any

from browsing import PageViewer, chromium, served
from machine import write
from microscope_shots import shelf_of_runs, shoot
from regard.models.config import EncoderConfig
from regard.serve.model_store import ModelStore
from regard.tasks.config import TokenizerSettings
from regard.tasks.pretrained import PretrainedModel
from regard.tasks.tagging.task import Tagger, TaggingData, TaggingSettings

WORDS = ("the", "black", "cat", "ate", "a", "mouse", "and", "man", "carries", "light", "box")
LONG, MANY = 2048, 512
PROMISED = {"click": 150, "overview": 1000, "hover": 16, "heap": 60}
WIDE = {"width": 1280, "height": 800}
PAINTED = "document.querySelector('regard-VIEW')?.dataset.painted"
HOVERED = """() => {
  const canvas = document.querySelector("regard-matrix .over");
  const box = canvas.getBoundingClientRect();
  return Array.from({ length: 200 }, (_, n) => {
    const at = { clientX: box.left + 130 + n, clientY: box.top + 120 + n, pointerId: 1, bubbles: true };
    const from = performance.now();
    canvas.dispatchEvent(new PointerEvent("pointermove", at));
    return performance.now() - from;
  });
}"""


def reader(layers: int, heads: int, head: int) -> Tagger:
    """An untrained Transformer of that size: what it attends to is as dear to show as after training."""
    model = EncoderConfig(kind="transformer", layers=layers, model=heads * head, heads=heads, hidden=4 * head)
    settings = TaggingSettings(data=TaggingData(sentences=97), text=TokenizerSettings(kind="words"), model=model)
    return Tagger.from_examples(settings.data.read("train").examples, settings)


def models(head: int = 64) -> dict[str, Tagger]:
    return {"long": reader(2, 4, head), "deep": reader(12, 12, head)}


def gpt2() -> PretrainedModel:
    """Hugging Face's GPT-2, its heads in their own number and width; of few layers and words, but many positions."""
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    from regard.interop.huggingface.tasks import HuggingFaceTaskModel
    from watching import WORDS, tokenizer_of_words

    torch.manual_seed(0)
    config = GPT2Config(vocab_size=WORDS, n_layer=2, n_positions=LONG, bos_token_id=0, eos_token_id=0)
    return HuggingFaceTaskModel.of(GPT2LMHeadModel(config).eval(), tokenizer_of_words())


def text(words: int) -> str:
    return " ".join(WORDS[n * n % len(WORDS)] for n in range(words))


# --- what is measured, in milliseconds and bytes ---


def overview(viewer: PageViewer) -> float:
    """From the click on the tab to all heads of twelve layers, none of which was shown before."""
    viewer.open("matrix", model="deep", text=text(MANY))
    painted = PAINTED.replace("VIEW", "overview")
    return viewer.time("document.getElementById('tab-overview').click()", painted)


def clicks(viewer: PageViewer, **state: Any) -> list[float]:
    """From the click on a head of 2,048 tokens to its picture, once for every head that nobody saw yet."""
    viewer.open("matrix", **state)
    found = []
    for head in (1, 2, 3):
        click = f"document.querySelector('input[name=head][value=\"{head}\"]').click()"
        painted = f"{PAINTED.replace('VIEW', 'matrix')}?.includes(' {head} weights 0 {LONG} 0 {LONG}')"
        found.append(viewer.time(click, painted))
    return found


def hovers(viewer: PageViewer) -> list[float]:
    """What moving the pointer to another cell keeps the page from doing anything else."""
    return viewer.page.evaluate(HOVERED)


def measured(viewer: PageViewer) -> dict[str, Any]:
    """Once: the order matters, for heap is that of the long text."""
    first = overview(viewer)
    click = clicks(viewer, model="long", text=text(LONG))
    return {"overview": first, "click": click, "hover": hovers(viewer), "heap": viewer.heap()}


def measure(times: int) -> list[dict[str, Any]]:
    from watching import sentence

    found = []
    with chromium() as browser:
        for _ in range(times):
            store = ModelStore.from_models(models() | {"gpt2": gpt2()})
            with served(store) as address:  # anew, so that nothing is remembered
                context = browser.new_context(viewport=WIDE)
                viewer = PageViewer(context.new_page(), address)
                found.append(measured(viewer))
                # the last of its tokens is one that it generates
                found[-1]["gpt2"] = clicks(viewer, model="gpt2", text=sentence(LONG - 1), more=1)
                context.close()
    hover = sorted(one for run in found for one in run["hover"])
    return [
        row("overview of 12 × 12 heads, 512 tokens", "ms", [run["overview"] for run in found], PROMISED["overview"]),
        row(
            "click to paint, a head of 2,048 tokens",
            "ms",
            [x for run in found for x in run["click"]],
            PROMISED["click"],
        ),
        row(
            "the same of Hugging Face's GPT-2",
            "ms",
            [x for run in found for x in run["gpt2"]],
            PROMISED["click"],
        ),
        # of 100 the five slowest are left out: the garbage collector's
        row("hover", "ms", hover[: len(hover) * 95 // 100], PROMISED["hover"]),
        row("heap, 2,048 tokens", "MB", [run["heap"] / 1e6 for run in found], PROMISED["heap"]),
    ]


def row(what: str, unit: str, found: list[float], promised: float) -> dict[str, Any]:
    median, most = (round(x, 1) for x in (statistics.median(found), max(found)))
    return {"what": what, "unit": unit, "median": median, "most": most, "promised": promised, "times": len(found)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shots", type=Path, metavar="FOLDER")
    parser.add_argument("--runs", type=Path, default=Path("out/microscope"))
    parser.add_argument("--only", help="views to picture, with commas between")
    parser.add_argument("--times", type=int, default=3)
    options = parser.parse_args()
    if options.shots:
        with chromium() as browser, served(shelf_of_runs(options.runs)) as address:
            for path in shoot(browser, address, options.shots, options.only):
                print(f"{path}  {path.stat().st_size / 1000:.0f} kB")
        return
    rows = measure(options.times)
    for one in rows:
        print("{what:44} {median:8} {unit}, at most {most}, promised {promised}".format(**one))
    command = "python benchmarks/microscope.py" + (f" --times {options.times}" if options.times != 3 else "")
    print(write("microscope", command, rows))


if __name__ == "__main__":
    main()
