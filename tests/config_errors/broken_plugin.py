"""A plugin file that cannot be loaded."""

raise RuntimeError("no luck\ntoday")
