"""Ops: fused operations on tensors, each with plain torch and, where it pays, a Triton kernel."""
