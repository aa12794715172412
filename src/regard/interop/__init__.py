"""Interoperability: other libraries' models, whose attention passes the same core as that of our own."""

from regard.interop.foreign import ForeignModel, foreign_model

__all__ = ["ForeignModel", "foreign_model"]
