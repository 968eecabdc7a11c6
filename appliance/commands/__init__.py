"""The subcommands. Importing one costs little: each loads what it needs when it runs."""
