"""Tokenizers: normalization, words, characters, bytes and subwords, and their files."""
