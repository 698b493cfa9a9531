"""The viewer's addresses, added to whichever app shows it. Holds no logic: read, call one function, answer.

Routes are plain functions, so that reading and drawing happen in threads and never on the event loop.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Callable, Hashable, Iterable
from pathlib import Path
from typing import Annotated, Any

from anyio import to_thread
from fastapi import APIRouter, FastAPI, Query, Request
from starlette.background import BackgroundTask
from starlette.responses import RedirectResponse, Response

from task_app.core.errors import StoreError
from task_app.http.errors import error_response
from task_app.server.viewer import data, detail
from task_app.server.viewer.frames import Film, Films, NotShown
from task_app.server.viewer.login import PREFIX, Gate, KeptSessions, Lock
from task_app.server.viewer.queries import (
    ChoicesQuery,
    EpisodeQuery,
    EpisodesQuery,
    FrameQuery,
    GroupQuery,
    GroupsQuery,
    RunsQuery,
)
from task_app.store import TraceStore

__all__ = ["Viewer"]

STATIC = Path(__file__).parent / "static"
_MEDIA_TYPES = {".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}
_LOGOUT = b'<form method="post" action="/viewer/logout"><button class="plain">Log out</button></form>'
_SECOND_LINE = "it will be made by the first episode"

MOST_KEPT = 256
"""Answers kept while the database does not change."""

Answer = dict[str, Any] | None


class Viewer:
    """The pages of one trace database, which need not exist yet.

    Give `lock.admits` to the app's `KeyCheck`, then call `add_to`; call `close` when the app ends.
    """

    def __init__(self, db: Path, keys: Iterable[str], sessions: KeptSessions | None = None) -> None:
        self.db = db
        self.lock = Lock(keys, sessions)
        self.films = Films()
        self._kept: dict[Hashable, bytes] = {}
        self._kept_of: tuple[Any, ...] = ()
        self._opening = threading.Lock()
        self._store: TraceStore | None = None
        self._left: list[TraceStore] = []
        self._file: tuple[int, int] | None = None

    def add_to(self, app: FastAPI) -> None:
        """Add the routes, and the gate as the outermost middleware so far."""
        app.include_router(_pages(self.lock), prefix=PREFIX, include_in_schema=False)
        app.include_router(_lists(self), prefix=f"{PREFIX}/api", include_in_schema=False)
        app.include_router(_episodes(self), prefix=f"{PREFIX}/api", include_in_schema=False)
        app.add_middleware(Gate, lock=self.lock)

    def close(self) -> None:
        """Close the database."""
        with self._opening:
            for store in (*self._left, *([self._store] if self._store else [])):
                store.close()
            self._left, self._store, self._file = [], None, None

    def store(self) -> TraceStore | None:
        """The database, opened read-only when first there, and anew when another file has taken its place.

        None while there is no file. Raises StoreError for one that cannot be read.
        """
        with self._opening:
            if not self.db.exists():
                return None
            found = self.db.stat()
            if self._store is None or self._file != (found.st_dev, found.st_ino):
                opened = TraceStore.open(self.db, create=False, read_only=True)
                if self._store is not None:
                    self._left.append(self._store)  # another request may be reading from it
                self._store, self._file = opened, (found.st_dev, found.st_ino)
            return self._store

    def kept(self, store: TraceStore, name: Hashable, make: Callable[[], bytes]) -> bytes:
        """What `make` gives, made once as long as nobody writes to the database; lists of long ones take a while."""
        state = (self._file, store.query("PRAGMA data_version")[0][0])
        if state != self._kept_of or len(self._kept) >= MOST_KEPT:
            self._kept, self._kept_of = {}, state
        kept = self._kept  # another thread may begin a new one meanwhile
        if name not in kept:
            kept[name] = make()
        return kept[name]

    def film(self, store: TraceStore, row: dict[str, Any]) -> Film:
        """The pictures of an episode. Raises NotShown."""
        return self.films.film((self._file, row["id"]), lambda: store.episode(row["episode_id"]))


def _pages(lock: Lock) -> APIRouter:
    router = APIRouter()
    files = {path.name: path for path in STATIC.iterdir() if path.suffix in (".js", ".css", ".svg")}

    @router.get("")
    def page(request: Request) -> Response:
        shell = (STATIC / "index.html").read_bytes()
        return _content(request, shell.replace(b"<!-- logout -->", _LOGOUT if lock.keys else b""), "text/html")

    @router.get("/static/{name}")
    def static(request: Request, name: str) -> Response:
        found = files.get(name)
        return _file(request, found) if found else error_response(404, "not_found", "there is no such file")

    @router.get("/login")
    def form() -> Response:
        return RedirectResponse(PREFIX, status_code=303)

    @router.post("/login")
    async def login(request: Request) -> Response:
        body = await request.body()
        return await to_thread.run_sync(lock.enter, request.scope, body)

    @router.post("/logout")
    def logout(request: Request) -> Response:
        return lock.leave(request.scope)

    return router


def _lists(viewer: Viewer) -> APIRouter:
    router = APIRouter()

    @router.get("/runs")
    def runs(query: Annotated[RunsQuery, Query()]) -> Response:
        return _answer(viewer, lambda store: data.runs(store, query), {"runs": [], "total": 0}, keep=repr(query))

    @router.get("/groups")
    def groups(query: Annotated[GroupsQuery, Query()]) -> Response:
        return _answer(viewer, lambda store: data.groups(store, query), {"groups": [], "total": 0}, keep=repr(query))

    @router.get("/episodes")
    def episodes(query: Annotated[EpisodesQuery, Query()]) -> Response:
        empty = {"episodes": [], "total": 0}
        return _answer(viewer, lambda store: data.episodes(store, query), empty, keep=repr(query))

    @router.get("/choices")
    def choices(query: Annotated[ChoicesQuery, Query()]) -> Response:
        nothing = {"policy": [], "model": [], "status": [], "achievement": [], "episodes": 0}
        return _answer(viewer, lambda store: data.choices(store, query), nothing, keep=repr(query))

    @router.get("/group")
    def group(query: Annotated[GroupQuery, Query()]) -> Response:
        return _answer(viewer, lambda store: detail.group_detail(store, query), None, "group")

    return router


def _episodes(viewer: Viewer) -> APIRouter:
    router = APIRouter()

    @router.get("/episode")
    def episode(query: Annotated[EpisodeQuery, Query()]) -> Response:
        film: list[Film] = []

        def read(store: TraceStore) -> Answer:
            row = detail.find_episode(store, query.id)
            if row is None:
                return None
            return detail.episode_detail(store, row) | {"picture": _picture_facts(viewer, store, row, film)}

        response = _answer(viewer, read, None, "id")
        if film:
            response.background = BackgroundTask(film[0].fill)
        return response

    @router.get("/frame")
    def frame(request: Request, query: Annotated[FrameQuery, Query()]) -> Response:
        return _guarded(viewer, lambda store: _frame(viewer, store, request, query), lambda: _unknown("id"))

    return router


def _picture_facts(viewer: Viewer, store: TraceStore, row: dict[str, Any], film: list[Film]) -> dict[str, Any]:
    """Whether pictures can be had: `ready` with the key of their addresses, or the sentence to show instead."""
    try:
        film.append(viewer.film(store, row))
    except NotShown as error:
        return {"state": "none" if error.nothing else "refused", "note": str(error), "key": ""}
    return {"state": "ready", "note": "", "key": film[0].key}


def _frame(viewer: Viewer, store: TraceStore, request: Request, query: FrameQuery) -> Response:
    row = detail.find_episode(store, query.id)
    if row is None:
        return _unknown("id")
    try:
        film = viewer.film(store, row)
        if query.step > len(film):
            return error_response(422, "invalid", f"step must be 0 to {len(film)} for this episode", "step")
        headers = {"ETag": f'"{film.key}-{query.step}"', "Cache-Control": "private, no-cache"}
        if query.key == film.key:  # the address then names all that the bytes depend on
            headers["Cache-Control"] = "private, max-age=31536000, immutable"
        if request.headers.get("If-None-Match") == headers["ETag"]:
            return Response(status_code=304, headers=headers)
        picture = film.picture(query.step)
    except NotShown as error:
        return error_response(404 if error.nothing else 409, "no_picture", str(error))
    return Response(picture.data, media_type=picture.media_type, headers=headers)


def _answer(
    viewer: Viewer,
    read: Callable[[TraceStore], Answer],
    empty: Answer,
    field: str = "",
    *,
    keep: Hashable = None,
) -> Response:
    """What `read` makes of the database as JSON; `empty` with a note while there is none; 404 for None.

    With `keep`, the name of the question, the answer is made once as long as the database does not change.
    """

    def at_one_moment(store: TraceStore) -> Answer:
        with store.snapshot():  # rows and their total must agree while another process writes
            return read(store)

    def respond(store: TraceStore) -> Response:
        if keep is not None:
            kept = viewer.kept(store, keep, lambda: _bytes(at_one_moment(store)))
            return Response(kept, media_type="application/json")
        value = at_one_moment(store)
        return _unknown(field) if value is None else _json(value)

    def nothing() -> Response:
        note = f"there is no trace database at {viewer.db} yet; {_SECOND_LINE}"
        return _unknown(field) if empty is None else _json(empty | {"note": note})

    return _guarded(viewer, respond, nothing)


def _guarded(viewer: Viewer, respond: Callable[[TraceStore], Response], nothing: Callable[[], Response]) -> Response:
    try:
        store = viewer.store()
        return nothing() if store is None else respond(store)
    except StoreError as error:
        return error_response(503, "store_unavailable", str(error))


def _unknown(field: str) -> Response:
    one = "there is no episode with this id, nor just one whose id begins so"
    return error_response(404, "not_found", one if field == "id" else "there is no such group", field)


def _json(value: Any) -> Response:
    return Response(_bytes(value), media_type="application/json")


def _bytes(value: Any) -> bytes:
    """Strict JSON; plain ASCII, since stored texts may hold halves of surrogate pairs."""
    return json.dumps(value, allow_nan=False, separators=(",", ":")).encode("ascii")


def _file(request: Request, path: Path) -> Response:
    return _content(request, path.read_bytes(), _MEDIA_TYPES[path.suffix])


def _content(request: Request, content: bytes, media_type: str) -> Response:
    headers = {"ETag": f'"{hashlib.sha256(content).hexdigest()[:16]}"', "Cache-Control": "no-cache"}
    if request.headers.get("If-None-Match") == headers["ETag"]:
        return Response(status_code=304, headers=headers)
    return Response(content, media_type=media_type, headers=headers)
