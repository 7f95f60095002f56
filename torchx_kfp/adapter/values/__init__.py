"""Values of an AppDef that are known only at run time, and how they reach the application unchanged."""
