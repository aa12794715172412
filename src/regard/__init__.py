"""Regard: attention models you can build, train, run, trust and see."""

from regard.attention import MultiHeadAttention, Recipe, attend, explain
