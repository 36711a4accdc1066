"""LangGraph with ``SqliteSaver``: one no-op node that loops by a conditional edge.

``durability="sync"`` makes an iteration durable before the next one starts. The saver holds one
connection behind a lock, so concurrent loops share it, one thread each. Fewer threads than loops
were tried (4, 16, 64) and are neither clearly faster nor slower.
"""

from __future__ import annotations

import argparse
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from typing import TypedDict

import protocol
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import END, START, StateGraph


class State(TypedDict):
    """Small on purpose: the whole state is stored again with every iteration."""

    left: int
    result: str


def work(state: State) -> State:
    """One pass that does nothing."""
    return {"left": state["left"] - 1, "result": protocol.RESULT}


def again(state: State) -> str:
    """The conditional edge."""
    return "work" if state["left"] > 0 else END


def build(saver: SqliteSaver):
    """The graph every loop runs."""
    builder = StateGraph(State)
    builder.add_node("work", work)
    builder.add_edge(START, "work")
    builder.add_conditional_edges("work", again, ["work", END])
    return builder.compile(checkpointer=saver)


def run_loop(graph, thread: str, passes: int) -> None:
    """One loop from start to end."""
    config = {"configurable": {"thread_id": thread}, "recursion_limit": passes + 10}
    graph.invoke({"left": passes, "result": ""}, config, durability="sync")


def commits_per_pass(connection: sqlite3.Connection, graph) -> float:
    """Counted by SQLite itself in a short run outside the timed part."""
    seen: list[str] = []
    connection.set_trace_callback(seen.append)
    run_loop(graph, "count-short", 10)
    short = seen.count("COMMIT")
    run_loop(graph, "count-long", 30)
    connection.set_trace_callback(None)
    return (seen.count("COMMIT") - 2 * short) / 20


def throughput(options: argparse.Namespace) -> None:
    """``sequential`` and ``concurrent``."""
    database = options.dir / "langgraph.db"
    connection = sqlite3.connect(database, check_same_thread=False)
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA synchronous=FULL")
    graph = build(SqliteSaver(connection))
    run_loop(graph, "warm-up", 20)
    before = protocol.stored_bytes(database)
    concurrent = options.workload == "concurrent"
    loops, passes = (options.n, options.passes) if concurrent else (1, options.n)
    with protocol.Meter() as meter:
        if concurrent:
            with ThreadPoolExecutor(loops) as pool:
                list(pool.map(lambda i: run_loop(graph, f"loop-{i}", passes), range(loops)))
        else:
            run_loop(graph, "loop-0", passes)
    stored = protocol.stored_bytes(database)
    recorded = protocol.count_rows(
        database,
        "SELECT count(*) FROM writes WHERE thread_id LIKE 'loop-%' AND channel = 'result'"
        " AND task_path LIKE '%work%'",
    )
    protocol.emit(
        options.workload,
        steps=loops * passes,
        meter=meter,
        recorded=recorded,
        bytes=stored,
        bytes_before=before,
        fsyncs=round(commits_per_pass(connection, graph) * loops * passes),
        journal_mode=connection.execute("PRAGMA journal_mode").fetchone()[0],
        synchronous=connection.execute("PRAGMA synchronous").fetchone()[0],
    )


if __name__ == "__main__":
    throughput(protocol.arguments(["sequential", "concurrent"]))
