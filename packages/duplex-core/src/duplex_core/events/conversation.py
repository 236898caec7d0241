"""Events about the items of the history."""

from __future__ import annotations

from duplex_core.events.base import ServerEvent
from duplex_core.items import Item


class ItemAdded(ServerEvent, frozen=True, kw_only=True, tag="conversation.item.added"):
    """An item entered the history; it may still be filled."""

    item: Item
    previous_item_id: str | None = None


class ItemCreated(ServerEvent, frozen=True, kw_only=True, tag="conversation.item.created"):
    """The beta spelling of :class:`ItemAdded`."""

    item: Item
    previous_item_id: str | None = None


class ItemDone(ServerEvent, frozen=True, kw_only=True, tag="conversation.item.done"):
    """An item is whole."""

    item: Item
    previous_item_id: str | None = None


class ItemRetrieved(ServerEvent, frozen=True, kw_only=True, tag="conversation.item.retrieved"):
    """The item that was asked for."""

    item: Item


class ItemTruncated(ServerEvent, frozen=True, kw_only=True, tag="conversation.item.truncated"):
    """The item now ends where the user stopped hearing it."""

    item_id: str
    content_index: int
    audio_end_ms: int


class ItemDeleted(ServerEvent, frozen=True, kw_only=True, tag="conversation.item.deleted"):
    """The item is gone."""

    item_id: str
