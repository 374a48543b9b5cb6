"""The web application: searches, the health of the server, and the search page."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lexforge import __version__
from lexforge.common.extras import missing_extra
from lexforge.serve.answer import Answer, Health, Problem, make_answer
from lexforge.serve.batched_search import BatchedSearch, Overloaded
from lexforge.serve.newest_index import NewestIndex
from lexforge.serve.page import search_page

if TYPE_CHECKING:
    from fastapi import FastAPI

DEFAULT_K = 10


def create_app(
    directory: str | Path,
    model: str | None = None,
    *,
    max_k: int = 100,
    max_query_length: int = 2000,
    hosts: Collection[str] | None = None,
    **options: Any,
) -> FastAPI:
    """Make the web application of an index.

    The index and its encoder are loaded when the application starts, so a process may fork before.

    Args:
        directory: The folder of the index.
        model: The encoder, as a folder or a hub name; None takes the one that the index names.
        max_k: The largest number of hits of a search. Above `lexforge.corpus.search.FUSED_DEPTH`, the order
            of a hybrid search may depend on how many hits other clients ask for at the same time.
        max_query_length: The largest number of characters of a query.
        hosts: Names that the Host header of a request may have, without a port; None allows all names.
        **options: Further arguments of `lexforge.corpus.open_searcher`: `hybrid` fuses the ranks of BM25, and
            `uri` and `tokens` reach a server that keeps the vectors.

    Returns:
        The application, for any ASGI server. `app.state.index` is its `NewestIndex`, which the start opens
        unless it is open already.

    Raises:
        ImportError: If the extra `serve` is not installed.
    """
    try:
        from fastapi import FastAPI, HTTPException, Query
        from fastapi.concurrency import run_in_threadpool
        from fastapi.exceptions import RequestValidationError
        from fastapi.middleware.trustedhost import TrustedHostMiddleware
        from fastapi.responses import HTMLResponse, JSONResponse
    except ImportError as error:
        raise missing_extra("a server", "serve", error) from None

    index = NewestIndex(Path(directory), model, **options)
    search = BatchedSearch(index.current)
    html, policy = search_page(max_k, max_query_length)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        await run_in_threadpool(index.open)
        search.start()
        yield
        search.stop()

    app = FastAPI(
        title="lexforge",
        description="Searches an index, and shows the terms that matched.",
        version=__version__,
        lifespan=lifespan,
        redoc_url=None,
        redirect_slashes=False,  # behind a proxy a redirect would name the address of this machine
    )
    app.state.index = index
    if hosts is not None:
        # A web page can give its own name the address of this machine (DNS rebinding), and the browser then
        # lets its script read the answers. The Host header, which the browser writes, has the page's name.
        app.add_middleware(TrustedHostMiddleware, allowed_hosts=list(hosts), www_redirect=False)
    problems: dict[int | str, dict[str, Any]] = {status: {"model": Problem} for status in (422, 500, 503)}

    @app.api_route("/", methods=["GET", "HEAD"], include_in_schema=False)
    async def page() -> Any:
        headers = {"Content-Security-Policy": policy, "X-Content-Type-Options": "nosniff"}
        return HTMLResponse(html, headers={**headers, "Referrer-Policy": "no-referrer"})

    @app.head("/health", include_in_schema=False)
    @app.get("/health", summary="Say what is served")
    def health() -> Health:  # without `async`, in a thread, because it may read a file
        opened = index.current()
        name = opened.searcher.source.model
        return Health(
            ok=True,
            documents=len(opened.searcher),
            model=Path(name).name if Path(name).is_absolute() else name,  # folders are the server's business
            generation=opened.generation,
            newest=index.is_newest,
        )

    @app.head("/search", include_in_schema=False)
    @app.get("/search", summary="Search the documents", responses=problems)
    async def search_documents(
        q: str = Query(description=f"What to search for, at most {max_query_length} characters."),
        k: int = Query(min(DEFAULT_K, max_k), ge=1, le=max_k, description="Number of hits."),
    ) -> Answer:
        began = time.perf_counter()
        if not q.strip():
            raise HTTPException(422, "the query q is blank: there is nothing to search for")
        if len(q) > max_query_length:
            raise HTTPException(422, f"the query q may have {max_query_length} characters; received {len(q)}")
        try:
            result = await asyncio.wrap_future(search.submit(q.strip(), k))
        except Overloaded:
            raise HTTPException(503, "too many searches wait; try again", {"Retry-After": "1"}) from None
        except Exception:  # the thread that searches has logged it
            raise HTTPException(500, "the search failed; the log of the server says why") from None
        return await run_in_threadpool(make_answer, q.strip(), result, began)

    @app.exception_handler(HTTPException)
    async def refuse(_: Any, error: Any) -> Any:
        return JSONResponse({"error": error.detail}, error.status_code, headers=error.headers)

    @app.exception_handler(404)
    @app.exception_handler(405)
    async def refuse_address(request: Any, error: Any) -> Any:
        sentence = f"{request.method} {request.url.path} is not served; /openapi.json says what is"
        return JSONResponse({"error": sentence}, error.status_code, headers=error.headers)

    @app.exception_handler(RequestValidationError)
    async def refuse_parameter(request: Any, error: Any) -> Any:
        name = error.errors()[0]["loc"][-1]
        sentence = "the query q is missing: /search?q=WORDS searches for words"
        if name == "k":
            received = request.query_params[name][:40]
            sentence = f"k must be a whole number from 1 to {max_k}; received {received!r}"
        return JSONResponse({"error": sentence}, 422)

    @app.exception_handler(Exception)
    async def fail(_: Any, __: Exception) -> Any:
        return JSONResponse({"error": "the server failed; its log says why"}, 500)

    return app
