"""The terminal dashboard: an HTTP client of any running appliance."""
