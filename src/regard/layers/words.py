"""Word numbers to vectors, and vectors to a score for every word. A tie makes several of these tables one."""

import torch
from einops import rearrange
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.functional import embedding, linear

from regard.layers.agreeing_loss import agreeing_loss
from regard.layers.vocabulary_loss import vocabulary_loss

TIES = {
    "none": "three tables: source, target, output",
    "target": "the output uses the target's table",
    "all": "one table for all three; the two vocabularies are one",
}


class Table(nn.Module):
    """One vector per word, scaled by √width where words are read (Vaswani et al. 2017, 3.4), so that a table that
    starts small enough to give scores still gives vectors of size 1."""

    def __init__(self, size: int, width: int):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(size, width) * width**-0.5)

    def read(self, words: Int[Tensor, "b t"]) -> Float[Tensor, "b t width"]:
        return embedding(words, self.weight) * self.weight.shape[1] ** 0.5

    def score(self, x: Float[Tensor, "b t width"], bias: Float[Tensor, " size"]) -> Float[Tensor, "b t size"]:
        return linear(x, self.weight, bias)

    def cost(
        self,
        x: Float[Tensor, "b t width"],
        bias: Float[Tensor, " size"],
        wanted: Int[Tensor, "b t"],
        *,
        smoothing: float,
        ignored: int,
        consistency: float | None = None,
    ) -> Float[Tensor, ""]:
        """The summed cross-entropy of these scores, which never all stand side by side.

        With a consistency, the second half of the states are the first half's words in another pass, and must agree.
        """
        states, words = rearrange(x, "b t width -> (b t) width"), rearrange(wanted, "b t -> (b t)")
        if consistency is None:
            return vocabulary_loss(states, self.weight, bias, words, smoothing=smoothing, ignored=ignored)
        return agreeing_loss(states, self.weight, bias, words, weight=consistency, smoothing=smoothing, ignored=ignored)


class Words(nn.Module):
    """The tables of a translation model; each is registered once, so nothing is stored twice.

    Args:
        source, target: the sizes of the two vocabularies.
        width: of the word vectors.
        tie: which tables are one: see TIES.
        output: the width of what words are predicted from, if it is not `width`.
    """

    def __init__(self, source: int, target: int, width: int, *, tie: str = "none", output: int | None = None):
        super().__init__()
        if tie not in TIES:
            raise ValueError(f"no tie is called {tie!r}; there are {', '.join(TIES)}")
        if tie == "all" and source != target:
            raise ValueError(
                f"one table cannot serve {source} source and {target} target words; "
                "use one joint vocabulary, or tie = 'target'"
            )
        if tie != "none" and output not in (None, width):
            raise ValueError(
                f"word vectors of width {width} cannot score states of width {output}; make the two widths one, "
                "or use tie = 'none'"
            )
        self.tables = nn.ModuleDict({"target": Table(target, width)})
        if tie != "all":
            self.tables["source"] = Table(source, width)
        if tie == "none":
            self.tables["output"] = Table(target, output or width)
        self.bias = nn.Parameter(torch.zeros(target))
        self.width = width

    def table(self, name: str) -> Table:
        table = self.tables[name if name in self.tables else "target"]
        assert isinstance(table, Table)
        return table

    def source(self, words: Int[Tensor, "b s"]) -> Float[Tensor, "b s width"]:
        return self.table("source").read(words)

    def target(self, words: Int[Tensor, "b t"]) -> Float[Tensor, "b t width"]:
        return self.table("target").read(words)

    def logits(self, x: Float[Tensor, "b t output"]) -> Float[Tensor, "b t v"]:
        return self.table("output").score(x, self.bias)
