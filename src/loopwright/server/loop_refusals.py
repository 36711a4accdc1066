"""Refusals in the shape of loops of roles: `error`, `code`, and `details` where there are any."""

from collections.abc import Mapping

import msgspec
from starlette.responses import Response

from loopwright.app.problems import Problem
from loopwright.model.record import JsonValue
from loopwright.server.loop_shapes import LoopFailure
from loopwright.server.refusals import ODD_PATH, unfit_is_bad

UNFIT = 422
_BY_STATUS = {
    400: "validation_error",
    401: "unauthorized",
    403: "forbidden",
    404: "not_found",
    405: "method_not_allowed",
    408: "timeout",
    409: "conflict",
    413: "payload_too_large",
    415: "unsupported_media_type",
    422: "validation_error",
    429: "rate_limited",
    500: "internal_error",
    503: "unavailable",
}
_BY_CODE = {
    "bad-json": "invalid_format",
    "missing-field": "missing_field",
    "session-closed": "session_closed",
    "session-not-found": "session_not_found",
    "unknown-role": "role_not_found",
    "version-conflict": "version_conflict",
    "precondition-required": "precondition_required",
}
_MISSING = "missing required field"


def refuse(problem: Problem, headers: Mapping[str, str]) -> Response:
    """Of a loop: what does not fit is 400 here."""
    return _told(problem, headers, unfit_is_bad(problem))


def refuse_definition(problem: Problem, headers: Mapping[str, str]) -> Response:
    """Of a definition: what does not fit is 422, and so is a name that is none."""
    unfit = problem.code in (ODD_PATH, "bad-name")
    return _told(problem, headers, UNFIT if unfit else problem.status)


def _told(problem: Problem, headers: Mapping[str, str], status: int) -> Response:
    hint = f" ({problem.hint})" if problem.hint else ""
    details: dict[str, JsonValue] = {"reason": problem.code}
    if problem.hint:
        details["hint"] = problem.hint
    if problem.errors:
        details["errors"] = [dict(one) for one in problem.errors]
    told = LoopFailure(
        error=f"{problem.detail}{hint}", code=_code(problem, status), details=details
    )
    body = msgspec.json.encode(told)
    return Response(body, status, headers=dict(headers), media_type="application/json")


def _code(problem: Problem, status: int) -> str:
    if _MISSING in problem.detail:
        return "missing_field"
    return _BY_CODE.get(problem.code) or _BY_STATUS.get(status, "error")
