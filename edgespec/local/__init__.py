"""An engine on this machine: one that runs is found, else one is started."""
