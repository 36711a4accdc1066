"""LangGraph with ``AsyncSqliteSaver``: the same graph, all loops as tasks of one event loop."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import TypedDict

import aiosqlite
import protocol
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.graph import END, START, StateGraph

MORE_THAN_ENOUGH = 1_000_000


class State(TypedDict):
    """Small on purpose: the whole state is stored again with every iteration."""

    left: int
    result: str


async def work(state: State) -> State:
    """One pass that does nothing."""
    return {"left": state["left"] - 1, "result": protocol.RESULT}


class HangingWork:
    """The node of ``recovery``: lets every loop make some passes and then hangs."""

    def __init__(self, *, allowed: int, loops: int) -> None:
        self._allowed = allowed
        self._calls: dict[str, int] = {}
        self._hanging = 0
        self._loops = loops
        self.all_hang = asyncio.Event()

    async def work(self, state: State, config: RunnableConfig) -> State:
        """An iteration of the given loop, or a wait for ever."""
        thread = config["configurable"]["thread_id"]
        self._calls[thread] = self._calls.get(thread, 0) + 1
        if self._calls[thread] > self._allowed:
            self._hanging += 1
            if self._hanging == self._loops:
                self.all_hang.set()
            await asyncio.Event().wait()
        return await work(state)


def again(state: State) -> str:
    """The conditional edge."""
    return "work" if state["left"] > 0 else END


def build(saver: AsyncSqliteSaver, node: Callable):
    """The graph every loop runs."""
    builder = StateGraph(State)
    builder.add_node("work", node)
    builder.add_edge(START, "work")
    builder.add_conditional_edges("work", again, ["work", END])
    return builder.compile(checkpointer=saver)


async def run_loop(graph, thread: str, start: State | None) -> None:
    """One loop; without a start state it goes on where the last checkpoint left it."""
    config = {"configurable": {"thread_id": thread}, "recursion_limit": MORE_THAN_ENOUGH}
    await graph.ainvoke(start, config, durability="sync")


async def connect(database: Path) -> aiosqlite.Connection:
    """A connection with the settings every contender has to use."""
    connection = await aiosqlite.connect(database)
    await connection.execute("PRAGMA journal_mode=WAL")
    await connection.execute("PRAGMA synchronous=FULL")
    return connection


async def pragma(connection: aiosqlite.Connection, name: str) -> str | int:
    """The value of a setting as the connection sees it."""
    cursor = await connection.execute(f"PRAGMA {name}")
    row = await cursor.fetchone()
    assert row is not None
    return row[0]


async def commits_per_pass(connection: aiosqlite.Connection, graph) -> float:
    """Counted by SQLite itself in a short run outside the timed part."""
    seen: list[str] = []
    await connection.set_trace_callback(seen.append)
    await run_loop(graph, "count-short", {"left": 10, "result": ""})
    short = seen.count("COMMIT")
    await run_loop(graph, "count-long", {"left": 30, "result": ""})
    await connection.set_trace_callback(lambda _: None)
    return (seen.count("COMMIT") - 2 * short) / 20


async def throughput(options: argparse.Namespace) -> None:
    """``sequential`` and ``concurrent``."""
    database = options.dir / "langgraph.db"
    connection = await connect(database)
    graph = build(AsyncSqliteSaver(connection), work)
    await run_loop(graph, "warm-up", {"left": 20, "result": ""})
    before = protocol.stored_bytes(database)
    concurrent = options.workload == "concurrent"
    loops, passes = (options.n, options.passes) if concurrent else (1, options.n)
    with protocol.Meter() as meter:
        start: State = {"left": passes, "result": ""}
        await asyncio.gather(*(run_loop(graph, f"loop-{i}", start) for i in range(loops)))
    stored = protocol.stored_bytes(database)
    recorded = protocol.count_rows(
        database,
        "SELECT count(*) FROM writes WHERE thread_id LIKE 'loop-%' AND channel = 'result'"
        " AND task_path LIKE '%work%'",
    )
    fsyncs = round(await commits_per_pass(connection, graph) * loops * passes)
    settings = {name: await pragma(connection, name) for name in ("journal_mode", "synchronous")}
    await connection.close()
    protocol.emit(
        options.workload,
        steps=loops * passes,
        meter=meter,
        recorded=recorded,
        bytes=stored,
        bytes_before=before,
        fsyncs=fsyncs,
        **settings,
    )


async def play(options: argparse.Namespace) -> None:
    """The victim starts all loops, the survivor goes on with all of them."""
    first = options.workload == "recovery-victim"
    hanging = HangingWork(allowed=protocol.PASSES_BEFORE_KILL if first else 1, loops=options.n)
    connection = await connect(options.dir / "langgraph.db")
    graph = build(AsyncSqliteSaver(connection), hanging.work)
    start: State | None = {"left": MORE_THAN_ENOUGH, "result": ""} if first else None
    loops = [asyncio.create_task(run_loop(graph, f"loop-{i}", start)) for i in range(options.n)]
    await hanging.all_hang.wait()
    protocol.say("ready" if first else "resumed")
    await asyncio.gather(*loops)


def main() -> None:
    options = protocol.arguments(["sequential", "concurrent", "recovery"])
    match options.workload:
        case "recovery":
            protocol.recovery(__file__, options)
        case "recovery-victim" | "recovery-survivor":
            asyncio.run(play(options))
        case _:
            asyncio.run(throughput(options))


if __name__ == "__main__":
    main()
