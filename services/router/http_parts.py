"""The parts of the router that its HTTP edge is put together from."""

from collections.abc import Callable
from dataclasses import dataclass

from google.protobuf.message import Message

from services.router.admission import Admission
from services.router.api_keys import ApiKeys
from services.router.generate import GenerateCall
from services.router.metrics import RouterMetrics
from services.router.replica_pool import ReplicaPool


@dataclass(frozen=True, slots=True)
class HttpParts:
    """Handed through as one."""

    call: GenerateCall
    pool: ReplicaPool
    admission: Admission
    keys: ApiKeys
    metrics: RouterMetrics
    max_body_bytes: int
    list_replicas: Callable[[], Message]
