"""OpenAI's service tiers as the engine's service classes. Knows both vocabularies; knows no queue."""

from appliance.engine.sequence import ServiceClass
from appliance.errors import InvalidRequest

_CLASSES = {
    "auto": ServiceClass.SILVER,
    "default": ServiceClass.SILVER,
    "priority": ServiceClass.GOLD,
    "flex": ServiceClass.BRONZE,
}
_TIERS = {ServiceClass.SILVER: "default", ServiceClass.GOLD: "priority", ServiceClass.BRONZE: "flex"}


def service_class(tier: str | None) -> ServiceClass:
    """The class that a tier asks for. Raises InvalidRequest for one that is unknown."""
    if tier is None:
        return ServiceClass.SILVER
    if tier not in _CLASSES:
        known = ", ".join(_CLASSES)
        raise InvalidRequest(f"'service_tier' is '{tier[:100]}'; choose one of {known}", param="service_tier")
    return _CLASSES[tier]


def served_tier(tier: str | None, served: ServiceClass) -> str | None:
    """What the answer says: the tier that was given, where one was asked for."""
    return None if tier is None else _TIERS[served]
