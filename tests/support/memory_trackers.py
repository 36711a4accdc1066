"""Trackers in plain dictionaries, which pass the contract tests of the real ones."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import msgspec

from loopwright.model.trackers import Item, ItemText, Kind, TrackerChange, Values

Place = tuple[str, Kind, str]


@dataclass(slots=True)
class MemoryTrackers:
    """The same in plain dictionaries."""

    items: dict[Place, list[Item]] = field(default_factory=dict)
    receipts: dict[str, str] = field(default_factory=dict)

    def change(self, key: str, work: Callable[[TrackerChange], str]) -> str:
        if key not in self.receipts:
            page = _Leaf({place: list(versions) for place, versions in self.items.items()})
            answer = work(page)
            self.items = page.items
            self.receipts[key] = answer
        return self.receipts[key]

    async def change_aside(self, key: str, work: Callable[[TrackerChange], str]) -> str:
        return self.change(key, work)

    def get(self, scope: str, kind: Kind, item: str) -> Item | None:
        return _Leaf(self.items).get(scope, kind, item)

    def all(self, scope: str, kind: Kind) -> list[Item]:
        return _Leaf(self.items).all(scope, kind)

    def versions(self, scope: str, kind: Kind, item: str) -> list[Item]:
        return list(self.items.get((scope, kind, item), ()))

    def having(self, kind: Kind, name: str) -> list[ItemText]:
        return _Leaf(self.items).having(kind, name)


class _Leaf:
    """The trackers inside one change, in memory."""

    def __init__(self, items: dict[Place, list[Item]]) -> None:
        self.items = items

    def get(self, scope: str, kind: Kind, item: str) -> Item | None:
        return self.items.get((scope, kind, item), [None])[-1]

    def all(self, scope: str, kind: Kind) -> list[Item]:
        return [
            one[-1]
            for (where, what, _), one in self.items.items()
            if (where, what) == (scope, kind)
        ]

    def put(self, item: Item) -> None:
        versions = self.items.setdefault((item.scope, item.kind, item.id), [])
        values: Values = msgspec.json.decode(msgspec.json.encode(item.values), type=Values)
        versions.append(
            Item(
                scope=item.scope,
                kind=item.kind,
                id=item.id,
                version=len(versions) + 1,
                at=item.at,
                values=values,
            )
        )

    def put_all(self, items: Sequence[Item]) -> None:
        for item in items:
            self.put(item)

    def having(self, kind: Kind, name: str) -> list[ItemText]:
        return [
            ItemText(one.scope, one.id, one.at, one.text(name))
            for (_, what, _), versions in self.items.items()
            for one in versions
            if what == kind and isinstance(one.values.get(name), str)
        ]

    def drop(self, scope: str, kind: Kind, item: str) -> None:
        self.items.pop((scope, kind, item), None)
