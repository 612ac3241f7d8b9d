"""Decoder layers in C for CPUs with AVX-512: low-bit weights, paged keys and values."""
