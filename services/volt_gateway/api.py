"""The application: the routes, what they are given, and how what they raise is said in HTTP.

400 malformed      401 unauthorized     404 not found            408, 413 body late, too large
409 id reused      422 refused          429 too many streams     503 bus or views away
"""

import structlog
from litestar import Litestar, Request, Response
from litestar.datastructures import State
from litestar.di import Provide
from litestar.exceptions import HTTPException, ValidationException

from volt.contracts.errors import MalformedMessage, NotFound, Refused, Unauthorized, Unavailable, VoltError
from volt.contracts.http import BODY_BYTES_MAX, ErrorBody
from volt_gateway.gateway import Gateway
from volt_gateway.handlers import ROUTES, authenticate

RETRY_AFTER_SECONDS = 1

_REFUSED_STATUS = {"request_id_reused": 409, "too_large": 413, "too_many_streams": 429}
_HTTP_CODES = {404: "not_found", 405: "method_not_allowed", 408: "body_overdue", 413: "too_large"}
_log = structlog.get_logger("volt.api")


def make_app(gateway: Gateway) -> Litestar:
    """The gateway as an ASGI application."""

    def provide_gateway() -> Gateway:
        return gateway

    return Litestar(
        route_handlers=ROUTES,
        dependencies={
            "gateway": Provide(provide_gateway, sync_to_thread=False),
            "account": Provide(authenticate),
        },
        exception_handlers={VoltError: _said, HTTPException: _said_by_litestar, Exception: _unexpected},
        request_max_body_size=BODY_BYTES_MAX,
        openapi_config=None,
        logging_config=None,
    )


def status_of(error: VoltError) -> int:
    """The HTTP status of an error."""
    match error:
        case Refused():
            return _REFUSED_STATUS.get(error.code, 422)
        case MalformedMessage():
            return 400
        case Unauthorized():
            return 401
        case NotFound():
            return 404
        case Unavailable():
            return 503
        case _:
            return 500


def _said(_request: Request[None, None, State], error: VoltError) -> Response[ErrorBody]:
    status = status_of(error)
    headers = {}
    if status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    if status in (429, 503):
        headers["Retry-After"] = str(RETRY_AFTER_SECONDS)
    return Response(_body(error), status_code=status, headers=headers)


def _body(error: VoltError) -> ErrorBody:
    if not isinstance(error, Refused):
        return ErrorBody(code=error.code, message=str(error))
    reason = error.reason
    return ErrorBody(
        code=reason.code, message=reason.message, field=reason.field, seen=reason.seen, choices=reason.choices
    )


def _said_by_litestar(_request: Request[None, None, State], error: HTTPException) -> Response[ErrorBody]:
    """What the framework finds wrong before a route is reached."""
    if isinstance(error, ValidationException):
        return Response(ErrorBody(code="invalid_parameter", message=error.detail), status_code=422)
    code = _HTTP_CODES.get(error.status_code, "invalid_request" if error.status_code < 500 else VoltError.code)
    return Response(ErrorBody(code=code, message=error.detail), status_code=error.status_code, headers=error.headers)


def _unexpected(request: Request[None, None, State], error: Exception) -> Response[ErrorBody]:
    _log.error("request_failed", method=request.method, path=request.url.path, exc_info=error)
    body = ErrorBody(code=VoltError.code, message="something is wrong in the gateway; its log says what")
    return Response(body, status_code=500)
