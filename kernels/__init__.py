"""Stateless device functions: each file holds the torch reference that specifies it."""
