"""The appliance as a service of the operating system."""

from appliance.service.service import Service as Service
from appliance.service.service import ServiceError as ServiceError
from appliance.service.service import service_of_this_system as service_of_this_system

__all__ = ["Service", "ServiceError", "service_of_this_system"]
