"""Laws are tried on the same examples every time, and without a clock: the first example may train a tokeniser."""

from hypothesis import settings

settings.register_profile("text", max_examples=100, deadline=None, derandomize=True)
settings.load_profile("text")
