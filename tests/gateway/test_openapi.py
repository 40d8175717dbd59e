"""The gateway's description: it names every route, and Schemathesis holds the running gateway to it."""

from __future__ import annotations

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import content_type_conformance, response_schema_conformance, status_code_conformance

from openforge.gateway.dialects import DIALECTS
from openforge.gateway.openapi import REQUESTS
from openforge.gateway.routes import application

CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]


@pytest.mark.slow
def test_running_gateway_keeps_to_its_description(running_house):
    schema = schemathesis.openapi.from_url(f"{running_house.address}/openapi.json")
    operations = [result.ok() for result in schema.get_all_operations()]
    assert len(operations) > 20
    for operation in operations:
        hold(operation, running_house)


def hold(operation, running_house):
    @settings(max_examples=5, deadline=None, suppress_health_check=list(HealthCheck))
    @given(case=operation.as_strategy())
    def check(case):
        if "rollout" in case.path_parameters:
            case.path_parameters["rollout"] = "fuzz"
        case.validate_response(case.call(timeout=30), checks=CHECKS)
        running_house.wait(running_house.rest())

    check()


def test_every_route_and_dialect_is_described(running_house):
    description = httpx.get(f"{running_house.address}/openapi.json").json()
    routes = application(running_house.house.gateway).routes
    assert set(description["paths"]) == {route.path.replace(":path}", "}") for route in routes}
    assert REQUESTS.keys() == {dialect.name for dialect in DIALECTS}
    assert all(operation["summary"] for path in description["paths"].values() for key, operation in path.items() if key != "parameters")
