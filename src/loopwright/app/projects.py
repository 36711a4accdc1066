"""Projects: which one a loop belongs to, and the active one of a session."""

from dataclasses import dataclass
from hashlib import blake2b
from secrets import token_hex

from loopwright.errors import LoopwrightError, NotFound
from loopwright.model.record import JsonValue
from loopwright.model.trackers import EVERYBODY, Book, Item, Trackers, Values, slug_of

ACTIVE = "project"
STATUSES = ("active", "completed", "archived")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProjectWish:
    """What was said about the project of a loop."""

    definition: str
    goal: str
    session: str = ""
    id: str = ""
    slug: str = ""


def project_for(trackers: Trackers, wish: ProjectWish, *, now_ms: int, key: str = "") -> Item:
    """The project that is named, else the active one of the session, else a new one."""
    if wish.id and wish.slug:
        raise LoopwrightError(
            "name a project by its id or by its slug, not by both", code="two-projects"
        )
    known = trackers.all(EVERYBODY, "project")
    if wish.id or wish.slug:
        for one in known:
            if (wish.id and one.id == wish.id) or (wish.slug and one.text("slug") == wish.slug):
                return one
        raise NotFound(f"there is no project {wish.id or wish.slug!r}", hint=_hint(known))
    active = active_project(trackers, wish.session)
    return active or _made_for(trackers, wish, now_ms=now_ms, key=key or token_hex(16))


def _hint(known: list[Item]) -> str:
    there = ", ".join(one.text("slug") for one in known[:10]) or "none yet"
    return f"leave it out to have one made; there are: {there}"


def _made_for(trackers: Trackers, wish: ProjectWish, *, now_ms: int, key: str) -> Item:
    name = blake2b(f"{key}/project".encode(), digest_size=16).hexdigest()
    values: Values = {
        "title": f"Loop: {wish.definition}",
        "slug": f"loop-{slug_of(wish.definition)}-{name[:8]}",
        "description": wish.goal,
        "status": "active",
    }
    return _created(trackers, key, name, values, now_ms=now_ms)


def make_project(
    trackers: Trackers, title: str, *, description: str = "", slug: str = "", now_ms: int
) -> Item:
    """A project of a person. Without a slug, its title and a part that no other has make one."""
    key = token_hex(16)
    name = blake2b(f"{key}/project".encode(), digest_size=16).hexdigest()
    values: Values = {
        "title": title,
        "slug": slug or f"{slug_of(title)}-{name[:8]}",
        "description": description,
        "status": "active",
    }
    return _created(trackers, key, name, values, now_ms=now_ms)


def _created(trackers: Trackers, key: str, name: str, values: Values, *, now_ms: int) -> Item:
    def work(book: Book) -> str:
        book.put(Item(scope=EVERYBODY, kind="project", id=name, at=now_ms, values=values))
        return name

    made = trackers.get(EVERYBODY, "project", trackers.change(f"project/{key}", work))
    assert made is not None, "it was put there"
    return made


def active_project(trackers: Trackers, session: str) -> Item | None:
    """The project that a session works on."""
    chosen = trackers.get(session, "active", ACTIVE) if session else None
    return trackers.get(EVERYBODY, "project", chosen.text("id")) if chosen is not None else None


def activate(trackers: Trackers, session: str, project: Item, *, now_ms: int) -> None:
    """From now on the session works on this project."""
    values: dict[str, JsonValue] = {"id": project.id}

    def work(book: Book) -> str:
        book.put(Item(scope=session, kind="active", id=ACTIVE, at=now_ms, values=values))
        return project.id

    trackers.change(f"active/{token_hex(16)}", work)
