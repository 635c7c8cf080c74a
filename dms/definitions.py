"""DMS's part of a definitions document: durable queues, with the options that they were created with."""

from collections.abc import Iterator, Sequence

from dms.engine import Engine
from dms.options import Options, check_options
from dms.wire import name_untrusted
from shared.definitions import Conflict, DefinitionSection, Made, Promised, Room, Row, Written, name_of
from shared.objects import BadArgument, a_text


def definitions_of(engine: Engine) -> Sequence[DefinitionSection]:
    """The queues of one engine. Options from the settings are left out."""

    def rows(_: Written) -> Iterator[Row]:
        for queue in list(engine.queues.values()) if engine.persistent else ():
            if not queue.deleted:
                yield {"name": queue.text, "options": dict(engine.asked_of(queue))}

    async def make(row: Row, dry_run: bool, _: Promised) -> Made:
        name, options = a_text(row, "name"), row.get("options", {})
        if not isinstance(options, dict):
            raise BadArgument("options is an object")
        name_untrusted(name.encode())
        given = check_options(options, name)
        existing = engine.queues.get(name.encode())
        if existing is not None:
            if existing.options != Options.of(given, engine.settings.for_queue(name), name):
                raise Conflict("it has other options here")
            return Made(new=False)
        if dry_run:
            engine.check_new(name, given)
            return Made(new=True)
        made = engine.create(name, given)
        return Made(new=True, ticket=made[1])

    def room() -> Room:
        return "queues_max", len(engine.queues), engine.settings.queues_max

    return (DefinitionSection("queues", ("name", "options"), rows, name_of, make, room),)
