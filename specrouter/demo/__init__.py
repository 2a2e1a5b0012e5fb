"""`specrouter demo`: real servers, a real model and a comparison, for somebody who has none of them yet."""
