"""Decoding: a trained model and sources in; translations with their exact scores, and alignments, out."""

from regard.decode.agreement import Agreement, Annotated, aer, agreement, agreement_of, choose_head, choose_heads
from regard.decode.alignment import Head, all_heads, hard, hard_or_none, merge, mixture
from regard.decode.beam import Beam
from regard.decode.force import Attention, forced, looked, perplexity, score
from regard.decode.greedy import Greedy
from regard.decode.hypothesis import Hypothesis
from regard.decode.limits import Allowed, Longest
from regard.decode.ready import Ready, prepare
from regard.decode.sample import Sample
from regard.decode.search import Search
from regard.decode.translate import in_turn, stream, translate, translate_all
