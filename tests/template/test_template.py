"""What a deployment of template.yaml would be, in every configuration that it offers."""

from __future__ import annotations

import json
import re
import tomllib
from graphlib import CycleError
from typing import TYPE_CHECKING, Any

import pytest
from samtranslator.yaml_helper import yaml_parse
from sume_jobs.settings import RECORD_SECONDS, Settings

from local import sam_build
from tests.template.deployment import (
    API_KEY_ARN,
    DATABASE_ARN,
    ROOT,
    SIGNING_ARN,
    STACK,
    Deployment,
    creation_order,
    references,
    source,
    translate,
    translated,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

BY_SECRET = {"DatabaseSecretArn": DATABASE_ARN}
BY_IAM = {"DatabaseHost": "db.example.com", "DatabaseResourceId": "db-ABC123"}
KMS_ARN = "arn:aws:kms:eu-central-1:123456789012:key/11111111-2222-3333-4444-555555555555"
QUEUE_ARN = "arn:aws:sqs:eu-central-1:123456789012:shop-follow-ups"
BUS_ARN = "arn:aws:events:eu-central-1:123456789012:event-bus/shop"
CONFIGURATIONS: dict[str, dict[str, Any]] = {
    "least": BY_SECRET,
    "iam": BY_IAM,
    "managed secret": {**BY_SECRET, "DatabaseHost": "db.example.com"},
    "webhooks": {**BY_SECRET, "SumeWebhookSecretsArn": SIGNING_ARN},
    "reread": {**BY_SECRET, "WebhookVerification": "reread"},
    "own database": {
        "CreateDatabase": "true",
        "VpcId": "vpc-1",
        "VpcSubnetIds": "subnet-1,subnet-2",
        "DatabaseProxy": "true",
    },
    "archive": {**BY_SECRET, "ArchiveBucket": "shop-images"},
    "versions": {**BY_SECRET, "WebhookSnapStart": "true", "BuildSha": "0" * 64},
    "everything": {
        **BY_IAM,
        "SumeWebhookSecretsArn": SIGNING_ARN,
        "SumeWebhookUrl": "https://jobs.example.com/webhooks/sume",
        "IdempotencyPrefix": "shop",
        "SecretsKmsKeyArn": KMS_ARN,
        "VpcSubnetIds": "subnet-1,subnet-2",
        "VpcSecurityGroupIds": "sg-1",
        "ScheduledReservedConcurrency": 3,
        "WebhookReservedConcurrency": 5,
        "ApiReservedConcurrency": 2,
        "WebhookProvisionedConcurrency": 2,
        "BuildSha": "0" * 64,
        "Architecture": "x86_64",
        "JwtIssuer": "https://login.example.com",
        "JwtAudience": "shop,support",
        "FollowUpQueueArn": QUEUE_ARN,
        "FollowUpEventBusArn": BUS_ARN,
        "FollowUpKmsKeyArn": KMS_ARN,
        "ArchiveBucket": "shop-images",
        "AlarmTopicArn": "arn:aws:sns:eu-central-1:123456789012:on-call",
    },
}
SCHEDULED = {"submit", "reap", "poll", "dispatch"}
OPTIONAL = {"archive"}
FUNCTIONS = SCHEDULED | {"webhook", "migrate", "api"}
ALL_FUNCTIONS = FUNCTIONS | OPTIONAL


@pytest.fixture(params=CONFIGURATIONS, ids=lambda name: name.replace(" ", "-"))
def deployment(request: pytest.FixtureRequest) -> Deployment:
    return Deployment(**CONFIGURATIONS[request.param])


def bounds(parameter: str) -> Iterator[int]:
    """The least, the default and the greatest value a number may have (a million if unlimited)."""
    declared = source()["Parameters"][parameter]
    yield declared["MinValue"]
    yield declared["Default"]
    yield declared.get("MaxValue", 1_000_000)


# ---- Functions -----------------------------------------------------------------------------------


def test_functions_are_those_in_the_source_tree(deployment: Deployment) -> None:
    archives = bool(deployment.parameters["ArchiveBucket"])
    assert set(deployment.functions) == (ALL_FUNCTIONS if archives else FUNCTIONS)
    written = source()
    for name in ALL_FUNCTIONS:
        folder = written["Resources"][f"{name.title()}Function"]["Properties"]["CodeUri"]
        assert folder == f"functions/{name}/"
        assert (ROOT / folder / "app.py").is_file()
    folders = {path.name for path in (ROOT / "functions").iterdir() if path.name[0] not in "._"}
    assert folders == ALL_FUNCTIONS
    assert set(sam_build.FUNCTIONS.values()) == ALL_FUNCTIONS


def test_every_function_runs_the_handler_on_the_layer(deployment: Deployment) -> None:
    for properties in deployment.functions.values():
        assert properties["Handler"] == "app.handler"
        assert properties["Runtime"] == "python3.13"
        assert properties["Architectures"] == [deployment.parameters["Architecture"]]
        (layer,) = properties["Layers"]
        assert deployment.resources[layer[1:-1]]["Type"] == "AWS::Lambda::LayerVersion"


def test_every_function_states_its_time_and_memory() -> None:
    for name in ALL_FUNCTIONS:
        properties = source()["Resources"][f"{name.title()}Function"]["Properties"]
        assert properties["Timeout"] > 0
        assert properties["MemorySize"] >= 256
        assert properties["Description"].endswith(".")


def test_the_memory_is_the_cheapest_that_meets_the_latencies() -> None:
    """What mostly waits has little; what somebody waits for has enough for a quick cold start.

    The figures are those of `make cost`, in docs/benchmarks.md.
    """
    resources = source()["Resources"]
    for name in ("submit", "poll", "reap", "dispatch"):
        assert resources[f"{name.title()}Function"]["Properties"]["MemorySize"] == 256
    for name in ("webhook", "api"):
        assert resources[f"{name.title()}Function"]["Properties"]["MemorySize"] == 512


def test_time_limits_contain_each_other_for_every_allowed_value() -> None:
    """R12: claim timeout > function timeout > HTTP timeout, with time to record what came back."""
    functions = Deployment(**BY_SECRET).functions
    http = max(bounds("SumeTimeoutSeconds"))
    linger = max(bounds("LingerSeconds"))
    claim = min(bounds("ClaimTimeoutSeconds"))
    assert claim > functions["submit"]["Timeout"] > linger + http + RECORD_SECONDS
    assert functions["poll"]["Timeout"] > http + RECORD_SECONDS
    # An HTTP API gives up after 30 s; the webhook answers within 5 s even when rows are locked.
    assert 5 < functions["webhook"]["Timeout"] < 30


def test_the_rule_is_stated_by_the_defaults_too() -> None:
    environment = Deployment(**BY_SECRET).environment("submit")
    assert environment["CLAIM_TIMEOUT_SECONDS"] == "600"
    assert environment["SUME_TIMEOUT_SECONDS"] == "20"


def test_reserved_concurrency_is_unset_by_default_and_settable() -> None:
    for properties in Deployment(**BY_SECRET).functions.values():
        assert "ReservedConcurrentExecutions" not in properties
    reserved = {
        name: properties.get("ReservedConcurrentExecutions")
        for name, properties in Deployment(**CONFIGURATIONS["everything"]).functions.items()
    }
    assert reserved == {
        **dict.fromkeys(SCHEDULED, "3"),
        "webhook": "5",
        "api": "2",
        "migrate": None,
        "archive": None,
    }


def test_network_is_all_or_nothing() -> None:
    for properties in Deployment(**BY_SECRET).functions.values():
        assert "VpcConfig" not in properties
    for properties in Deployment(**CONFIGURATIONS["everything"]).functions.values():
        assert properties["VpcConfig"] == {
            "SubnetIds": ["subnet-1", "subnet-2"],
            "SecurityGroupIds": ["sg-1"],
        }


def test_the_layer_is_built_for_the_processor_of_the_functions() -> None:
    layer = source()["Resources"]["Layer"]
    assert layer["Metadata"] == {
        "BuildMethod": "python3.13",
        "BuildArchitecture": {"Ref": "Architecture"},
    }
    assert layer["Properties"]["ContentUri"] == "shared/"
    assert (ROOT / "shared/requirements.txt").is_file()
    assert not (ROOT / "shared/python").exists()
    pinned = (ROOT / "shared/requirements.txt").read_text(encoding="utf-8")
    assert not re.search(r"^(boto3|botocore)\b", pinned, re.MULTILINE)
    assert re.search(r"^psycopg-binary==", pinned, re.MULTILINE)


# ---- Permissions ---------------------------------------------------------------------------------


@pytest.mark.parametrize("function", sorted(ALL_FUNCTIONS))
@pytest.mark.parametrize("database", ["secret", "iam", "own"])
@pytest.mark.parametrize("follow_ups", ["none", "queue", "bus", "archive", "bus and archive"])
def test_a_function_may_do_what_it_needs_and_nothing_else(
    function: str, database: str, follow_ups: str
) -> None:
    chosen: dict[str, Any] = {
        "SumeWebhookSecretsArn": SIGNING_ARN,
        **{"secret": BY_SECRET, "iam": BY_IAM, "own": CONFIGURATIONS["own database"]}[database],
    }
    if follow_ups == "queue":
        chosen["FollowUpQueueArn"] = QUEUE_ARN
    if "bus" in follow_ups:
        chosen["FollowUpEventBusArn"] = BUS_ARN
    if "archive" in follow_ups:
        chosen["ArchiveBucket"] = "shop-images"
    read, send = "secretsmanager:GetSecretValue", "sqs:SendMessage"
    expected = {
        "secret": {(read, DATABASE_ARN)},
        "iam": {
            (
                "rds-db:connect",
                "arn:aws:rds-db:eu-central-1:123456789012:dbuser:db-ABC123/sume_jobs",
            )
        },
        "own": {(read, "<Database.Outputs.SecretArn>")},
    }[database]
    if function in ("submit", "poll", "archive"):
        expected.add((read, API_KEY_ARN))
    if function == "webhook":
        expected.add((read, SIGNING_ARN))
    if function in SCHEDULED:
        expected.add((send, "<FailedRunsQueue.Arn>"))
    if function in ("dispatch", "poll"):
        expected |= {
            "none": set(),
            "queue": {(send, QUEUE_ARN)},
            "archive": {(send, "<ArchiveQueue.Arn>")},
        }.get(follow_ups, {("events:PutEvents", BUS_ARN)})
    if function == "archive":
        if "archive" not in follow_ups:
            assert function not in Deployment(**chosen).functions
            return
        expected |= {
            (f"sqs:{action}", "<ArchiveQueue.Arn>")
            for action in (
                "ReceiveMessage",
                "DeleteMessage",
                "GetQueueAttributes",
                "ChangeMessageVisibility",
            )
        }
        expected |= {
            (f"s3:{action}", "arn:aws:s3:::shop-images/sume-jobs/*")
            for action in ("PutObject", "AbortMultipartUpload")
        }
    assert Deployment(**chosen).permissions(function) == expected


def test_a_key_of_ones_own_is_only_used_through_the_service_that_it_is_for() -> None:
    deployment = Deployment(**CONFIGURATIONS["everything"])
    documents = [
        policy["PolicyDocument"]
        for policy in deployment.of_type("AWS::IAM::ManagedPolicy").values()
    ]
    documents += [
        policy["PolicyDocument"]
        for role in deployment.of_type("AWS::IAM::Role").values()
        for policy in role.get("Policies", [])
    ]
    services = set()
    for document in documents:
        for statement in document["Statement"]:
            if "kms:Decrypt" in statement["Action"]:
                assert statement["Resource"] == KMS_ARN
                services.add(statement["Condition"]["StringEquals"]["kms:ViaService"])
    assert services == {
        f"{name}.eu-central-1.amazonaws.com" for name in ("secretsmanager", "sqs", "s3")
    }


def test_roles_hold_no_broad_policies(deployment: Deployment) -> None:
    allowed = {
        "service-role/AWSLambdaBasicExecutionRole",
        "service-role/AWSLambdaVPCAccessExecutionRole",
        "AWSXrayWriteOnlyAccess",
    }
    for role in deployment.of_type("AWS::IAM::Role").values():
        for arn in role.get("ManagedPolicyArns", []):
            own = ("<DatabasePolicy>", "<FollowUpPolicy>")
            assert arn in own or arn.split(":policy/")[1] in allowed
    for function in deployment.functions:
        for action, resource in deployment.permissions(function):
            assert "*" not in action
            assert "*" not in resource.removesuffix(":s3:::shop-images/sume-jobs/*")


# ---- Schedules -----------------------------------------------------------------------------------


def test_schedules_tick_every_minute_without_retries_or_names(deployment: Deployment) -> None:
    schedules = deployment.of_type("AWS::Scheduler::Schedule")
    targets = {schedule["Target"]["Arn"] for schedule in schedules.values()}
    assert targets == {f"<{name.title()}Function.Arn>" for name in SCHEDULED}
    for schedule in schedules.values():
        assert schedule["ScheduleExpression"] == "rate(1 minute)"
        assert schedule["State"] == "ENABLED"
        assert "Name" not in schedule
        assert schedule["Target"]["RetryPolicy"] == {
            "MaximumRetryAttempts": 0,
            "MaximumEventAgeInSeconds": 60,
        }
        assert schedule["Target"]["DeadLetterConfig"] == {"Arn": "<FailedRunsQueue.Arn>"}


def test_failed_runs_are_not_repeated_by_lambda(deployment: Deployment) -> None:
    configured = {
        config["FunctionName"]: config
        for config in deployment.of_type("AWS::Lambda::EventInvokeConfig").values()
    }
    # CloudFormation's call too is answered once, or it waits until its own limit.
    assert configured.pop("<MigrateFunction>")["MaximumRetryAttempts"] == 0
    assert set(configured) == {f"<{name.title()}Function>" for name in SCHEDULED}
    for config in configured.values():
        assert config["MaximumRetryAttempts"] == 0
        assert config["MaximumEventAgeInSeconds"] == 60
        destination = config["DestinationConfig"]["OnFailure"]["Destination"]
        assert destination == "<FailedRunsQueue.Arn>"


def test_all_schedules_can_be_stopped_by_one_parameter() -> None:
    stopped = Deployment(**BY_SECRET, SchedulesState="DISABLED")
    schedules = stopped.of_type("AWS::Scheduler::Schedule").values()
    assert {schedule["State"] for schedule in schedules} == {"DISABLED"}


# ---- The HTTP API --------------------------------------------------------------------------------


def routes(deployment: Deployment) -> dict[str, Any]:
    """Method and path -> what the API does with it."""
    (api,) = deployment.of_type("AWS::ApiGatewayV2::Api").values()
    return {
        f"{method.upper()} {path}": operation
        for path, methods in api["Body"]["paths"].items()
        for method, operation in methods.items()
    }


def test_one_route_is_open_and_all_others_are_closed(deployment: Deployment) -> None:
    found = routes(deployment)
    assert "security" not in found.pop("POST /webhooks/sume")
    assert set(found) == {
        "POST /jobs",
        "GET /jobs",
        "GET /jobs/{id}",
        "POST /jobs/{id}/cancel",
        "GET /support/jobs/{id}",
        "GET /stats",
        "GET /board",
        "GET /openapi.json",
    }
    scheme = "Jwt" if deployment.parameters["JwtIssuer"] else "AWS_IAM"
    for operation in found.values():
        assert operation["security"] == [{scheme: []}]


def test_the_schemes_are_written_as_sam_writes_them() -> None:
    """A scheme that API Gateway does not understand would leave the routes open."""
    template = source()
    template["Resources"] = {
        "Function": {
            "Type": "AWS::Serverless::Function",
            "Properties": {
                "InlineCode": "",
                "Runtime": "python3.13",
                "Handler": "app.handler",
                "Events": {
                    name.replace("_", ""): {
                        "Type": "HttpApi",
                        "Properties": {
                            "ApiId": {"Ref": "Api"},
                            "Path": f"/{name}",
                            "Method": "GET",
                            "Auth": {"Authorizer": name},
                        },
                    }
                    for name in ("AWS_IAM", "Jwt")
                },
            },
        },
        "Api": {
            "Type": "AWS::Serverless::HttpApi",
            "Properties": {
                "Auth": {
                    "EnableIamAuthorizer": True,
                    "Authorizers": {
                        "Jwt": {
                            "IdentitySource": "$request.header.Authorization",
                            "JwtConfiguration": {
                                "issuer": "https://login.example.com",
                                "audience": ["shop", "support"],
                            },
                        }
                    },
                }
            },
        },
    }
    del template["Globals"], template["Outputs"]
    body = translate(template)["Resources"]["Api"]["Properties"]["Body"]
    (api,) = Deployment(**CONFIGURATIONS["everything"]).of_type("AWS::ApiGatewayV2::Api").values()
    assert api["Body"]["components"]["securitySchemes"] == body["components"]["securitySchemes"]
    assert body["paths"]["/AWS_IAM"]["get"]["security"] == [{"AWS_IAM": []}]
    (api,) = Deployment(**BY_SECRET).of_type("AWS::ApiGatewayV2::Api").values()
    assert set(api["Body"]["components"]["securitySchemes"]) == {"AWS_IAM"}


def test_routes_reach_their_function_and_may_call_it(deployment: Deployment) -> None:
    published = "WebhookAlias" in deployment.resources
    webhook = "<WebhookAlias>" if published else "<WebhookFunction.Arn>"
    for route, operation in routes(deployment).items():
        target = webhook if route == "POST /webhooks/sume" else "<ApiFunction.Arn>"
        assert operation["x-amazon-apigateway-integration"] == {
            "type": "aws_proxy",
            "httpMethod": "POST",
            "payloadFormatVersion": "2.0",
            "uri": "arn:aws:apigateway:eu-central-1:lambda:path/2015-03-31/functions/"
            f"{target}/invocations",
        }
    allowed = {
        permission["FunctionName"]: permission["SourceArn"]
        for permission in deployment.of_type("AWS::Lambda::Permission").values()
        if permission["Principal"] == "apigateway.amazonaws.com"
    }
    api = "arn:aws:execute-api:eu-central-1:123456789012:<HttpApi>"
    assert allowed == {webhook: f"{api}/*/POST/webhooks/sume", "<ApiFunction.Arn>": f"{api}/*/*"}


def test_the_api_throttles_and_logs(deployment: Deployment) -> None:
    (stage,) = deployment.of_type("AWS::ApiGatewayV2::Stage").values()
    assert stage["StageName"] == "$default"
    assert stage["AutoDeploy"] is True
    assert stage["DefaultRouteSettings"] == {
        "ThrottlingRateLimit": "100",
        "ThrottlingBurstLimit": "200",
    }
    assert stage["AccessLogSettings"]["DestinationArn"] == "<ApiLogs.Arn>"
    logged = json.loads(stage["AccessLogSettings"]["Format"])
    assert {"request_id", "status", "route"} <= set(logged)
    for value in logged.values():
        assert not re.search(r"path|query|header|\$context\.authorizer", value, re.IGNORECASE)


@pytest.mark.parametrize(
    ("configuration", "expected"),
    [
        ("least", None),
        ("webhooks", "https://<HttpApi>.execute-api.eu-central-1.amazonaws.com/webhooks/sume"),
        ("reread", "https://<HttpApi>.execute-api.eu-central-1.amazonaws.com/webhooks/sume"),
        ("everything", "https://jobs.example.com/webhooks/sume"),
    ],
)
def test_submit_knows_where_webhooks_go(configuration: str, expected: str | None) -> None:
    deployment = Deployment(**CONFIGURATIONS[configuration])
    assert deployment.environment("submit").get("SUME_WEBHOOK_URL") == expected
    for other in set(deployment.functions) - {"submit"}:
        assert "SUME_WEBHOOK_URL" not in deployment.environment(other)
    if expected:
        assert deployment.outputs["WebhookUrl"] == expected
    assert deployment.outputs["WebhookUrl"].startswith("https://")


def test_resources_can_be_created_in_some_order() -> None:
    order = creation_order(translated())
    assert order.index("HttpApi") < order.index("SubmitFunction")
    # The schema comes before all that needs it, and migrate before the schema.
    assert order.index("MigrateFunction") < order.index("Schema")
    for function in ALL_FUNCTIONS - {"migrate"}:
        assert order.index("Schema") < order.index(f"{function.title()}Function")


def test_the_order_test_would_notice_a_circle() -> None:
    template = source()
    properties = template["Resources"]["MigrateFunction"]["Properties"]
    properties["Environment"] = {"Variables": {"URL": {"Ref": "Schema"}}}
    with pytest.raises(CycleError):
        creation_order(translate(template))


# ---- The schema and published versions -----------------------------------------------------------


def test_a_deployment_migrates_whenever_the_layer_changed(deployment: Deployment) -> None:
    (schema,) = deployment.of_type("Custom::Schema").values()
    assert schema["ServiceToken"] == "<MigrateFunction.Arn>"
    (layer,) = [
        name
        for name, resource in deployment.resources.items()
        if resource["Type"] == "AWS::Lambda::LayerVersion"
    ]
    assert schema["Layer"] == f"<{layer}>"
    # Not before the function had its time, and not an hour later either.
    limit = deployment.functions["migrate"]["Timeout"]
    assert limit < int(schema["ServiceTimeout"]) <= limit + 60
    assert schema["Enabled"] == "true"
    stopped = Deployment(**BY_SECRET, MigrateOnDeploy="false")
    assert stopped.of_type("Custom::Schema")["Schema"]["Enabled"] == "false"


def test_versions_are_only_published_where_something_needs_them() -> None:
    for parameters in (BY_SECRET, CONFIGURATIONS["archive"]):
        deployment = Deployment(**parameters)
        assert not deployment.of_type("AWS::Lambda::Version")
        assert not deployment.of_type("AWS::Lambda::Alias")
        for properties in deployment.functions.values():
            assert "SnapStart" not in properties
            assert "ProvisionedConcurrencyConfig" not in properties


def test_snapstart_and_provisioned_concurrency_run_the_alias() -> None:
    snapshot = Deployment(**CONFIGURATIONS["versions"])
    assert snapshot.functions["webhook"]["SnapStart"] == {"ApplyOn": "PublishedVersions"}
    assert (
        "ProvisionedConcurrencyConfig" not in snapshot.of_type("AWS::Lambda::Alias")["WebhookAlias"]
    )
    provisioned = Deployment(**CONFIGURATIONS["everything"])
    (alias,) = provisioned.of_type("AWS::Lambda::Alias").values()
    assert alias["ProvisionedConcurrencyConfig"] == {"ProvisionedConcurrentExecutions": "2"}
    assert alias["FunctionVersion"] == "<WebhookVersion.Version>"
    assert "SnapStart" not in provisioned.functions["webhook"]


def test_a_version_is_replaced_when_only_the_layer_changed() -> None:
    """A version is made anew when its description changes, and that follows the layer's version."""
    before, after = translated(), source()
    after["Resources"]["Layer"]["Properties"]["Description"] = "another layer"
    after = translate(after)

    def layer(template: dict[str, Any]) -> str:
        (name,) = [
            name
            for name, resource in template["Resources"].items()
            if resource["Type"] == "AWS::Lambda::LayerVersion"
        ]
        return name

    def named(template: dict[str, Any]) -> set[str]:
        return references(template["Resources"]["WebhookVersion"]["Properties"]["Description"])

    assert layer(before) != layer(after)
    assert named(before) == {layer(before), "BuildSha"}
    assert named(after) == {layer(after), "BuildSha"}
    # The function itself follows the layer as well, and so does the schema.
    for name in ("WebhookFunction", "Schema"):
        assert layer(after) in references(after["Resources"][name]["Properties"])


# ---- Environment ---------------------------------------------------------------------------------


class Recorder(dict[str, str]):
    """An environment that remembers which variables were asked for."""

    def __init__(self, values: dict[str, str]) -> None:
        super().__init__(values)
        self.asked: set[str] = set()

    def get(self, name: str, default: Any = None) -> Any:
        self.asked.add(name)
        return super().get(name, default)


def known_variables() -> set[str]:
    environment = Recorder({"DATABASE_URL": "postgresql://localhost/x"})
    Settings.from_environment(environment)
    return environment.asked


POWERTOOLS = {
    "POWERTOOLS_SERVICE_NAME",
    "POWERTOOLS_METRICS_NAMESPACE",
    "POWERTOOLS_LOG_LEVEL",
    "POWERTOOLS_LOGGER_LOG_EVENT",
}
# What holds a secret, or is only for a machine without AWS.
NEVER_DEPLOYED = {"DATABASE_URL", "SUME_API_KEY", "SUME_WEBHOOK_SECRETS"}


def test_variables_are_those_the_layer_reads() -> None:
    given: set[str] = set()
    for parameters in CONFIGURATIONS.values():
        deployment = Deployment(**parameters)
        for function in deployment.functions:
            given |= set(deployment.environment(function))
    assert given == (known_variables() | POWERTOOLS) - NEVER_DEPLOYED


def test_the_layer_accepts_what_each_function_is_given(deployment: Deployment) -> None:
    for function in deployment.functions:
        Settings.from_environment(deployment.environment(function))


@pytest.mark.parametrize(
    "parameter",
    [name for name, declared in source()["Parameters"].items() if declared["Type"] == "Number"],
)
def test_the_layer_accepts_every_number_a_parameter_allows(parameter: str) -> None:
    others = (
        "Log",
        "Api",
        "Scheduled",
        "WebhookReserved",
        "WebhookProvisioned",
        "DatabaseM",
        "Needs",
    )
    if parameter.startswith(others):
        assert not re.search(parameter, json.dumps(source()["Globals"]["Function"]["Environment"]))
        return
    for value in bounds(parameter):
        chosen = {**BY_SECRET, "DatabaseHost": "db.example.com", parameter: value}
        if parameter in ("RetentionDays", "MaxAttempts", "MaxGenerations"):
            chosen[parameter] = min(value, 100)
        if parameter == "ArchiveMaxBytes":
            chosen["ArchiveBucket"] = "shop-images"
            Settings.from_environment(Deployment(**chosen).environment("archive"))
        Settings.from_environment(Deployment(**chosen).environment("submit"))


def test_variables_hold_no_secrets(deployment: Deployment) -> None:
    for template in ROOT.glob("template*.yaml"):
        assert "resolve:" not in template.read_text(encoding="utf-8")
    for function in deployment.functions:
        for name, value in deployment.environment(function).items():
            assert isinstance(value, str), name
            if re.search(r"SECRET|KEY|PASSWORD|TOKEN", name):
                known = value == "<Database.Outputs.SecretArn>"
                assert known or re.match(r"arn:[a-z-]+:secretsmanager:", value), name
        assert not NEVER_DEPLOYED & set(deployment.environment(function))


def test_secret_names_reach_only_those_who_read_them() -> None:
    deployment = Deployment(**CONFIGURATIONS["everything"])
    for function in ALL_FUNCTIONS:
        environment = deployment.environment(function)
        reads_key = function in ("submit", "poll", "archive")
        assert ("SUME_API_KEY_SECRET_ARN" in environment) == reads_key
        assert ("SUME_WEBHOOK_SECRETS_ARN" in environment) == (function == "webhook")


def test_key_prefix_names_the_stack_unless_chosen() -> None:
    """R3: two stages that share a Sume workspace must not share keys."""
    chosen = Deployment(**CONFIGURATIONS["everything"])
    default = Deployment(**BY_SECRET)
    for function in FUNCTIONS:
        assert default.environment(function)["IDEMPOTENCY_PREFIX"] == f"{STACK}-render-job"
        assert chosen.environment(function)["IDEMPOTENCY_PREFIX"] == "shop"
    longest = re.search(
        r"\{0,(\d+)\}", source()["Parameters"]["IdempotencyPrefix"]["AllowedPattern"]
    )
    assert longest is not None
    Settings.from_environment({"DATABASE_HOST": "h", "IDEMPOTENCY_PREFIX": "x" * int(longest[1])})
    # The longest stack name CloudFormation allows.
    prefix = "s" * 128 + "-render-job"
    Settings.from_environment({"DATABASE_HOST": "h", "IDEMPOTENCY_PREFIX": prefix})


def test_database_by_secret_and_by_iam() -> None:
    by_secret = Deployment(**BY_SECRET).environment("reap")
    assert by_secret["DATABASE_SECRET_ARN"] == DATABASE_ARN
    assert not {"DATABASE_HOST", "DATABASE_NAME", "DATABASE_IAM_AUTH"} & set(by_secret)
    by_iam = Deployment(**BY_IAM).environment("reap")
    assert by_iam["DATABASE_IAM_AUTH"] == "true"
    assert by_iam["DATABASE_HOST"] == "db.example.com"
    assert "DATABASE_SECRET_ARN" not in by_iam
    own = Deployment(**CONFIGURATIONS["own database"]).environment("reap")
    assert own["DATABASE_SECRET_ARN"] == "<Database.Outputs.SecretArn>"
    assert own["DATABASE_HOST"] == "<Database.Outputs.Host>"
    assert own["DATABASE_NAME"] == "<Database.Outputs.DatabaseName>"
    assert "DATABASE_IAM_AUTH" not in own


@pytest.mark.parametrize(
    ("configuration", "queue", "bus"),
    [
        ({}, None, None),
        (
            {"FollowUpQueueArn": QUEUE_ARN + ".fifo"},
            "https://sqs.eu-central-1.amazonaws.com/123456789012/shop-follow-ups.fifo",
            None,
        ),
        ({"ArchiveBucket": "shop-images"}, "<ArchiveQueue>", None),
        ({"ArchiveBucket": "shop-images", "FollowUpEventBusArn": BUS_ARN}, None, BUS_ARN),
    ],
)
def test_follow_ups_go_where_the_parameters_say(
    configuration: dict[str, str], queue: str | None, bus: str | None
) -> None:
    deployment = Deployment(**BY_SECRET, **configuration)
    for function in SCHEDULED:
        environment = deployment.environment(function)
        assert environment.get("FOLLOW_UP_QUEUE_URL") == queue
        assert environment.get("FOLLOW_UP_EVENT_BUS") == bus
    if "ArchiveBucket" in configuration:
        (mapping,) = deployment.of_type("AWS::Lambda::EventSourceMapping").values()
        assert mapping["EventSourceArn"] == "<ArchiveQueue.Arn>"
        assert mapping["FunctionResponseTypes"] == ["ReportBatchItemFailures"]
        queues = deployment.of_type("AWS::SQS::Queue")
        limit = deployment.functions["archive"]["Timeout"]
        assert queues["ArchiveQueue"]["VisibilityTimeout"] >= 6 * limit
        assert len(deployment.of_type("AWS::Events::Rule")) == (1 if bus else 0)


# ---- Parameters, data, outputs -------------------------------------------------------------------


def test_every_parameter_is_used() -> None:
    template = source()
    used = references(
        [template[part] for part in ("Conditions", "Globals", "Resources", "Outputs")]
    )
    used |= references(template["Rules"])
    assert set(template["Parameters"]) <= used
    assert set(template["Conditions"]) <= used


def test_every_parameter_explains_itself_and_has_a_default_that_is_allowed() -> None:
    for name, declared in source()["Parameters"].items():
        assert len(declared["Description"]) > 15, name
        if name == "SumeApiKeySecretArn":
            assert "Default" not in declared
            continue
        default = declared["Default"]
        assert "NoEcho" not in declared, "no parameter is a secret"
        if declared["Type"] == "String":
            assert ("AllowedPattern" in declared) != ("AllowedValues" in declared), name
        if "AllowedPattern" in declared:
            assert re.search(declared["AllowedPattern"], default), name
            assert declared["ConstraintDescription"].startswith("must be"), name
        if "AllowedValues" in declared:
            assert default in declared["AllowedValues"], name
        if declared["Type"] == "Number" and "AllowedValues" not in declared:
            assert declared["MinValue"] <= default <= declared.get("MaxValue", default), name


def test_every_parameter_stands_in_a_group_of_the_console() -> None:
    interface = source()["Metadata"]["AWS::CloudFormation::Interface"]
    grouped = [name for group in interface["ParameterGroups"] for name in group["Parameters"]]
    assert sorted(grouped) == sorted(source()["Parameters"])


@pytest.mark.parametrize(
    ("parameter", "good", "bad"),
    [
        ("DatabaseSecretArn", DATABASE_ARN, "my-secret"),
        ("SumeApiKeySecretArn", API_KEY_ARN, "sume_live_abcdef"),
        ("SumeWebhookSecretsArn", SIGNING_ARN, "whsec_abcdef"),
        ("SumeApiKeySecretArn", API_KEY_ARN, API_KEY_ARN.rpartition("-")[0]),
        ("DatabaseHost", "db.cluster-x.eu-central-1.rds.amazonaws.com", "postgresql://db/x"),
        ("DatabaseResourceId", "cluster-ABC", "arn:aws:rds:eu-central-1:1:db:x"),
        ("SumeBaseUrl", "https://api.sume.com/v1", "http://api.sume.com"),
        ("SumeWebhookUrl", "https://x.example.com/webhooks/sume", "https://x.example.com/"),
        ("IdempotencyPrefix", "shop:prod", "shop prod"),
        ("SecretsKmsKeyArn", KMS_ARN, "alias/aws/secretsmanager"),
        ("FollowUpQueueArn", QUEUE_ARN, "https://sqs.eu-central-1.amazonaws.com/1/x"),
        ("FollowUpEventBusArn", BUS_ARN, "default"),
        (
            "JwtIssuer",
            "https://cognito-idp.eu-central-1.amazonaws.com/pool",
            "http://x.example.com",
        ),
        ("ArchiveBucket", "shop-images.example", "s3://shop-images"),
        ("VpcId", "vpc-0abc", "subnet-0abc"),
        ("BuildSha", "ab" * 32, "latest"),
    ],
)
def test_patterns_take_what_is_meant(parameter: str, good: str, bad: str) -> None:
    pattern = source()["Parameters"][parameter]["AllowedPattern"]
    assert re.search(pattern, good)
    assert not re.search(pattern, bad)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({}, "Give DatabaseSecretArn, or DatabaseHost"),
        ({"DatabaseHost": "db.example.com"}, "needs DatabaseResourceId"),
        (BY_SECRET, None),
        (BY_IAM, None),
        (CONFIGURATIONS["own database"], None),
        (CONFIGURATIONS["everything"], None),
        ({"CreateDatabase": "true"}, "needs VpcId"),
        ({**CONFIGURATIONS["own database"], **BY_SECRET}, "give neither"),
        ({**BY_SECRET, "WebhookSnapStart": "true"}, "deploy with make deploy"),
        ({**BY_SECRET, "WebhookProvisionedConcurrency": 1}, "deploy with make deploy"),
        ({**CONFIGURATIONS["versions"], "WebhookProvisionedConcurrency": 1}, "not take SnapStart"),
        ({**CONFIGURATIONS["archive"], "FollowUpQueueArn": QUEUE_ARN}, "needs FollowUpEventBusArn"),
    ],
)
def test_a_stack_that_could_not_work_is_refused(
    parameters: dict[str, str], message: str | None
) -> None:
    deployment = Deployment(**parameters)
    refused = [
        assertion["AssertDescription"]
        for rule in source()["Rules"].values()
        if deployment.resolve(rule.get("RuleCondition", True))
        for assertion in rule["Assertions"]
        if not deployment.resolve(assertion["Assert"])
    ]
    assert bool(refused) == bool(message)
    assert not message or any(message in line for line in refused)


def test_what_holds_data_survives_deletion_and_replacement() -> None:
    stateful = (
        "AWS::SQS::Queue",
        "AWS::Logs::LogGroup",
        "AWS::S3::Bucket",
        "AWS::SecretsManager::Secret",
        "AWS::RDS::DBCluster",
        "AWS::RDS::DBInstance",
        "AWS::DynamoDB::Table",
    )
    nested = yaml_parse((ROOT / "template-database.yaml").read_text(encoding="utf-8"))
    resources = {**translated()["Resources"], **nested["Resources"]}
    found = [item for item in resources.items() if item[1]["Type"] in stateful]
    assert len(found) == 7
    for name, resource in found:
        if resource["Properties"].get("DBClusterIdentifier"):
            continue  # an instance holds nothing, its cluster does
        assert resource["DeletionPolicy"] in ("Retain", "RetainExceptOnCreate", "Snapshot"), name
        assert resource["UpdateReplacePolicy"] in ("Retain", "Snapshot"), name


def test_log_groups_are_used_and_forget(deployment: Deployment) -> None:
    for group in deployment.of_type("AWS::Logs::LogGroup").values():
        assert group["RetentionInDays"] == "30"
    for properties in deployment.functions.values():
        assert properties["LoggingConfig"] == {"LogFormat": "Text", "LogGroup": "<FunctionLogs>"}


def test_nothing_has_a_name_that_a_second_stack_would_fight_over(deployment: Deployment) -> None:
    kinds = ("EventInvokeConfig", "Permission", "Version", "Alias", "EventSourceMapping")
    refer_by_name = [f"AWS::Lambda::{kind}" for kind in kinds]
    named = re.compile(
        r"^(FunctionName|QueueName|RoleName|LogGroupName|ManagedPolicyName|TableName|BucketName)$"
    )
    for name, resource in deployment.resources.items():
        if resource["Type"] in refer_by_name:
            continue  # refer to a function by this key
        assert not [key for key in resource.get("Properties", {}) if named.match(key)], name


def test_outputs_name_the_functions_and_explain_themselves() -> None:
    outputs = source()["Outputs"]
    for name in ALL_FUNCTIONS:
        assert outputs[f"{name.title()}FunctionName"]["Value"] == {"Ref": f"{name.title()}Function"}
    for output in outputs.values():
        assert output["Description"].endswith(".")


def test_samconfig_builds_and_deploys_without_asking_for_rights_it_needs() -> None:
    configured = tomllib.loads((ROOT / "samconfig.toml").read_text(encoding="utf-8"))
    for stage in ("default", "prod"):
        assert configured[stage]["deploy"]["parameters"]["capabilities"] == "CAPABILITY_IAM"
        assert configured[stage]["global"]["parameters"]["stack_name"]
    assert configured["prod"]["deploy"]["parameters"]["confirm_changeset"] is True
