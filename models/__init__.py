"""Decoder-only language models over paged KV, their weights and their tokenizers."""
