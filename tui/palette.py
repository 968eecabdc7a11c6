"""The two themes. One accent; violet and blue only where lines must be told apart; amber and red for trouble.

Widgets name roles ("$dim", "$p99"), never colours. Every text role keeps a contrast of 4.5 or more.
"""

from textual.theme import Theme

DARK = "appliance-dark"
LIGHT = "appliance-light"

_DARK_ROLES = {
    "ink": "#e4e9ee",
    "dim": "#8d99a6",
    "rule": "#2b343d",
    "track": "#2f3a44",
    "axis": "#46525d",
    "p50": "#45d0bd",
    "p95": "#6ea8fe",
    "p99": "#c49bff",
    "used": "#45d0bd",
    "cached": "#2b7f86",
    "warn": "#f0b429",
    "bad": "#ff7b72",
    "cursor": "#1d2a33",
}
_LIGHT_ROLES = {
    "ink": "#1c2733",
    "dim": "#586573",
    "rule": "#ccd4db",
    "track": "#dbe2e8",
    "axis": "#b3bdc6",
    "p50": "#08695f",
    "p95": "#2458c9",
    "p99": "#7a35c9",
    "used": "#08695f",
    "cached": "#7fc4bc",
    "warn": "#8f5600",
    "bad": "#bd2a2a",
    "cursor": "#e1ecee",
}

THEMES = (
    Theme(
        name=DARK,
        primary=_DARK_ROLES["p50"],
        accent=_DARK_ROLES["p50"],
        warning=_DARK_ROLES["warn"],
        error=_DARK_ROLES["bad"],
        foreground=_DARK_ROLES["ink"],
        background="#0e1419",
        surface="#0e1419",
        panel="#151d24",
        dark=True,
        variables=_DARK_ROLES,
    ),
    Theme(
        name=LIGHT,
        primary=_LIGHT_ROLES["p50"],
        accent=_LIGHT_ROLES["p50"],
        warning=_LIGHT_ROLES["warn"],
        error=_LIGHT_ROLES["bad"],
        foreground=_LIGHT_ROLES["ink"],
        background="#fbfcfd",
        surface="#fbfcfd",
        panel="#f0f3f5",
        dark=False,
        variables=_LIGHT_ROLES,
    ),
)
