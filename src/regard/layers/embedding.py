"""Embeddings: token ids to vectors and vectors to logits, with tied tables for translation; and positions added."""

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.functional import embedding, linear

from regard.attention import DependencyTree, Recipe
from regard.attention.parts import find_named, learned_modules

X = Float[Tensor, "b t model"]
SCALES = {
    "input": "embeddings × √width (Vaswani et al. 2017, 3.4)",
    "output": "states / √width before the logits (Raffel et al. 2020)",
    "none": "neither",
}
TIES = {
    "none": {"target", "source", "output"},
    "target": {"target", "source"},
    "input": {"target", "output"},
    "all": {"target"},
}
"""The tables of a translator's embeddings; source and output use the target's where they have none of their own.
`ModelConfig.tie` takes a name.

Examples:
    >>> {tie: len(TiedEmbeddings(7, 7, 4, tie=tie).tables) for tie in TIES}
    {'none': 3, 'target': 2, 'input': 2, 'all': 1}
"""


class Embedding(nn.Module):
    """One vector per token, scaled by √width where tokens are embedded (Vaswani et al. 2017, 3.4), so that a table that
    starts small enough to give logits still gives vectors of size 1.

    Args:
        scaled: False leaves the scale out, as BERT, GPT-2 and their successors do.

    Examples:
        >>> embedding = Embedding(size=11, width=4)
        >>> embedding.embed(torch.tensor([[5, 6, 2]])).shape
        torch.Size([1, 3, 4])
        >>> embedding.logits(torch.randn(1, 3, 4), torch.zeros(11)).shape
        torch.Size([1, 3, 11])
    """

    def __init__(self, size: int, width: int, *, scaled: bool = True):
        super().__init__()
        self.weight, self.scaled = nn.Parameter(torch.randn(size, width) * width**-0.5), scaled
        self.projection: nn.Module | None = None  # gives the logits instead of the weight, where inference is prepared

    def embed(self, tokens: Int[Tensor, "*batch"]) -> Float[Tensor, "*batch width"]:
        found = embedding(tokens, self.weight)
        return found * self.weight.shape[1] ** 0.5 if self.scaled else found

    def logits(self, x: Float[Tensor, "*batch width"], bias: Float[Tensor, " size"]) -> Float[Tensor, "*batch size"]:
        return linear(x, self.weight, bias) if self.projection is None else self.projection(x)


class TiedEmbeddings(nn.Module):
    """The embeddings of a translation model; each table is registered once, so nothing is stored twice.

    Args:
        source, target: the sizes of the two vocabularies.
        width: of the embeddings.
        tie: which tables are one: see TIES.
        output: the width of the states that logits are computed from, if it is not `width`.
        scale: where √width comes in: see SCALES.
        bias: whether the logits' bias is learned.

    Examples:
        >>> embeddings = TiedEmbeddings(source=11, target=13, width=8, tie="target")
        >>> embeddings.embed_source(torch.tensor([[5, 6, 2]])).shape
        torch.Size([1, 3, 8])
        >>> embeddings.table("output") is embeddings.table("target")
        True
    """

    def __init__(
        self,
        source: int,
        target: int,
        width: int,
        *,
        tie: str = "none",
        output: int | None = None,
        scale: str = "input",
        bias: bool = True,
    ):
        super().__init__()
        find_named(scale, SCALES, "scale of embeddings")
        own = find_named(tie, TIES, "tie")
        if "source" not in own and source != target:
            raise ValueError(
                f"tie = {tie!r} needs one vocabulary, not {source} source and {target} target tokens; "
                "use one joint vocabulary, or tie = 'target'"
            )
        if "output" not in own and output not in (None, width):
            raise ValueError(
                f"embeddings of width {width} cannot score states of width {output}; make the two widths equal, "
                "or use tie = 'none'"
            )
        sizes = {"target": (target, width), "source": (source, width), "output": (target, output or width)}
        self.tables = nn.ModuleDict(
            {name: Embedding(*size, scaled=scale == "input") for name, size in sizes.items() if name in own}
        )
        self.bias = nn.Parameter(torch.zeros(target), requires_grad=bias)
        self.width, self.scale = width, scale

    def table(self, name: str) -> Embedding:
        table = self.tables[name if name in self.tables else "target"]
        assert isinstance(table, Embedding)
        return table

    def embed_source(self, tokens: Int[Tensor, "*batch"]) -> Float[Tensor, "*batch width"]:
        return self.table("source").embed(tokens)

    def embed_target(self, tokens: Int[Tensor, "*batch"]) -> Float[Tensor, "*batch width"]:
        return self.table("target").embed(tokens)

    def scale_output(self, x: Float[Tensor, "*batch output"]) -> Float[Tensor, "*batch output"]:
        """The states that logits are computed from."""
        return x * x.shape[-1] ** -0.5 if self.scale == "output" else x


class PositionalEmbedding(nn.Module):
    """Adds positions to embeddings, as the recipe says; holds the weights of learned ones."""

    def __init__(self, recipe: Recipe):
        super().__init__()
        self.recipe = recipe
        self.learned = nn.ModuleList(
            x for part in recipe.embedding_positions for x in learned_modules(part, "position").values()
        )

    def forward(self, x: X, positions: int | Int[Tensor, "b t"], tree: DependencyTree | None = None) -> X:
        """Positions from the first on, or of each token."""
        recipe = self.recipe if tree is None else self.recipe.with_tree(tree=tree)
        if not isinstance(positions, Tensor):  # an int, or a symbol of one while the model is exported
            return recipe.embed(x, torch.arange(positions, positions + x.shape[1], device=x.device))
        for scheme in recipe.embedding_positions:  # each position's vector is computed once, not once a token
            every = scheme.table(torch.arange(x.shape[1], device=x.device), x.shape[-1]).to(x.dtype)
            x = x + embedding(positions, every)
        return x

    def table(self, length: int, like: Float[Tensor, "size width"]) -> Float[Tensor, "length width"]:
        """The sum of all schemes' vectors for so many positions, in the precision of sums."""
        at, wide = torch.arange(length, device=like.device), torch.promote_types(like.dtype, torch.float32)
        none = torch.zeros((length, like.shape[1]), dtype=wide, device=like.device)
        return sum((scheme.table(at, like.shape[1]).to(wide) for scheme in self.recipe.embedding_positions), none)
