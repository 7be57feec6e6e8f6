"""Messages to other systems, made from the audit log, sent in its order, each until it was sent or given up.

What happened and its entry in the audit log are one transaction, so the log forgets nothing. A channel reads on from
where it was: the messages that it makes of the entries and the new place are one transaction again. A message is
*taken* by one process at a time, for a limited time: one that dies while it sends leaves the message to the next, which
sends it again. So each message arrives at least once, and carries a name by which a receiver knows one that it had.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from sqlalchemy import ColumnElement, Connection, and_, select, update

from palomar.data.store import models
from palomar.data.store.audit_log import lock_log
from palomar.data.store.database import Database, insert, lock_run
from palomar.data.store.records import Channel, Message, MessageState
from palomar.data.store.tables import columns


class Messages:
    """What is to be told to whom."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def channel(self, run_id: str, channel: str) -> Channel:
        """The channel; a new one begins at the end of the audit log as it is now, so that nothing old is told."""

        def work(connection: Connection) -> Channel:
            found = _channel(connection, run_id, channel)
            if found is not None:
                return found
            head = lock_log(connection, self._database)
            row = {"run_id": run_id, "channel": channel, "read_to": head.entries, "since": datetime.now(UTC)}
            connection.execute(insert(connection, models.Channel).values(**row).on_conflict_do_nothing())
            made = _channel(connection, run_id, channel)
            assert made is not None
            return made

        known = self._database.read(lambda connection: _channel(connection, run_id, channel))
        return known or self._database.write(work)

    def queue(self, before: Channel, read_to: int, made: Sequence[tuple[int, str, str]]) -> bool:
        """Keeps messages (number, event, body) made of the entries after ``before.read_to`` up to ``read_to``.

        False, and nothing is kept, where another process has read on from there meanwhile.
        """

        def work(connection: Connection) -> bool:
            lock_run(connection, self._database, before.run_id)
            model = models.Channel
            moved = connection.execute(
                update(model)
                .where(model.run_id == before.run_id, model.channel == before.channel, model.read_to == before.read_to)
                .values(read_to=read_to)
            )
            if moved.rowcount == 0:
                return False
            now = datetime.now(UTC)
            rows = [
                {
                    "run_id": before.run_id,
                    "channel": before.channel,
                    "number": number,
                    "event": event,
                    "body": body,
                    "state": "waiting",
                    "attempts": 0,
                    "next_at": now,
                    "queued_at": now,
                }
                for number, event, body in made
            ]
            if rows:
                connection.execute(insert(connection, models.Message), rows)
            return True

        return self._database.write(work)

    def take(self, run_id: str, channel: str, *, for_s: float) -> Message | None:
        """The channel's first waiting message, for this process alone for so many seconds; None where none is due.

        Messages of a channel go out in their order: while the first one waits for another attempt, so do all others.
        """

        def work(connection: Connection) -> Message | None:
            lock_run(connection, self._database, run_id)
            now = datetime.now(UTC)
            first = _first(connection, run_id, channel)
            if first is None or first.next_at > now:
                return None
            values = {"attempts": first.attempts + 1, "next_at": now + timedelta(seconds=for_s)}
            connection.execute(update(models.Message).where(_is(first)).values(**values))
            return _first(connection, run_id, channel)

        # Asked first without a lock: mostly there is nothing to do.
        first = self._database.read(lambda connection: _first(connection, run_id, channel))
        return None if first is None or first.next_at > datetime.now(UTC) else self._database.write(work)

    def sent(self, message: Message) -> None:
        """Says that a message that was taken arrived."""
        self._end(message, state="sent", problem=None)

    def failed(self, message: Message, problem: str, *, again_in_s: float | None) -> None:
        """Says that it did not, and when to try again; None: never."""
        if again_in_s is None:
            self._end(message, state="given_up", problem=problem)
            return
        values = {"problem": problem, "next_at": datetime.now(UTC) + timedelta(seconds=again_in_s)}

        def work(connection: Connection) -> None:
            taken = and_(_is(message), models.Message.attempts == message.attempts, models.Message.state == "waiting")
            connection.execute(update(models.Message).where(taken).values(**values))

        self._database.write(work)

    def again(self, run_id: str, channel: str | None = None) -> int:
        """Has what was given up tried again from the start; how many messages that is."""

        def work(connection: Connection) -> int:
            model = models.Message
            where = [model.run_id == run_id, model.state == "given_up"]
            if channel is not None:
                where.append(model.channel == channel)
            values = {"state": "waiting", "attempts": 0, "next_at": datetime.now(UTC), "ended_at": None}
            return connection.execute(update(model).where(*where).values(**values)).rowcount

        return self._database.write(work)

    def read(self, run_id: str, *, state: MessageState | None = None, newest: int | None = None) -> list[Message]:
        """By number and channel: of one state, only the ``newest`` so many, where given."""
        model = models.Message
        query = select(*columns(model, Message)).where(model.run_id == run_id)
        if state is not None:
            query = query.where(model.state == state)
        query = query.order_by(model.number.desc(), model.channel.desc()).limit(newest)
        return self._database.read(lambda connection: [Message(*row) for row in connection.execute(query)][::-1])

    def _end(self, message: Message, *, state: MessageState, problem: str | None) -> None:
        values = {"state": state, "problem": problem, "ended_at": datetime.now(UTC)}

        def work(connection: Connection) -> None:
            # Whoever took it later may be sending it still; that it arrived once is enough.
            waits = and_(_is(message), models.Message.state == "waiting")
            connection.execute(update(models.Message).where(waits).values(**values))

        self._database.write(work)


def _channel(connection: Connection, run_id: str, channel: str) -> Channel | None:
    model = models.Channel
    query = select(*columns(model, Channel)).where(model.run_id == run_id, model.channel == channel)
    row = connection.execute(query).one_or_none()
    return None if row is None else Channel(*row)


def _first(connection: Connection, run_id: str, channel: str) -> Message | None:
    model = models.Message
    query = select(*columns(model, Message)).where(
        model.run_id == run_id, model.channel == channel, model.state == "waiting"
    )
    row = connection.execute(query.order_by(model.number).limit(1)).one_or_none()
    return None if row is None else Message(*row)


def _is(message: Message) -> ColumnElement[bool]:
    model = models.Message
    return and_(model.run_id == message.run_id, model.channel == message.channel, model.number == message.number)
