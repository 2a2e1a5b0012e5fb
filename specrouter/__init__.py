"""specrouter: speculative decoding between unmodified llama-servers, behind one OpenAI-compatible endpoint."""

__version__ = "0.1.0"
