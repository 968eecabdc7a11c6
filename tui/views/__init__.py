"""One module per tab of the dashboard."""
