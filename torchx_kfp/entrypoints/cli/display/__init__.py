"""Print and draw the output of commands: messages, tables, JSON, lineages, and runs in progress."""
