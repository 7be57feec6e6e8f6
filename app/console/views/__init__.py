"""One module per page; each has a function `page`."""
