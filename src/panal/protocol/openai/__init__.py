"""OpenAI's shapes, as far as panal must read or write them itself."""
