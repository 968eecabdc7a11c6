"""The dashboard's panels, each fed by messages."""
