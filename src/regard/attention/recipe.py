"""attention = score × position × pattern × normaliser. A recipe is a value: print it, compare it, take it apart."""

from dataclasses import dataclass, fields, replace

from torch import Tensor, nn

from regard.attention import parts
from regard.attention.normaliser import Normaliser, Softmax
from regard.attention.notation import read, read_toml, write
from regard.attention.pattern import Full, Pattern
from regard.attention.position import Beside, Inside, NoPosition, OnScore, Position
from regard.attention.relative import RelativeVectors
from regard.attention.score import InnerProduct, ScaledDot, Score
from regard.attention.tree import Tree


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """The four parts. The default is the Transformer's: softmax(q kᵀ / √d) v, everybody sees everybody."""

    score: Score = ScaledDot()
    position: Position = NoPosition()
    pattern: Pattern = Full()
    normaliser: Normaliser = Softmax()

    def __post_init__(self):
        kinds = {"score": Score, "position": Position, "pattern": Pattern, "normaliser": Normaliser}
        for name, kind in kinds.items():
            if not isinstance(getattr(self, name), kind):
                raise ValueError(f"{name} must be a {kind.__name__}, not {getattr(self, name)!r}")
        if not isinstance(self.score, InnerProduct) and any(isinstance(p, RelativeVectors) for p in self.on_score):
            raise ValueError(f"RelativeVectors add to the keys of an inner product, which {self.score!r} is not")

    @property
    def beside(self) -> tuple[Beside, ...]:
        """The schemes a model adds to its embeddings; attention itself never sees them."""
        return tuple(part for part in self.position.parts() if isinstance(part, Beside))

    @property
    def inside(self) -> tuple[Inside, ...]:
        return tuple(part for part in self.position.parts() if isinstance(part, Inside))

    @property
    def on_score(self) -> tuple[OnScore, ...]:
        return tuple(part for part in self.position.parts() if isinstance(part, OnScore))

    def embed(self, x: Tensor, at: Tensor) -> Tensor:
        """Token vectors with their places added, as a model does once before its first layer."""
        for scheme in self.beside:
            x = scheme.embed(x, at)
        return x

    def given(self, *, tree: Tree) -> "Recipe":
        """This recipe, told the dependency trees of one batch."""
        return replace(self, position=self.position.given(tree))

    def while_training(self) -> "Recipe":
        """This recipe with its normaliser's training form: hard attention samples."""
        return replace(self, normaliser=self.normaliser.while_training())

    def learned(self) -> nn.ModuleDict:
        """The parts with weights that attention itself uses, and those within other parts, for a layer to register."""
        used = {"score": self.score} | {f"position{n}": part for n, part in enumerate(self.on_score)}
        used |= {f"inside{n}": part for n, part in enumerate(self.inside)}
        used |= {"pattern": self.pattern, "normaliser": self.normaliser}
        found = (parts.learned(part, name) for name, part in used.items())
        return nn.ModuleDict({way: module for each in found for way, module in each.items()})

    def to_toml(self) -> str:
        """Four lines of TOML. Learned parts are described, not stored: their weights travel as safetensors."""
        return "".join(f"{field.name} = {write(getattr(self, field.name))!r}\n" for field in fields(self))

    @staticmethod
    def from_toml(text: str) -> "Recipe":
        """The recipe a file describes; missing lines mean the default. Learned parts come with fresh weights."""
        lines = read_toml(text)
        names = [field.name for field in fields(Recipe)]
        if unknown := [line for line in lines if line not in names]:
            raise ValueError(f"a recipe has no {unknown[0]!r}; it has {', '.join(names)}")
        return Recipe(**{name: read(part) for name, part in lines.items()})

    def fresh(self) -> "Recipe":
        """The same recipe with weights of its own, so that layers built from one recipe do not share them."""
        position, score, pattern, normaliser = parts.fresh((self.position, self.score, self.pattern, self.normaliser))
        return Recipe(score=score, position=position, pattern=pattern, normaliser=normaliser)
