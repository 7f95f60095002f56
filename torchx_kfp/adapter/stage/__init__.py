"""One stage: an AppDef and what is asked of it become a plan, which is pure data."""
