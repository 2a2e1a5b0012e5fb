"""Servers that the router runs itself: started, watched, restarted and stopped as the topology says."""
