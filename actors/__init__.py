"""The five actors, their messages, and the system that wires and supervises them."""
