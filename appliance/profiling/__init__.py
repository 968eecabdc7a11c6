"""Where a token's time goes on this machine, and what bounds it."""
