"""Values of an AppDef that are known at run time only, and how each reaches the application unchanged."""
