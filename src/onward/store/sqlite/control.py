"""What outsiders do to a task, on SQLite: cancel, resume, messages. Each is a few statements of one transaction."""

from __future__ import annotations

from collections.abc import Sequence

import apsw

from onward.core.control import Unheard
from onward.core.record import CANCEL, CANCELLED, RESUMED
from onward.core.task import NEEDS_A_PERSON, SAID, Message, State
from onward.store.port.core import End, Sent, Stopped
from onward.store.shared import rows
from onward.store.sqlite import limits as sqlite_limits
from onward.store.sqlite.execute import first, run
from onward.store.sqlite.fork import fork


def cancel(connection: apsw.Connection, task_id: str) -> Stopped:
    """See `Store.cancel`."""
    row = first(connection, "queue_row", id=task_id)
    if row is None:
        return Stopped(False)
    held = row[2] is not None
    sagas, cancelling, undos = next(run(connection, "saga_state", id=task_id))
    owed = sagas + undos
    if owed > 0 and cancelling > 0:
        return Stopped(True, requested=True)
    head = next(run(connection, "head", id=task_id))[0]
    if owed > 0:
        run(connection, "outsider_record", id=task_id, seq=head + 1, kind=CANCEL, data=b"{}")
        run(connection, "cancelling", id=task_id)
        return Stopped(True, requested=True, held=held)
    run(connection, "drop_queue", id=task_id)
    run(connection, "outsider_record", id=task_id, seq=head + 1, kind=CANCEL, data=b"{}")
    run(connection, "outsider_record", id=task_id, seq=head + 2, kind=CANCELLED, data=b"{}")
    run(connection, "outsider_end", id=task_id, state=State.CANCELLED.value, attempt=row[1], seq=head + 2)
    parent = next(run(connection, "parent", id=task_id))[0]
    if parent is not None:
        told = rows.tiding(State.CANCELLED, b"{}")
        tell(connection, parent, f"{task_id}.{head + 2}", task_id, told)
    if row[4] is not None:
        sqlite_limits.let_go(connection, [row[4]])
    return Stopped(True, held=held)


def resume(connection: apsw.Connection, task_id: str) -> bool:
    """See `Store.resume`."""
    outcome = first(connection, "outcome", id=task_id)
    row = first(connection, "queue_row", id=task_id)
    if outcome is not None and outcome[0] == State.FAILED:
        run(connection, "drop_outcome", id=task_id)
        run(connection, "reopen", id=task_id)
    elif row is not None and (row[3] or (row[0] in NEEDS_A_PERSON and row[2] is None)):
        run(connection, "unpark", id=task_id)
        if (
            row[2] is not None
        ):  # its worker is in the middle of a step: nothing is reopened, and nothing of it may be refused
            return True
    else:
        return False
    head = next(run(connection, "head", id=task_id))[0]
    run(connection, "outsider_record", id=task_id, seq=head + 1, kind=RESUMED, data=b"{}")
    return True


def send(connection: apsw.Connection, task_id: str, message: Message) -> Sent:
    """See `Store.send`."""
    there = first(connection, "posted", id=task_id, message=message.id, ref=message.ref)
    if there is not None:
        return Sent(there[5], there[0] == message.id, Message(*there))
    bumped = first(connection, "bump_quietly" if message.kind == SAID else "bump", id=task_id)
    if bumped is None:
        return Sent(None)
    values = message._asdict() | {"id": task_id, "message": message.id, "number": bumped[0]}
    run(connection, "post", **values)
    return Sent(bumped[0])


def resolve_ended(connection: apsw.Connection, task_id: str, message: Message, undo: str | None, data: bytes) -> Sent:
    """See `Store.resolve_ended`."""
    if first(connection, "outcome", id=task_id) is None:
        return Sent(None)
    there = first(connection, "posted", id=task_id, message=message.id, ref=message.ref)
    if there is not None:
        return Sent(there[5], there[0] == message.id, Message(*there))
    ((number,),) = run(connection, "next_number", id=task_id)
    run(connection, "post", **message._asdict() | {"id": task_id, "message": message.id, "number": number})
    if undo is not None:
        ((head, _),) = run(connection, "head", id=task_id)
        fork(connection, undo, task_id, head, data, number, b"", {"undo": message.ref})
    return Sent(number)


def check_heard(connection: apsw.Connection, ends: Sequence[End]) -> None:
    """Raises Unheard when a task that is about to end has got a message that it has not read."""
    for end in ends:
        if end.inbox is not None and (row := first(connection, "inbox_of", id=end.id)) and row[0] > end.inbox:
            raise Unheard(end.id)


def tell(connection: apsw.Connection, parent: str, message: str, child: str, data: bytes) -> None:
    """The end of a child is a message for its parent."""
    send(connection, parent, Message(message, "child", child, None, data))
