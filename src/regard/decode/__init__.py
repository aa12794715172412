"""Decoding: greedy search, sampling, beam search, scoring and word alignment with a trained model."""

from regard.decode.alignment import (
    AlignmentCounts,
    AlignmentHead,
    AnnotatedPair,
    CrossAttentionMaps,
    aer,
    all_heads,
    argmax_links,
    argmax_links_or_null,
    average_heads,
    choose_head,
    choose_heads,
    count_links,
    cross_attention_maps,
    evaluate_heads,
    merge_subwords,
    perplexity,
    score,
    score_targets,
)
from regard.decode.beam import Beam
from regard.decode.document_translation import translate_document
from regard.decode.quantize import is_prepared, prepare
from regard.decode.search import Constraints, Hypothesis, LengthLimit, Search, translate
from regard.decode.stepwise import Greedy, Sampling, stream
from regard.decode.translation import SentenceTranslator, translate_all, translate_as_found

__all__ = [
    "AlignmentCounts",
    "AlignmentHead",
    "AnnotatedPair",
    "Beam",
    "Constraints",
    "CrossAttentionMaps",
    "Greedy",
    "Hypothesis",
    "LengthLimit",
    "Sampling",
    "Search",
    "SentenceTranslator",
    "aer",
    "all_heads",
    "argmax_links",
    "argmax_links_or_null",
    "average_heads",
    "choose_head",
    "choose_heads",
    "count_links",
    "cross_attention_maps",
    "evaluate_heads",
    "is_prepared",
    "merge_subwords",
    "perplexity",
    "prepare",
    "score",
    "score_targets",
    "stream",
    "translate",
    "translate_all",
    "translate_as_found",
    "translate_document",
]
