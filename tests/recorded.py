"""A call of a module with its attention recorded."""

from typing import Any

from torch import nn

from regard.attention import AttentionRecord, record_attention, record_steps


def call_recorded(module: nn.Module, *inputs: Any) -> tuple[Any, AttentionRecord]:
    """What the module itself gives, and what its attentions were given."""
    with record_attention(module) as record:
        output = module(*inputs)
    return output, record


def call_with_steps(module: nn.Module, *inputs: Any) -> tuple[Any, AttentionRecord]:
    """The same, every attention computed step by step."""
    with record_steps(module) as record:
        output = module(*inputs)
    return output, record
