"""Files from a hub: found, chosen, fetched, resumed, checked."""
