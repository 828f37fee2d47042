"""Typed asyncio client of a Forerun router; imports neither vLLM nor torch."""

from services.client.client import ForerunClient
from services.client.types import Chat, ChatMessage, ClientEvent, ModelInfo, Replica, ReplicaList, Started

__all__ = ["Chat", "ChatMessage", "ClientEvent", "ForerunClient", "ModelInfo", "Replica", "ReplicaList", "Started"]
