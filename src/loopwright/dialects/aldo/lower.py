"""From an agent to the plan: one step that is a loop of cycles, or the agents it is made of."""

from types import MappingProxyType

from loopwright.dialects.aldo.composites import Lowering
from loopwright.dialects.aldo.files import Files, Wanted
from loopwright.dialects.aldo.units import Loader
from loopwright.model.plan import Plan
from loopwright.syntax.diagnostic import MAX_PROBLEMS, Diagnostic
from loopwright.syntax.document import Document

NAME = "aldo"
MAX_PARALLEL_CHILDREN = 8

_NO_FILES: Files = MappingProxyType({})


def wanted(document: Document, files: Files = _NO_FILES) -> list[Wanted]:
    """The files that this agent asks for and that are not there yet."""
    loader = Loader(files, document.file)
    loader.load(document)
    return list(loader.wanted.values())


def lower(document: Document, files: Files = _NO_FILES) -> tuple[Plan | None, list[Diagnostic]]:
    """The plan, or all that is wrong; a plan may come with warnings."""
    loader = Loader(files, document.file)
    unit = loader.load(document)
    problems = _in_order(loader.problems, document.file)
    if unit is None or any(one.severity == "error" for one in problems):
        return None, problems
    lowering = Lowering()
    step = lowering.first(unit)
    spec = unit.spec
    plan = Plan(
        name=spec.identity.name,
        description=spec.identity.description,
        steps=(step,),
        agents=lowering.agents,
        parallel=MAX_PARALLEL_CHILDREN if spec.composite else None,
        settings={"agent_version": spec.identity.version},
        dialect=NAME,
    )
    return plan, problems


def _in_order(problems: list[Diagnostic], first: str) -> list[Diagnostic]:
    """Each problem once, those of the first file first; an agent may be used many times."""

    def order(one: Diagnostic) -> tuple[bool, str, int, int, str, str]:
        return one.file != first, one.file, one.line, one.column, one.code, one.message

    return sorted(set(problems), key=order)[:MAX_PROBLEMS]
