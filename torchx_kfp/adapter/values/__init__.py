"""Values of an AppDef that are known at run time only, and how they reach the application unchanged."""
