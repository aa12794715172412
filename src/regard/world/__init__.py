"""A miniature world: one synchronous grammar gives English sentences, their French and German, and all about them."""

from regard.world.lecture import LECTURE, known
from regard.world.lexicon import READINGS, SPLITS, Split, split_of
from regard.world.sentence import LANGUAGES, Ambiguity, Rendering, Renderings, Sentence
from regard.world.world import World, pairs
