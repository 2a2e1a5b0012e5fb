"""`specrouter bench`: what a route's drafts are worth, measured against the same target without them."""
