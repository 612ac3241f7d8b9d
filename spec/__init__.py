"""Speculation: parameters, drafters, verification, and the model pair that runs a step."""
