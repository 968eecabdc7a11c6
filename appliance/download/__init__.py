"""How models come and where they are kept: the store, the sources, and the pull that joins them. No torch."""
