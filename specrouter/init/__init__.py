"""`specrouter init`: asks running servers what they are, and writes a first topology for them."""
