"""One file per page; each has `show`, which builds it."""
