"""One script per change of schema, in order."""
