"""PyTorch's layer: `nn.MultiheadAttention` with the same weights as a MultiHeadAttention, and back."""

import torch
from torch import nn

from regard.attention.layer_options import LayerOptions
from regard.attention.multihead import MultiHeadAttention
from regard.attention.recipe import Recipe


def from_torch(layer: nn.MultiheadAttention) -> MultiHeadAttention:
    """The same layer with the same weights; tokens come batch first.

    Examples:
        >>> theirs = torch.nn.MultiheadAttention(8, 2, batch_first=True)
        >>> ours, x = from_torch(theirs), torch.randn(1, 5, 8)
        >>> ours(x).allclose(theirs(x, x, x)[0], atol=1e-6)
        True
    """
    if layer.bias_k is not None or layer.add_zero_attn:
        raise ValueError("extra keys (add_bias_kv, add_zero_attn) have no counterpart here")
    if layer.kdim != layer.vdim:
        raise ValueError(f"keys and values come from one memory here, not of widths {layer.kdim} and {layer.vdim}")
    biased = layer.in_proj_bias is not None
    ours = MultiHeadAttention(
        layer.embed_dim,
        heads=layer.num_heads,
        dropout=layer.dropout,
        options=LayerOptions(memory=layer.kdim, projection=lambda i, o: nn.Linear(i, o, bias=biased)),
    ).to(layer.out_proj.weight)
    joint = layer.in_proj_weight if layer._qkv_same_embed_dim else None
    parts = (layer.q_proj_weight, layer.k_proj_weight, layer.v_proj_weight) if joint is None else joint.chunk(3)
    biases = layer.in_proj_bias.chunk(3) if biased else (None, None, None)
    ours.load_state_dict(
        {
            f"{name}.{kind}": value.detach().clone()
            for name, weight, bias in zip(
                ("query", "key", "value", "output"),
                (*parts, layer.out_proj.weight),
                (*biases, layer.out_proj.bias if biased else None),
                strict=True,
            )
            for kind, value in (("weight", weight), ("bias", bias))
            if value is not None
        }
    )
    return ours.train(layer.training)


def to_torch(layer: MultiHeadAttention) -> nn.MultiheadAttention:
    """The same layer as torch's own, if that can express it.

    Examples:
        >>> ours, x = MultiHeadAttention(8, heads=2), torch.randn(1, 5, 8)
        >>> theirs = to_torch(ours)
        >>> theirs(x, x, x)[0].allclose(ours(x), atol=1e-6)
        True
    """
    plain = layer.recipe == Recipe() and layer.query_norm is None and layer.output_norm is layer.output_gate is None
    if not plain or layer.form is not None or layer.groups != layer.heads:
        raise ValueError(f"torch's layer knows plain scaled dot-product attention alone, not {layer.recipe}")
    parts = [part for part in (layer.query, layer.key, layer.value, layer.output) if isinstance(part, nn.Linear)]
    if len(parts) < 4:
        raise ValueError("torch's layer always projects, and linearly")
    query, key, value, output = parts
    if query.out_features != output.out_features:
        raise ValueError(f"torch's heads divide the model: {query.out_features} for {output.out_features}")
    theirs = nn.MultiheadAttention(
        output.out_features,
        layer.heads,
        layer.dropout,
        bias=query.bias is not None,
        kdim=key.in_features,
        vdim=key.in_features,
        batch_first=True,
    ).to(output.weight)
    with torch.no_grad():
        if theirs._qkv_same_embed_dim:
            theirs.in_proj_weight.copy_(torch.cat([query.weight, key.weight, value.weight]))
        else:
            theirs.q_proj_weight.copy_(query.weight)
            theirs.k_proj_weight.copy_(key.weight)
            theirs.v_proj_weight.copy_(value.weight)
        theirs.out_proj.weight.copy_(output.weight)
        if query.bias is not None:
            theirs.in_proj_bias.copy_(torch.cat([query.bias, key.bias, value.bias]))
            theirs.out_proj.bias.copy_(output.bias)
    return theirs.train(layer.training)
