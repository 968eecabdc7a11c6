"""Whether this machine can serve, and what to do where it cannot: one check a function, nothing changed."""
