"""Draw runs, tables and graphs in a terminal."""
