"""One router's session: its requests by their own names, its events in one buffer. No gRPC in here."""

from collections.abc import Callable

from services.common.errors import RequestEndedError, invalid
from services.common.outcome import Outcome
from services.common.types import Finished, GenerationEvent, ReplicaState, Submission
from services.common.validation import validate_request_id
from services.scheduler.event_buffer import EventBuffer, StateNotice
from services.scheduler.front import Front
from services.scheduler.live_request import LiveRequest
from services.scheduler.status import ReplicaStatus


class RouterSession:
    """What a router may do between hello and the end of its stream."""

    def __init__(self, session_id: str, front: Front, status: ReplicaStatus, buffer: EventBuffer) -> None:
        """``session_id`` is unique among all sessions of this process."""
        self._session_id = session_id
        self._front = front
        self._status = status
        self._requests: dict[str, LiveRequest] = {}
        self.buffer = buffer
        """What waits to be sent."""
        status.add_listener(self._on_state)

    def submit(self, submission: Submission) -> None:
        """Starts a request or refuses it; its one ``Finished`` comes through the buffer."""
        request_id = submission.request_id
        try:
            validate_request_id(request_id)
            if request_id in self._requests:
                raise invalid("request_id", f"{request_id} is in flight already; choose another")
        except RequestEndedError as error:
            self.refuse(submission, error)
            return
        engine_id = f"{self._session_id}.{request_id}"
        request = self._front.submit(submission, self._emitter(request_id), engine_id=engine_id)
        if request is not None:
            self._requests[request_id] = request

    def refuse(self, submission: Submission, error: RequestEndedError) -> None:
        """Ends a request before it starts."""
        self._front.refuse(submission, lambda event: self.buffer.push(submission.request_id, event), error)

    def cancel(self, request_id: str) -> None:
        """Aborts a request; nothing happens when it has ended already."""
        if request := self._requests.get(request_id):
            request.stop(Outcome.CANCELLED, "cancelled by the router")

    def close(self) -> None:
        """The stream is over: aborts what is left, takes nothing more. To be called once."""
        self._status.remove_listener(self._on_state)
        self.buffer.close()
        for request in list(self._requests.values()):
            request.stop(Outcome.CANCELLED, "the router's session ended")

    def _emitter(self, request_id: str) -> Callable[[GenerationEvent], None]:
        push = self.buffer.push

        def emit(event: GenerationEvent) -> None:
            push(request_id, event)
            if isinstance(event, Finished):
                self._requests.pop(request_id, None)

        return emit

    def _on_state(self, state: ReplicaState, reason: str) -> None:
        self.buffer.notify(StateNotice(state, reason))
