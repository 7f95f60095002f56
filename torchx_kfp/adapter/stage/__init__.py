"""Plan one stage: an AppDef and options become a plan, which is pure data."""
