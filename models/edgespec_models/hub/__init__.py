"""Files from a hub: found, chosen, fetched, checked."""
