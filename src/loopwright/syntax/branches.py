"""Which branch of a union the author meant: only its problems are worth reading."""

from collections.abc import Sequence
from dataclasses import replace

from loopwright.syntax.findings import Finding
from loopwright.syntax.schema_walk import Branch, Loc
from loopwright.syntax.words import one_of, suggest

_ABOUT_KEYS = ("unknown-field", "missing-field")


def keep_best(findings: Sequence[Finding], *, level: int = 0) -> list[Finding]:
    """The findings, with those of the less likely branches of every union left out."""
    kept: list[Finding] = []
    unions: dict[Loc, dict[str, list[Finding]]] = {}
    for one in findings:
        if len(one.branches) <= level:
            kept.append(one)
        else:
            branch = one.branches[level]
            unions.setdefault(branch.loc, {}).setdefault(branch.label, []).append(one)
    for branches in unions.values():
        union = next(iter(branches.values()))[0].branches[level]
        candidates = [keep_best(found, level=level + 1) for found in branches.values()]
        kept.extend(_choose(union, candidates))
    return _without_explained(kept)


def _choose(union: Branch, candidates: list[list[Finding]]) -> list[Finding]:
    ranked = sorted(candidates, key=lambda found: _rank(union.path, found))
    best = ranked[0]
    if all(one.path == union.path and one.expected for one in best):
        return [_in_one_sentence(best[0], union.path, candidates)]
    fit = _rank(union.path, best)
    equal = [found for found in ranked if _rank(union.path, found)[:3] == fit[:3]]
    return _about_keys(union.path, equal) if len(equal) > 1 and fit[1] + fit[2] else best


def _rank(path: Loc, findings: list[Finding]) -> tuple[int, int, int, int, int, int]:
    """Lower is likelier: the type fits, the keys fit, then how far the check got."""
    here = [one for one in findings if one.path == path]
    below = [one.code for one in findings if len(one.path) == len(path) + 1]
    misfit = 2 if any(one.misfit for one in here) else int(any(one.expected for one in here))
    unknown, missing = (below.count(code) for code in _ABOUT_KEYS)
    # A problem with the whole value comes from a rule that runs once all its fields are right.
    fields_right = any(not one.expected for one in here)
    depth = max(len(one.path) for one in findings)
    return misfit, unknown, missing, int(not fields_right), -depth, len(findings)


def _in_one_sentence(best: Finding, path: Loc, candidates: list[list[Finding]]) -> Finding:
    here = [one for found in candidates for one in found if one.path == path]
    expected = dict.fromkeys(words for one in here for words in one.expected)
    no_type_fits = best.misfit and any(one.code == "wrong-type" for one in here)
    code = "wrong-type" if no_type_fits else best.code
    return replace(best, code=code, expected=tuple(expected))


def _about_keys(path: Loc, equal: list[list[Finding]]) -> list[Finding]:
    """Several branches fit equally badly: say what is wrong for all, and all they would take."""
    every = [one for found in equal for one in found]
    here = [one for one in every if one.code in _ABOUT_KEYS and one.path[:-1] == path]
    refused = {one.path[-1]: one for one in reversed(here) if one.code == "unknown-field"}
    if refused:
        known = tuple(dict.fromkeys(name for one in here for name in one.known))
        unknown = [replace(one, known=known) for key, one in refused.items() if key not in known]
        elsewhere = [one for key, one in refused.items() if key in known]
        shared = [one for one in equal[0] if all(_holds(found, one) for found in equal)]
        return unknown + ([_excluding(elsewhere)] if elsewhere else []) + shared
    if len(here) < len(every):
        return equal[0]
    names = one_of(list(dict.fromkeys(str(one.path[-1]) for one in here)))
    return [replace(here[0], message=f"{names} is required")]


def _excluding(findings: list[Finding]) -> Finding:
    """Each key is right in some branch, but no branch has them all."""
    *others, last = sorted({str(one.path[-1]) for one in findings})
    message = f"{', '.join(others)} and {last} exclude each other"
    return replace(findings[-1], code="mutually-exclusive", message=message, known=())


def _holds(findings: list[Finding], wanted: Finding) -> bool:
    alike = ((one.code, one.path) == (wanted.code, wanted.path) for one in findings)
    return wanted.code not in _ABOUT_KEYS and any(alike)


def _without_explained(findings: list[Finding]) -> list[Finding]:
    """A missing field is no news where an unknown one beside it is that field misspelt."""
    missing = {one.path for one in findings if one.code == "missing-field" and one.path}
    if not missing:
        return findings
    beside = {path[:-1] for path in missing}
    explained = {
        (*one.path[:-1], suggest(str(one.path[-1]), one.known))
        for one in findings
        if one.code == "unknown-field" and one.path[:-1] in beside
    }
    return [one for one in findings if one.code != "missing-field" or one.path not in explained]
