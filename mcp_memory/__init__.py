"""A long-term memory for AI agents, over MCP, from a command line, and as a library."""
