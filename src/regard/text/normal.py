"""A sentence as it was typed in; the sentence as a tokeniser shall see it out. Every change is the caller's choice."""

import unicodedata
from dataclasses import dataclass
from typing import Literal, get_args

from regard.text.files import half
from regard.text.words import LANGUAGES, join, split

Form = Literal["NFC", "NFD", "NFKC", "NFKD"]
FORMS = get_args(Form)


@dataclass(frozen=True)
class Normal:
    """What is done to a text before it is cut. It is saved with the tokeniser, so that a model always reads alike.

    form      a Unicode form: "NFC" makes one é of e and its accent; "NFKC" also makes fi of ﬁ
    lower     lower case
    squeeze   blanks at the ends go, and a run of them becomes one
    language  punctuation becomes words of its own (see words.py): "en", "de" or "fr"
    """

    form: Form | None = None
    lower: bool = False
    squeeze: bool = False
    language: str | None = None

    def __post_init__(self):
        if self.form is not None and self.form not in FORMS:
            raise ValueError(f"form={self.form!r} is no Unicode form; choose from {', '.join(FORMS)} or None")
        if self.language is not None and self.language not in LANGUAGES:
            raise ValueError(f"language={self.language!r} is not known; choose from {', '.join(LANGUAGES)} or None")
        if not isinstance(self.lower, bool) or not isinstance(self.squeeze, bool):
            raise ValueError(f"lower={self.lower!r} and squeeze={self.squeeze!r} must be True or False")

    def apply(self, text: str) -> str:
        if at := half(text):
            raise ValueError(f"character {at} of {text!r} is half of a surrogate pair; remove it")
        text = unicodedata.normalize(self.form, text) if self.form else text
        text = " ".join(text.split()) if self.squeeze else text
        # Before lower case: a capital letter helps to tell the end of a sentence from an abbreviation.
        text = split(text, self.language) if self.language else text
        text = text.lower() if self.lower else text
        return unicodedata.normalize(self.form, text) if self.form else text

    def restore(self, text: str) -> str:
        """What a model wrote, as people write it: punctuation returns to its word. Capitals do not return."""
        return join(text, self.language) if self.language else text
