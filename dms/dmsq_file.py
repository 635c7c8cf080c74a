from dms.broker import Broker


async def import_files(broker: Broker) -> None:
    return None
