"""Hugging Face models (transformers): their attention through its AttentionInterface, their tasks, their folders."""
