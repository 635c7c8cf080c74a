"""DMS: work queues; a message leaves its queue when a consumer acknowledges it."""

import shared

if getattr(shared, "PROJECT", None) != "brokers":
    place = getattr(shared, "__file__", None) or list(shared.__path__)
    raise ImportError(f"{__name__} needs the package shared of brokers; found another first, at {place}")
