"""`python -m mcp_memory` is `mcp-memory`."""

from mcp_memory.cli import main

main()
