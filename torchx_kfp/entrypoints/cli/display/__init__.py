"""Print and draw what commands show: messages, tables, JSON, lineages, and runs while they go on."""
