"""Programs that write parts of the repository from others: see ``make goldens``."""
