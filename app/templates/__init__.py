"""Documents that are filled in by Jinja."""
