"""The edge: OpenAI-compatible HTTP, server-sent events, WebSocket, metrics."""
