"""The whole application, anew for each module's kind of test."""

from server.conftest import client, rig

__all__ = ["client", "rig"]
