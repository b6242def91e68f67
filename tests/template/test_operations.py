"""Alarms, dashboard and runbook: metrics that exist, a heading for each, queries that run."""

from __future__ import annotations

import contextlib
import json
import re
from typing import Any

import psycopg
import pytest
from samtranslator.yaml_helper import yaml_parse

from tests.support.postgres import Database
from tests.template import permissions
from tests.template.deployment import ROOT, Deployment, references, source
from tests.template.test_template import BY_SECRET

OPERATIONS: dict[str, Any] = yaml_parse(
    (ROOT / "template-operations.yaml").read_text(encoding="utf-8")
)
ALARMS = {
    name: resource
    for name, resource in OPERATIONS["Resources"].items()
    if resource["Type"] == "AWS::CloudWatch::Alarm"
}
RUNBOOK = (ROOT / "docs" / "runbook.md").read_text(encoding="utf-8")
HEADINGS = re.findall(r"^## (\w+)$", RUNBOOK, re.MULTILINE)
# What the layer really counts: every word in capitals that its code hands to the metrics.
EMITTED = {
    name
    for file in (ROOT / "shared" / "sume_jobs" / "flows").glob("*.py")
    for name in re.findall(r'"([A-Z][a-z]+(?:[A-Z][a-z]+)*)"', file.read_text(encoding="utf-8"))
}


def metrics(name: str) -> list[dict[str, Any]]:
    """Namespace, name and dimensions of every metric that an alarm looks at."""
    properties = ALARMS[name]["Properties"]
    if "MetricName" in properties:
        return [properties]
    return [item["MetricStat"]["Metric"] for item in properties["Metrics"] if "MetricStat" in item]


def test_every_promise_has_its_alarm() -> None:
    assert {
        "OldestPending",
        "StuckSubmitting",
        "OldestInFlight",
        "NeedsAttention",
        "GateClosed",
        "DuplicateJob",
        "WebhookRejectedRate",
        "FollowUpLag",
        "FunctionErrors",
        "Throttles",
        "MissingHeartbeat",
    } <= set(ALARMS)


@pytest.mark.parametrize("name", ALARMS)
def test_an_alarm_looks_at_metrics_that_are_told(name: str) -> None:
    for metric in metrics(name):
        if metric["Namespace"] == "SumeJobs":
            assert metric["MetricName"] in EMITTED
            assert metric["Dimensions"] == [{"Name": "service", "Value": {"Ref": "Service"}}]
        else:
            assert metric["Namespace"] in ("AWS/Lambda", "AWS/SQS", "AWS/ApiGateway")
    properties = ALARMS[name]["Properties"]
    assert properties["DatapointsToAlarm"] <= properties["EvaluationPeriods"]
    assert properties["TreatMissingData"] in ("notBreaching", "breaching", "ignore")


def test_metrics_carry_the_stack_as_their_dimension() -> None:
    deployment = Deployment(**BY_SECRET)
    nested = deployment.of_type("AWS::CloudFormation::Stack")["Operations"]["Parameters"]
    for function in deployment.functions:
        assert deployment.environment(function)["POWERTOOLS_SERVICE_NAME"] == nested["Service"]


@pytest.mark.parametrize("name", ALARMS)
def test_alarms_and_headings_name_each_other(name: str) -> None:
    assert HEADINGS.count(name) == 1
    assert f"See docs/runbook.md, {name}." in ALARMS[name]["Properties"]["AlarmDescription"]
    text = RUNBOOK.split(f"## {name}\n")[1].split("\n## ")[0]
    for word in ("**Means**", "**Look**", "**Do**"):
        assert word in text


def test_no_heading_is_left_over() -> None:
    assert set(HEADINGS) == set(ALARMS)


@pytest.mark.parametrize("name", ALARMS)
def test_an_alarm_tells_the_topic_where_there_is_one(name: str) -> None:
    properties = ALARMS[name]["Properties"]
    told = {"Fn::If": ["HasTopic", [{"Ref": "AlarmTopicArn"}], {"Ref": "AWS::NoValue"}]}
    assert properties["AlarmActions"] == properties["OKActions"] == told
    assert "AlarmName" not in properties


def test_nobody_is_woken_for_schedules_that_were_stopped() -> None:
    properties = ALARMS["MissingHeartbeat"]["Properties"]
    assert properties["TreatMissingData"] == "breaching"
    assert properties["ActionsEnabled"] == {"Fn::If": ["IsScheduled", True, False]}


def test_every_function_that_is_invoked_by_aws_is_watched() -> None:
    watched = references(ALARMS["FunctionErrors"]["Properties"]["Metrics"])
    assert watched == {
        f"{name}Function" for name in ("Submit", "Reap", "Poll", "Dispatch", "Webhook", "Api")
    }


@pytest.mark.parametrize("template", ["template-operations.yaml", "template-database.yaml"])
def test_nested_templates_get_all_that_they_ask_for(template: str) -> None:
    written = yaml_parse((ROOT / template).read_text(encoding="utf-8"))
    (stack,) = [
        resource["Properties"]
        for resource in source()["Resources"].values()
        if resource["Type"] == "AWS::CloudFormation::Stack"
        and resource["Properties"]["TemplateURL"] == template
    ]
    assert set(stack["Parameters"]) == set(written["Parameters"])
    used = references([written["Resources"], written["Outputs"], written["Conditions"]])
    assert set(written["Parameters"]) <= used
    name = {"template-operations.yaml": "Operations", "template-database.yaml": "Database"}[
        template
    ]
    text = (ROOT / "template.yaml").read_text(encoding="utf-8")
    assert set(re.findall(rf"{name}\.Outputs\.(\w+)", text)) <= set(written["Outputs"])


def test_the_dashboard_shows_what_is_told() -> None:
    text = OPERATIONS["Resources"]["Dashboard"]["Properties"]["DashboardBody"]["Fn::Sub"]
    names = set(re.findall(r"\$\{(\w+)\}", text))
    assert names <= set(OPERATIONS["Parameters"])
    body = json.loads(re.sub(r"\$\{[^}]+\}", "1", text))
    occupied: set[tuple[int, int]] = set()
    shown = set()
    for widget in body["widgets"]:
        cells = {
            (x, y)
            for x in range(widget["x"], widget["x"] + widget["width"])
            for y in range(widget["y"], widget["y"] + widget["height"])
        }
        assert not cells & occupied
        assert max(x for x, _ in cells) < 24
        occupied |= cells
        for metric in widget["properties"].get("metrics", []):
            if metric[0] == "SumeJobs":
                shown.add(metric[1])
                assert metric[2] == "service"
    assert shown <= EMITTED
    # Design section 4, all but those that only lead to others.
    assert {
        "Claimed",
        "Submitted",
        "IdempotencyHit",
        "Requeued",
        "SubmitFailed",
        "Reaped",
        "GateClosed",
        "WebhookApplied",
        "WebhookDuplicate",
        "WebhookRejected",
        "PollApplied",
        "FollowUpDispatched",
        "DuplicateJob",
        "PendingDepth",
        "OldestPendingSeconds",
        "InFlight",
        "OldestInFlightSeconds",
        "NeedsAttention",
    } <= shown


def test_the_queries_of_the_runbook_run(database: Database) -> None:
    """On the schema as it is, by the functions' own user; what they change is undone."""
    database.insert_many(3, "a lighthouse")
    blocks = re.findall(r"^```sql\n(.*?)^```", RUNBOOK, re.MULTILINE | re.DOTALL)
    statements = [text.strip() for block in blocks for text in block.split(";") if text.strip()]
    assert len(statements) > 15
    for statement in statements:
        with database.session() as session:
            # An operator's act may be refused for the row it names, never for its own words.
            with contextlib.suppress(psycopg.errors.CheckViolation):
                session.execute(statement)
            session.rollback()


def test_the_table_of_permissions_is_that_of_the_template() -> None:
    written = (ROOT / "docs" / "permissions.md").read_text(encoding="utf-8")
    assert written == permissions.page(), "run make permissions"


def test_the_table_names_every_action_that_a_deployment_allows() -> None:
    everything = Deployment(**BY_SECRET, ArchiveBucket="shop-images")
    written = (ROOT / "docs" / "permissions.md").read_text(encoding="utf-8")
    for function in everything.functions:
        for action, _ in everything.permissions(function):
            assert f"| {function} | `{action}` |" in written
