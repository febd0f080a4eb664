"""The yardstick: what the bare SDK needs for a server with five tools that do nothing."""

from mcp.server import MCPServer

server = MCPServer("hello", log_level="WARNING")


@server.tool()
def echo(text: str) -> str:
    """The text as it came."""
    return text


@server.tool()
def add(a: int, b: int) -> int:
    """The sum of two numbers."""
    return a + b


@server.tool()
def greet(name: str, polite: bool = True) -> str:
    """A greeting."""
    return f"Good day, {name}" if polite else f"Hi {name}"


@server.tool()
def shout(text: str) -> str:
    """The text in capitals."""
    return text.upper()


@server.tool()
def count(words: list[str]) -> int:
    """How many words there are."""
    return len(words)


if __name__ == "__main__":
    server.run()
