"""Gallery: every named recipe and position as a plot on the page docs/gallery.md, and the lecture on a console."""

from collections.abc import Callable
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Any, TypeVar

import torch
from matplotlib.figure import Figure
from PIL import Image
from rich.columns import Columns
from rich.console import Console
from rich.panel import Panel as Box
from rich.progress import track
from rich.rule import Rule
from rich.table import Table
from rich.text import Text
from torch import Tensor
from torch.nn import Linear, RMSNorm

from regard.attention import CONTENT_RECIPES, EXAMPLES, GATED_RECIPES, LAYER_RECIPES, POSITIONS, RECIPES, catalogue
from regard.attention.batch_patterns import BatchPattern
from regard.attention.catalogue import RecipeSizes, WorkedExample, get_recipe
from regard.attention.core import record_attention
from regard.attention.functional import explain, steps
from regard.attention.gate import NoGate
from regard.attention.latent import InducingPoints, LatentKV, Linformer
from regard.attention.layer_options import LayerOptions
from regard.attention.multihead import MultiHeadAttention
from regard.attention.native_sparse import NativeSparse
from regard.attention.normaliser import Softmax
from regard.attention.parts import leaves
from regard.attention.pattern import Causal, Full, Window
from regard.attention.position import NoPosition, Position, Rotary
from regard.attention.position_variants import Sinusoidal
from regard.attention.recipe import Recipe
from regard.attention.sparse_patterns import is_content
from regard.models.config import LAYER_FORMS, read_form
from regard.see.plots.draw import ascii
from regard.see.plots.layout import MUTED, PAPER, PLAIN_FONTS, TextLine
from regard.see.plots.mpl_figure import add_axes_at, draw_matrix, draw_text_line, draw_view, save
from regard.see.plots.panels import Axis, ColourScale, Panel, PanelRow, View
from regard.see.plots.recipe_views import (
    black_cat,
    example_steps,
    mask,
    one_line_repr,
    position_view,
    recipe_view,
    weights_view,
)

RECIPE_CAPTIONS = {
    "dot": "The plain product q · k: the wider the head, the larger the scores and the harder the choice.",
    "scaled dot": "The Transformer's: q · k / √d keeps the spread of the scores whatever the width.",
    "luong general": "Luong's “general”: a learned matrix between query and key (here with fresh weights).",
    "bahdanau": "The aligner of 2014: a small network scores query and key together (here with fresh weights).",
    "cosine": "Only directions count; loud keys gain nothing.",
    "learned temperature": "Directions alone, each head with a temperature that it learns (QK-norm, Swin v2).",
    "soft cap": "No score grows beyond the cap: c · tanh(s / c), as in Gemma 2.",
    "causal": "The look-ahead mask: itself and the past, as a language model reads.",
    "strictly before": "The past alone, as the second lecture writes it; the first token sees nothing and gives 0.",
    "sliding window": "Itself and a few tokens before it, whatever the length.",
    "dilated window": "Every other token of a window: twice the reach for the same work.",
    "strided": "The Sparse Transformer: a window, and every so many tokens one further back.",
    "never itself": "Everybody but itself.",
    "prefix": "The prefix language model: all see the prefix, and after it only the past.",
    "documents": "Several texts packed in one row; none sees into another.",
    "local blocks": "The text cut into blocks that see nothing else.",
    "longformer": "A window, and one global token that sees all and is seen by all.",
    "chosen globals": "A window, and the tokens that are listed see all and are seen by all.",
    "per head": "Each head has a pattern of its own: here the first sees a window, the second all of the past.",
    "random": "Each token and three random earlier ones, which see it in return.",
    "bigbird": "Blocks of tokens: neighbours, a global block, and random ones.",
    "relu": "Scores below 0 are dropped, the others stay as they are; the weights need not sum to 1.",
    "sigmoid": "Each key is weighed by itself; the weights need not sum to 1.",
    "sparsemax": "The nearest point of the simplex: small scores weigh exactly 0.",
    "entmax": "Between softmax and sparsemax, α = 1.5: smooth where keys matter, exactly 0 where they do not.",
    "top-k": "Only the three best keys of each row are seen.",
    "softmax plus one": "One more in the denominator: a query that finds nothing may attend to nothing.",
    "sinks": "gpt-oss: in each head a learned sink takes a share of every row and gives nothing.",
    "stick-breaking": "The nearest key breaks off its share of a stick, the next one a share of what is left.",
    "talking heads": "Heads mix their scores before the softmax and their weights after it (here with fresh weights).",
    "differential": "Two maps are subtracted, so that what both notice cancels; orange weights are negative.",
    "multi-token": "Scores are convolved over neighbouring queries and keys: several queries find a key together.",
    "hard": "One key per row: the best one; while training, one drawn by its probability.",
    "hard, straight-through": "One key per row; while training, drawn forwards and soft backwards.",
    "linear": "φ(q) · φ(k) over its sum, which can be computed in linear time.",
    "causal linear": "Causal linear attention: a recurrent network in disguise.",
    "top blocks": "Chosen from the content: a block of queries sees its own block of keys, and the earlier ones whose "
    "mean its first query matches best.",
    "moba": "Mixture of block attention: the same, and every query chooses for itself.",
    "lightning indexer": "DeepSeek-V3.2: a small learned scorer ranks all earlier keys, and the best are seen (here "
    "with fresh weights).",
    "forget gate": "The Forgetting Transformer: what a token forgets dims all keys before it. In these examples each "
    "token forgets a little, and the one in the middle most of the past.",
    "retention": "A state that decays by a fixed factor in each head; no softmax, so orange weights are negative.",
    "lightning": "The same with ALiBi's slopes as decays.",
    "mamba-2": "A state whose decay every token chooses (Mamba-2, simple GLA).",
    "gla": "Gated linear attention: every token chooses a decay for each feature of the state.",
    "delta rule": "DeltaNet: a token first erases what is stored under its key, so that near keys replace older ones.",
    "gated delta rule": "Gated DeltaNet, in Qwen3-Next: the state decays, and keys are overwritten.",
    "kimi delta": "Kimi Delta Attention: the same with a decay for each feature.",
}

POSITION_CAPTIONS = {
    "none": "Nothing: order is unknown, and “man eats dinosaur” is “dinosaur eats man”.",
    "sinusoidal": "Waves of ever longer period, added to each token.",
    "learned": "A learned vector for each position, added to each token (here with fresh weights).",
    "rotary": "Query and key are rotated by their positions, so that q · k depends on the distance alone.",
    "alibi": "Far keys are dimmed, in each head by a slope of its own.",
    "t5": "A learned number per head and distance; far distances share one (here with fresh weights).",
    "partial rotary": "Only half of the features are rotated; the others know no order (GPT-NeoX, Qwen3-Next).",
    "ntk": "A larger theta for longer texts: fast pairs turn as before, slow ones more slowly.",
    "yarn": "For texts four times as long: fast pairs turn as before, slow ones a quarter as fast.",
    "axial rotary": "2-D, for pictures: half of the features are rotated by the row, half by the column.",
    "xpos": "Rotary whose pairs shrink with the distance, so that far keys fade.",
    "cope": "Contextual: a query counts only the keys it lets count, so its positions are fractions; the plot shows "
    "the vectors of whole positions (here with fresh weights).",
    "shaw": "A learned key and value for each clipped distance; the plot shows which vector a pair reads.",
}

LAYER_CAPTIONS = {
    "5 window : 1 full": "Gemma 3: five layers see a window, and the sixth all of the past. In the settings of a "
    'language model: `recipe = "5 window : 1 full"`.',
    "3 delta : 1 full": "Three layers keep a state by the delta rule, and the fourth all of the past: "
    '`recipe = "3 delta : 1 full"`.',
    "3 gated delta : 1 full": "Qwen3-Next: the same with states that decay as well: "
    '`recipe = "3 gated delta : 1 full"`.',
    "qk-norm": "Qwen3 and Gemma 3: each head's queries and keys are normed before they are rotated, so that a loud "
    "token is heard no more than others (here with fresh weights): `qk_norm = true`.",
    "gated output": "Qwen3-Next: what the heads give is multiplied by a gate σ(W x), feature by feature (here with "
    "fresh weights): `output_gate = true`.",
    "latent attention": "Multi-head latent attention (MLA): every head's keys and values are made of one latent of a "
    "token, which is all that the cache keeps (here with fresh weights): `kv_rank = 8` and `rotary_head = 4`.",
    "native sparse": "Native sparse attention (NSA): to one key of each block that was read, to the blocks that these "
    "weights choose, and to a window, added by gates (here with fresh weights): "
    '`attention_form = "NativeSparse(block=4, k=3, window=8)"`.',
    "inducing points": "Set Transformer: a few learned points attend to all tokens, and all tokens to these (here with "
    'fresh weights). In the settings of an encoder: `attention_form = "InducingPoints(8)"`.',
    "linformer": "Linformer: keys and values are mixed to a few before they are attended to (here with fresh weights): "
    '`attention_form = "Linformer(max_length=64, rank=8, heads=4)"`.',
}


def caption_for(name: str, lines: dict[str, str]) -> str:
    if name not in lines:
        raise ValueError(f"{name!r} has no caption; add its line to regard/see/gallery.py")
    return lines[name]


# --- the page ---


INTRODUCTION = """\
# The gallery

Every attention that has a name here, drawn by `regard gallery docs`. Each plot shows the mask (queries down, keys
across, blue = may attend) beside the weights the recipe gives on one fixed example, in which each query seeks a
position along a bent line. Under it stands the recipe as a file holds it. In Python a recipe is
`regard.attention.get_recipe("bigbird")`; any other is drawn by `regard draw "Causal() & Window(8)"`, and everything
here by its name, also what a layer adds: `regard draw "native sparse"`.

<img src="gallery/overview.png" width="{width}" alt="attention = score × position × pattern × normaliser">
"""

SECTIONS = {
    "score": "How well a query matches a key",
    "pattern": "Which query may attend to which key",
    "normaliser": "How scores become weights",
    "gate": "How the past is forgotten",
}
POSITION_SECTION = "Where a token is"
LAYER_SECTION = "What a layer adds, and recipes of several layers"


def gallery_page(
    recipes: dict[str, Recipe], positions: dict[str, Position], widths: dict[str, int], sizes: RecipeSizes
) -> str:
    page = [INTRODUCTION.format(width=widths["overview"] // 2), table_of_contents(recipes, positions)]
    for part, title in SECTIONS.items():
        page.append(f"## {title}")
        for name, recipe in recipes.items():
            if distinguishing_part(recipe) == part:
                alt = f"the mask of {name} attention, and its weights"
                page += [f"### {name}", caption_for(name, RECIPE_CAPTIONS), image_tag(slug(name), alt, widths)]
                page += [describe_mask(recipe, sizes), recipe_block(recipe)]
    page.append(f"## {LAYER_SECTION}")
    for name, caption in LAYER_CAPTIONS.items():
        page += [f"### {name}", caption, image_tag(slug(name), f"the weights of {name}", widths)]
    page.append(f"## {POSITION_SECTION}")
    for name, position in positions.items():
        page += [f"### {name} position", caption_for(name, POSITION_CAPTIONS)]
        if position != NoPosition():
            page.append(image_tag(f"position-{slug(name)}", f"{name} position", widths))
        page.append(f"```toml\nposition = {one_line_repr(position)!r}\n```")
    return "\n\n".join(text.strip() for text in page) + "\n"


def table_of_contents(recipes: dict[str, Recipe], positions: dict[str, Position]) -> str:
    lines = ["| | |", "| --- | --- |"]
    for part, title in SECTIONS.items():
        links = (f"[{name}](#{slug(name)})" for name, recipe in recipes.items() if distinguishing_part(recipe) == part)
        lines.append(f"| {title} | {' · '.join(links)} |")
    lines.append(f"| {LAYER_SECTION} | {' · '.join(f'[{name}](#{slug(name)})' for name in LAYER_CAPTIONS)} |")
    lines.append(f"| {POSITION_SECTION} | {' · '.join(f'[{name}](#{slug(name)}-position)' for name in positions)} |")
    return "\n".join(lines)


def distinguishing_part(recipe: Recipe) -> str:
    """The part for which a recipe is known."""
    if not isinstance(recipe.gate, NoGate):
        return "gate"
    if recipe.normaliser != Softmax():
        return "normaliser"
    return "pattern" if recipe.pattern != Full() else "score"


def image_tag(name: str, alt: str, widths: dict[str, int]) -> str:
    """Half as wide as it was drawn, so that it is sharp on every screen."""
    return f'<img src="gallery/{name}.png" width="{widths[name] // 2}" alt="{alt}">'


def describe_mask(recipe: Recipe, sizes: RecipeSizes) -> str:
    """What each row of the mask sees, in words."""
    content = is_content(recipe.pattern)
    visible = (
        example_steps(recipe, sizes.tokens).visible[0, 0] if content else mask(recipe.pattern, *[sizes.tokens] * 2)[0]
    )
    seen = visible.sum(1)
    least, most, share = int(seen.min()), int(seen.max()), float(seen.sum()) / sizes.tokens**2
    each = f"{most}" if least == most else f"{least} to {most}"
    keys = "key" if most == 1 else "keys"
    if content:
        return f"On this example each of {sizes.tokens} rows chooses {each} {keys}, {share:.0%} of all pairs."
    if recipe.pattern.depends_on_head:
        return f"In the first head, each of {sizes.tokens} rows sees {each} {keys}, {share:.0%} of all pairs."
    blocks = recipe.pattern.blocks(sizes.tokens, block=sizes.block).counts()
    empty = (
        f"; {blocks['empty']} of {sum(blocks.values())} blocks of {sizes.block} are empty" if blocks["empty"] else ""
    )
    return f"Each of {sizes.tokens} rows sees {each} {keys}, {share:.0%} of all pairs{empty}."


def recipe_block(recipe: Recipe) -> str:
    """The recipe as TOML; one that holds the data of a batch has none, and is shown by its parts."""
    if not any(isinstance(part, BatchPattern) for part in leaves(recipe.pattern)):
        return f"```toml\n{recipe.to_toml()}```"
    return f"It holds the data of one batch, so no file describes it:\n\n```text\n{one_line_repr(recipe)}\n```"


def slug(name: str) -> str:
    """As a file and as an anchor of a page: small letters, digits and hyphens."""
    return "".join(sign for sign in name.lower().replace(" ", "-") if sign.isalnum() or sign == "-")


# --- the overview ---


OVERVIEW_SCORES = ("scaled dot", "dot", "cosine", "luong general", "bahdanau", "linear")
OVERVIEW_POSITIONS = ("sinusoidal", "learned", "rotary", "alibi", "t5", "shaw")
OVERVIEW_PATTERNS = ("causal", "sliding window", "strided", "longformer", "bigbird", "documents")
OVERVIEW_NORMALISERS = ("scaled dot", "sparsemax", "top-k", "hard", "relu", "sigmoid")
TILE_TITLES = {"luong general": "general (Luong)", "bahdanau": "additive (Bahdanau)", "linear": "feature map"}

TILE, GAP, LEFT, TOP = 1.18, 0.2, 0.25, 0.95
ROW = TILE + 0.7


def draw_overview(sizes: RecipeSizes) -> Figure:
    """Learned parts get fresh weights, so seed torch beforehand."""
    rows = {
        "score": [
            weights_thumbnail(TILE_TITLES.get(name, name), get_recipe(name, sizes=sizes), sizes)
            for name in OVERVIEW_SCORES
        ],
        "position": [position_thumbnail(name, sizes) for name in OVERVIEW_POSITIONS],
        "pattern": [mask_thumbnail(name, get_recipe(name, sizes=sizes), sizes) for name in OVERVIEW_PATTERNS],
        "normaliser": [
            weights_thumbnail("softmax" if name == "scaled dot" else name, get_recipe(name, sizes=sizes), sizes)
            for name in OVERVIEW_NORMALISERS
        ],
    }
    figure = Figure(figsize=(LEFT + 6 * (TILE + GAP) + 4.05, TOP + 4 * ROW - 0.05), facecolor=PAPER, dpi=128)
    wide, high = figure.get_size_inches()
    heading = "attention  =  score  ×  position  ×  pattern  ×  normaliser"
    figure.text(LEFT / wide, 1 - 0.25 / high, heading, fontsize=17, family=PLAIN_FONTS, va="top")
    for r, (part, tiles) in enumerate(rows.items()):
        y = TOP + r * ROW
        draw_text_line(figure, TextLine(part, LEFT, y - 0.12, "heading"))
        for t, tile in enumerate(tiles):
            draw_tile(figure, tile, LEFT + t * (TILE + GAP), y + 0.34, TILE, TILE)
    x = LEFT + 6 * (TILE + GAP) + 0.85
    aligned, english, french = black_cat()
    draw_titled_panel(
        figure, "French attends to English", weights_panel(aligned.weights, english, french), x, TOP + 0.42, cell=0.44
    )
    ahead = next(worked for worked in EXAMPLES if worked.name == "look-ahead mask")
    tokens = ("<start>", "I", "am", "fine")
    seen = steps(*ahead.qkv(), ahead.recipe)
    panel = replace(weights_panel(seen.weights, tokens, tokens), visible=seen.visible[0, 0])
    draw_titled_panel(figure, "a language model is causal", panel, x, TOP + 4 * ROW - 0.36 - 4 * 0.55, cell=0.55)
    return figure


# --- tiles: thumbnails without numbers ---


def weights_thumbnail(title: str, recipe: Recipe, sizes: RecipeSizes) -> Panel:
    seen = example_steps(recipe, sizes.tokens)
    weights = seen.weights[0, 0].double()
    return Panel(title, weights, ColourScale.robust_of_rows(weights), seen.visible[0, 0])


def mask_thumbnail(title: str, recipe: Recipe, sizes: RecipeSizes) -> Panel:
    return Panel(title, mask(recipe.pattern, sizes.tokens, sizes.tokens)[0], ColourScale("mask"))


def position_thumbnail(name: str, sizes: RecipeSizes) -> Panel:
    """The first panel of a scheme."""
    panel = position_view(POSITIONS[name](sizes)).panels()[0]
    assert isinstance(panel, Panel)
    return replace(panel, title=name)


def draw_tile(figure: Figure, panel: Panel, x: float, y: float, width: float, height: float) -> None:
    wide, high = figure.get_size_inches()
    axes = add_axes_at(figure, x, y, width, height)
    blank = replace(panel, down=Axis(""), across=Axis("feature"))
    draw_matrix(axes, blank, width / panel.values.shape[1])
    axes.set(xticks=[], yticks=[], xlabel="", ylabel="")
    figure.text(x / wide, 1 - (y - 0.05) / high, panel.title, fontsize=8, family=PLAIN_FONTS, color=MUTED, va="bottom")


# --- layers ---


def draw_layers(name: str, sizes: RecipeSizes) -> Figure:
    """The first head of each layer of a period, or of each attention of a layer with fresh weights."""
    panels = layer_panels(name, sizes)
    figure = Figure(figsize=(LEFT + len(panels) * (TILE + GAP), TILE + 0.75), facecolor=PAPER, dpi=128)
    for n, panel in enumerate(panels):
        rows, columns = panel.values.shape
        most = max(rows, columns)
        draw_tile(figure, panel, LEFT + n * (TILE + GAP), 0.4, TILE * columns / most, TILE * rows / most)
    return figure


LAYERS: dict[str, Callable[[RecipeSizes], MultiHeadAttention]] = {
    "qk-norm": lambda n: gallery_layer(n, options=LayerOptions(head_norm=RMSNorm)),
    "gated output": lambda n: gallery_layer(n, options=LayerOptions(output_gate=Linear)),
    "latent attention": lambda n: gallery_layer(n, form=LatentKV(rank=n.head, rotary=n.head // 2)),
    "native sparse": lambda n: gallery_layer(n, form=NativeSparse(block=n.block, k=3, window=n.window)),
    "inducing points": lambda n: gallery_layer(n, Recipe(), form=InducingPoints(n.window)),
    "linformer": lambda n: gallery_layer(n, Recipe(), form=Linformer(n.tokens, n.window, n.heads)),
}
SITE_TITLES = {
    "attention": "first head",
    "points": "points attend",
    "compressed": "to blocks",
    "chosen": "to chosen",
}


def gallery_layer(
    n: RecipeSizes, recipe: Recipe = Recipe(position=Rotary(fraction=0.5), pattern=Causal()), **given: Any
) -> MultiHeadAttention:
    return MultiHeadAttention(n.heads * n.head, heads=n.heads, recipe=recipe, **given)


def form_layer(text: str, sizes: RecipeSizes) -> MultiHeadAttention:
    """A layer of the form that a text describes, such as "NativeSparse(block=4)"."""
    form = read_form(text)
    if isinstance(form, InducingPoints | Linformer):  # which stand in no order
        return gallery_layer(sizes, Recipe(), form=form)
    return gallery_layer(sizes, form=form)


def is_layer_name(text: str) -> bool:
    """Layers of the gallery, or a form with its sizes?"""
    return text in LAYER_CAPTIONS or text.partition("(")[0].strip() in LAYER_FORMS


def layers_view(name: str, sizes: RecipeSizes) -> View:
    """The same to be read: with axes, and in a terminal."""
    caption = LAYER_CAPTIONS.get(name, f"A layer with fresh weights: `attention_form = {name!r}`.")
    return View((PanelRow(tuple(layer_panels(name, sizes))),), title=name, notes=(("", caption),))


def layer_panels(name: str, sizes: RecipeSizes) -> list[Panel]:
    if name in LAYER_RECIPES:
        period = LAYER_RECIPES[name](sizes)
        return [weights_thumbnail(f"layer {n}", recipe, sizes) for n, recipe in enumerate(period, 1)]
    layer = LAYERS[name](sizes) if name in LAYERS else form_layer(name, sizes)
    x = 2 * Sinusoidal().table(torch.arange(sizes.tokens), sizes.heads * sizes.head)[None].float()
    if layer.query_norm is None:
        return [*attention_panels(layer, x), *gate_panels(layer, x)]
    x[:, sizes.tokens // 4] *= 8
    plain = gallery_layer(sizes)
    plain.load_state_dict(layer.state_dict(), strict=False)
    titled = zip(("one token is loud", "normed"), (plain, layer), strict=True)
    return [replace(attention_panels(one, x)[0], title=title) for title, one in titled]


def attention_panels(layer: MultiHeadAttention, x: Tensor) -> list[Panel]:
    """The first head of each attention of a layer; none of one to blocks, where no block is whole."""
    with torch.no_grad(), record_attention(layer) as record:
        layer(x)
    seen = {site.name: record.steps(site.name)[0] for site in record.sites}
    titles = SITE_TITLES | ({"attention": "tokens attend"} if "points" in seen else {})
    maps = {titles.get(name, name): (one.weights[0, 0].double(), one.visible[0, 0]) for name, one in seen.items()}
    return [Panel(title, *shaded(weights), visible) for title, (weights, visible) in maps.items() if weights.numel()]


def gate_panels(layer: MultiHeadAttention, x: Tensor) -> list[Panel]:
    """The gate on the first head's output: a row for each token, a column for each feature."""
    if layer.output_gate is None:
        return []
    with torch.no_grad():
        gate = layer.output_gate(x).sigmoid()[0].double()
    return [Panel("its gate", *shaded(gate[:, : gate.shape[1] // layer.heads]))]


def shaded(values: Tensor) -> tuple[Tensor, ColourScale]:
    return values, ColourScale.robust_of_rows(values)


# --- two panels to be read ---


def weights_panel(
    weights: torch.Tensor, tokens: list[str] | tuple[str, ...], queries: list[str] | tuple[str, ...]
) -> Panel:
    panel = weights_view(weights, tokens=tokens, queries=queries).panels()[0]
    assert isinstance(panel, Panel)
    return replace(panel, down=replace(panel.down, name=""), across=replace(panel.across, name=""))


def draw_titled_panel(figure: Figure, title: str, panel: Panel, x: float, y: float, *, cell: float) -> None:
    rows, columns = panel.values.shape
    axes = add_axes_at(figure, x, y, cell * columns, cell * rows)
    draw_matrix(axes, panel, cell)
    draw_text_line(figure, TextLine(title, x, y - 0.54, "heading"))


# --- all of it ---


Result = TypeVar("Result")

SIZES = RecipeSizes(heads=4, head=8, tokens=64, window=8, block=4)
COLOURS = 160  # enough for a smooth ramp and its text; keeps a file small


def write_gallery(folder: str | Path) -> Path:
    """Writes folder/gallery.md and its images; returns the path of the page."""
    folder = Path(folder)
    pictures: dict[str, Callable[[], Figure]] = {"overview": lambda: draw_overview(SIZES)}
    makers = RECIPES | GATED_RECIPES | CONTENT_RECIPES
    recipes = {name: with_seed(lambda make=make: make(SIZES, NoPosition())) for name, make in makers.items()}
    positions = {name: with_seed(lambda make=make: make(SIZES)) for name, make in POSITIONS.items()}
    for name, recipe in recipes.items():
        pictures[slug(name)] = lambda recipe=recipe: draw_view(
            replace(recipe_view(recipe, tokens=SIZES.tokens), notes=())
        )
    for name, position in positions.items():
        if position != NoPosition():
            pictures[f"position-{slug(name)}"] = lambda position=position: draw_view(position_view(position))
    for name in LAYER_CAPTIONS:
        pictures[slug(name)] = lambda name=name: draw_layers(name, SIZES)
    widths = {}
    for name, make in track(pictures.items(), "drawing the gallery", console=Console(stderr=True)):
        widths[name] = save_small_png(with_seed(make), folder / "gallery" / f"{name}.png")

    page = folder / "gallery.md"
    page.write_text(gallery_page(recipes, positions, widths, SIZES), encoding="utf-8")
    return page


def with_seed(build: Callable[[], Result]) -> Result:
    """Builds with the same random weights every time, and leaves torch's global random state alone."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return build()


def save_small_png(figure: Figure, path: Path) -> int:
    """Saves a figure as a small PNG; returns its width in pixels."""
    save(figure, path)
    picture = Image.open(BytesIO(path.read_bytes())).convert("RGB")
    small = picture.quantize(COLOURS, method=Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE)
    small.save(path, optimize=True)
    return picture.width


# --- the lecture ---


LONG_TOKENS = 16_384


NEXT_COMMANDS = {
    'regard draw "Causal() & Window(4)"': "any pattern, as text",
    'regard draw "Block(4, Window(2) | Global(1))"': "patterns combine",
    "regard draw rotary --save out/rotary.svg": "positions, as a picture",
    "regard draw sparsemax --save out/sparsemax.pdf": "named recipes",
    "regard explain bigbird --tokens 65536": "who runs a recipe, and why",
}


def print_lecture(console: Console, folder: Path) -> None:
    print_worked_example(console)
    print_causal_mask(console)
    print_block_sparsity(console)
    console.print(Rule("4. Every named attention", align="left"))
    page = write_gallery(folder)
    console.print(Text(f"The gallery is {page}, its contact sheet {page.parent / 'gallery' / 'overview.png'}.\n"))
    console.print(Rule("What to try next", align="left"))
    console.print(Text("  source .venv/bin/activate", "bold"))
    for command, does in NEXT_COMMANDS.items():
        console.print(Text.assemble("  ", (f"{command:<49}", "bold"), does))


def print_worked_example(console: Console) -> None:
    """x, q, k, v, scores, weights and outputs of the second lecture, 3 tokens of width 4."""
    plain, scaled = (example(f"self-attention, {name}") for name in ("unscaled", "scaled"))
    seen, unscaled = (steps(*case.qkv(), case.recipe) for case in (scaled, plain))
    console.print(Rule("1. Self-attention by hand (second lecture)", align="left"))
    console.print("Three tokens x, times three matrices, give each a query, a key and a value.")
    x, q, k, v = (catalogue.tensor(m) for m in (catalogue.X, catalogue.Q, catalogue.K, catalogue.V))
    console.print(Columns([matrix("x", x), matrix("q = x Wq", q), matrix("k = x Wk", k), matrix("v = x Wv", v)]))
    console.print("Each query meets each key. Scaled by √d, each row becomes weights of sum 1.")
    tables = [
        matrix("scores q kᵀ", unscaled.scores[0, 0]),
        matrix("scaled q kᵀ / √d", seen.scores[0, 0], 4),
        matrix("weights", seen.weights[0, 0], 4),
        matrix("output = weights v", seen.output[0, 0], 4),
    ]
    console.print(Columns(tables))
    console.print("The first token's output, scaled and unscaled:")
    for case, output in ((scaled, seen.output), (plain, unscaled.output)):
        console.print(Text(f"  {row(output[0, 0, 0])}  {agreement_mark(case, output)}"), soft_wrap=True)
    console.print()


def print_causal_mask(console: Console) -> None:
    case, tokens = example("look-ahead mask"), ("<start>", "I", "am", "fine")
    seen = steps(*case.qkv(), case.recipe)
    console.print(Rule("2. The look-ahead mask: ■ may look, · is hidden", align="left"))
    masked = ascii(case.recipe.pattern, tokens=tokens)
    weights = ascii(seen.weights, tokens=tokens, visible=seen.visible, numbers=True)
    console.print(Columns([Box(Text(masked), title="Causal()"), Box(Text(weights), title="weights")]))
    console.print(Text(f"  {agreement_mark(case, seen.output)}\n"), soft_wrap=True)


def print_block_sparsity(console: Console) -> None:
    recipe = Recipe(pattern=Causal() & Window(512))
    blocks = recipe.pattern.blocks(LONG_TOKENS, block=128)
    console.print(Rule(f"3. {recipe.pattern} on {LONG_TOKENS:,} tokens", align="left"))
    console.print(f"Of {len(blocks.rows) ** 2:,} blocks {blocks.counts()['empty']:,} are empty and are never computed.")
    console.print(Text(str(explain(recipe, torch.zeros(1, 8, LONG_TOKENS, 64)))), soft_wrap=True)
    console.print()


# --- how numbers are shown ---


def example(name: str) -> WorkedExample:
    return next(case for case in EXAMPLES if case.name == name)


def matrix(title: str, values: Tensor, digits: int = 0) -> Table:
    table = Table(title=title, show_header=False, title_justify="left", title_style="bold", border_style="dim")
    for line in values.tolist():
        table.add_row(*(f"{x:.{digits}f}" for x in line))
    return table


def row(values: Tensor) -> str:
    return "  ".join(f"{x:.4f}" for x in values.tolist())


def agreement_mark(case: WorkedExample, output: Tensor) -> str:
    """Do our numbers round to the printed ones?"""
    agrees = torch.allclose(output[0, 0], catalogue.tensor(case.output), rtol=0, atol=0.51 * 10**-case.digits)
    return f"{'✓' if agrees else '✗ not the numbers of'} {case.source}"
