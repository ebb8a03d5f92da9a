"""`edgespec plan`: how fast a pair would run here, before anything of it is downloaded."""
