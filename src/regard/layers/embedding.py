"""Embeddings: token ids to vectors and vectors to logits, with tied tables for translation."""

import torch
from einops import rearrange
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.functional import embedding, linear

from regard.ops.linear_cross_entropy import linear_cross_entropy
from regard.ops.rdrop_loss import rdrop_loss

TIES = {
    "none": "three tables: source, target, output",
    "target": "the output uses the target's table",
    "all": "one table for all three; the two vocabularies are one",
}


class Embedding(nn.Module):
    """One vector per token, scaled by √width where tokens are embedded (Vaswani et al. 2017, 3.4), so that a table that
    starts small enough to give logits still gives vectors of size 1."""

    def __init__(self, size: int, width: int):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(size, width) * width**-0.5)
        self.projection: nn.Module | None = None  # gives the logits instead of the weight, where inference is prepared

    def embed(self, tokens: Int[Tensor, "*batch"]) -> Float[Tensor, "*batch width"]:
        return embedding(tokens, self.weight) * self.weight.shape[1] ** 0.5

    def logits(self, x: Float[Tensor, "*batch width"], bias: Float[Tensor, " size"]) -> Float[Tensor, "*batch size"]:
        return linear(x, self.weight, bias) if self.projection is None else self.projection(x)

    def loss(
        self,
        x: Float[Tensor, "*batch width"],
        bias: Float[Tensor, " size"],
        targets: Int[Tensor, "*batch"],
        *,
        smoothing: float,
        ignore_index: int,
        rdrop: float | None = None,
    ) -> Float[Tensor, ""]:
        """The summed cross-entropy of the logits, which are never all in memory.

        With `rdrop`, the second half of the states are the first half's tokens in another pass (see `rdrop_loss`).
        """
        states, tokens = rearrange(x, "b t width -> (b t) width"), rearrange(targets, "b t -> (b t)")
        if rdrop is None:
            return linear_cross_entropy(
                states, self.weight, bias, tokens, smoothing=smoothing, ignore_index=ignore_index
            )
        return rdrop_loss(
            states, self.weight, bias, tokens, weight=rdrop, smoothing=smoothing, ignore_index=ignore_index
        )


class TiedEmbeddings(nn.Module):
    """The embeddings of a translation model; each table is registered once, so nothing is stored twice.

    Args:
        source, target: the sizes of the two vocabularies.
        width: of the embeddings.
        tie: which tables are one: see TIES.
        output: the width of the states that logits are computed from, if it is not `width`.
    """

    def __init__(self, source: int, target: int, width: int, *, tie: str = "none", output: int | None = None):
        super().__init__()
        if tie not in TIES:
            raise ValueError(f"no tie is called {tie!r}; there are {', '.join(TIES)}")
        if tie == "all" and source != target:
            raise ValueError(
                f"tie = 'all' needs one vocabulary, not {source} source and {target} target tokens; "
                "use one joint vocabulary, or tie = 'target'"
            )
        if tie != "none" and output not in (None, width):
            raise ValueError(
                f"embeddings of width {width} cannot score states of width {output}; make the two widths equal, "
                "or use tie = 'none'"
            )
        self.tables = nn.ModuleDict({"target": Embedding(target, width)})
        if tie != "all":
            self.tables["source"] = Embedding(source, width)
        if tie == "none":
            self.tables["output"] = Embedding(target, output or width)
        self.bias = nn.Parameter(torch.zeros(target))
        self.width = width

    def table(self, name: str) -> Embedding:
        table = self.tables[name if name in self.tables else "target"]
        assert isinstance(table, Embedding)
        return table

    def embed_source(self, tokens: Int[Tensor, "*batch"]) -> Float[Tensor, "*batch width"]:
        return self.table("source").embed(tokens)

    def embed_target(self, tokens: Int[Tensor, "*batch"]) -> Float[Tensor, "*batch width"]:
        return self.table("target").embed(tokens)

    def logits(self, x: Float[Tensor, "*batch output"]) -> Float[Tensor, "*batch v"]:
        return self.table("output").logits(x, self.bias)
