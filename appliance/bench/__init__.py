"""Load and measurement of any OpenAI-compatible server, over HTTP alone."""
