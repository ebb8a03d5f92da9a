"""Tools that servers offer over MCP: which servers there are, their tools, and calls that people approve."""
