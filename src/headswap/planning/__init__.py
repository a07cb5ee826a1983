"""Can my machine train this? Memory, time and size, foretold."""
